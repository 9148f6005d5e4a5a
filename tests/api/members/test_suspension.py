"""Members suspended, reinstated or revoked while a run goes on."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pubswap_protocol import paths
from pubswap_protocol.errors import (
    NotFound,
    PubSwapError,
    Suspended,
    Unauthenticated,
    WrongState,
)
from pubswap_protocol.messages import RunState, TaskKind
from pubswap_protocol.tensors.adapter import decode_adapter
from support.coordinator.coordinator import Federation, Server, begun
from support.eventually import until


def suspend(fed: Federation, name: str) -> None:
    """As the operator."""
    fed.operator.decide(fed.run.id, name, paths.RUN_MEMBER_SUSPEND)


def reinstate(fed: Federation, name: str) -> None:
    """As the operator."""
    fed.operator.decide(fed.run.id, name, paths.RUN_MEMBER_REINSTATE)


def kinds(fed: Federation) -> list[str]:
    """The kinds of the run's events."""
    return [event.kind for event in fed.operator.events(fed.run.id).events]


def test_a_suspended_member_is_refused_until_it_is_reinstated(server: Server) -> None:
    """403 `suspended` on every route until then; the same token works again afterwards."""
    fed = begun(server, method="fedavg")
    suspend(fed, "a")
    suspend(fed, "a")
    for ask in (
        lambda: fed.members["a"].task(fed.run.id, 0),
        lambda: fed.members["a"].run(fed.run.id),
        lambda: fed.submit("a", 1, fed.adapter(1)),
    ):
        with pytest.raises(Suspended, match="goes on by itself"):
            ask()
    (shown,) = [m for m in fed.operator.members(fed.run.id).members if m.name == "a"]
    assert (shown.active, shown.suspended) == (True, True)
    reinstate(fed, "a")
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.TRAIN
    assert kinds(fed)[-2:] == ["suspended", "reinstated"]


def test_nobody_is_refused_for_another_s_sake(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange is read once for all who ask at a time; the first may be revoked meanwhile."""
    fed = begun(server)
    for name in "ab":
        body = fed.responses(name, 1, 1, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    until(lambda: "exchange closed" in kinds(fed))
    pools, asked, gate = server.app.state.services.answers._pools, list[Any](), threading.Event()
    get = pools.get

    async def held(key: Any, make: Callable[[], Any]) -> Any:
        async def later() -> Any:
            await asyncio.to_thread(gate.wait, 20)
            return await make()

        asked.append(key)
        return await get(key, later)

    monkeypatch.setattr(pools, "get", held)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(fed.members["a"].exchanged, fed.run.id, 1, 1)
        until(lambda: len(asked) == 1)
        answer = pool.submit(fed.members["b"].exchanged, fed.run.id, 1, 1)
        until(lambda: len(asked) == 2)
        fed.operator.revoke(fed.run.id, "a")
        gate.set()
        assert answer.result()


def test_a_round_does_not_wait_for_a_suspended_member(server: Server) -> None:
    """It closes without it; once reinstated, the member goes on in the next round."""
    fed = begun(server, method="fedavg", clients=3)
    mine, theirs = fed.adapter(1), fed.adapter(2)
    fed.submit("a", 1, mine)
    fed.submit("b", 1, theirs)
    suspend(fed, "c")
    view = fed.wait_for(1)
    assert view.rounds[1].updates == 2
    mean = decode_adapter(fed.run.model.layout, fed.operator.global_adapter(fed.run.id, "1"))
    assert all(np.allclose(mean[n], (mine[n] + theirs[n]) / 2, atol=1e-6) for n in mean)
    reinstate(fed, "c")
    assert fed.members["c"].task(fed.run.id, 0).round == 2
    for name in "ab":
        fed.submit(name, 2, fed.adapter(3))
    time.sleep(0.3)
    assert fed.view().state is RunState.TRAINING
    fed.submit("c", 2, fed.adapter(3))
    assert fed.wait_for(2).rounds[2].updates == 3


def test_what_a_suspended_member_handed_in_before_counts(server: Server) -> None:
    """Its update is in the mean, and so is a revoked member's."""
    fed = begun(server, method="fedavg", rounds=1, clients=3)
    adapters = [fed.adapter(seed) for seed in range(3)]
    for name, adapter in zip("abc", adapters, strict=True):
        if name == "c":
            suspend(fed, "a")
            fed.operator.revoke(fed.run.id, "b")
        fed.submit(name, 1, adapter)
    assert fed.wait_for(1).rounds[1].updates == 3
    mean = decode_adapter(fed.run.model.layout, fed.operator.global_adapter(fed.run.id, "1"))
    for name, tensor in mean.items():
        assert np.allclose(tensor, sum(adapter[name] for adapter in adapters) / 3, atol=1e-6)


def test_an_exchange_does_not_wait_for_a_suspended_member(server: Server) -> None:
    """The other is answered right away; the suspended one, once back, is told it is late."""
    fed = begun(server)
    late = fed.responses("b", 1, 1, [4, 4])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    suspend(fed, "b")
    started = time.monotonic()
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    assert time.monotonic() - started < 20  # less than the 25 s after which it would look anyway
    reinstate(fed, "b")
    receipt = fed.members["b"].submit_responses(fed.run.id, 1, 1, late)
    assert receipt.status == "late, unused"


@pytest.mark.parametrize("how", ["suspend", "revoke"])
def test_a_long_poll_gives_nothing_to_a_member_that_was_refused_meanwhile(
    server: Server, how: str
) -> None:
    """Access is checked again before the answer, and not only when the member asked."""
    fed = begun(server, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))

    def decide() -> None:
        if how == "suspend":
            suspend(fed, "a")
        else:
            fed.operator.revoke(fed.run.id, "a")

    timer = threading.Timer(0.3, decide)
    timer.start()
    started = time.monotonic()
    with pytest.raises(Suspended if how == "suspend" else Unauthenticated):
        fed.members["a"].task(fed.run.id, 25)
    assert time.monotonic() - started < 20  # less than the 25 s after which it would look anyway
    timer.join()


def test_a_member_revoked_in_mid_run_is_out_for_good(server: Server) -> None:
    """The round closes without it, its token is invalid, and it cannot be reinstated."""
    fed = begun(server, method="fedavg", clients=3, rounds=1)
    fed.submit("a", 1, fed.adapter(1))
    fed.submit("b", 1, fed.adapter(2))
    fed.operator.revoke(fed.run.id, "c")
    assert fed.wait_for(1).state is RunState.FINISHED
    with pytest.raises(Unauthenticated):
        fed.members["c"].task(fed.run.id, 0)
    with pytest.raises(WrongState, match="under another name"):
        reinstate(fed, "c")
    with pytest.raises(NotFound):
        suspend(fed, "nobody")


def test_a_run_does_not_close_below_its_quorum_and_says_why_it_waits(server: Server) -> None:
    """With a quorum of two and one client left, one update is not enough; a new client helps."""
    rules = {"quorum": 2, "deadline_seconds": 0.2}
    fed = begun(server, method="fedavg", clients=3, rounds=1, aggregation=rules)
    fed.submit("a", 1, fed.adapter(1))
    fed.operator.revoke(fed.run.id, "b")
    fed.operator.revoke(fed.run.id, "c")
    until(lambda: fed.view().waiting_for is not None)
    time.sleep(0.3)
    view = fed.view()
    assert view.state is RunState.TRAINING
    assert "1 came and 1 more clients are missing" in (view.waiting_for or "")
    assert kinds(fed).count("waiting") == 1
    fed.enroll("d")
    until(lambda: fed.view().waiting_for is None)
    fed.submit("d", 1, fed.adapter(2))
    view = fed.wait_for(1)
    assert (view.state, view.rounds[1].updates) == (RunState.FINISHED, 2)


def test_an_exchange_does_not_close_below_its_quorum(server: Server) -> None:
    """The client waits; once the other is reinstated, both are answered."""
    fed = begun(server, method={"quorum": 2, "deadline_seconds": 0.2})
    bodies = {name: fed.responses(name, 1, 1, [1, 1]) for name in "ab"}
    fed.members["a"].submit_responses(fed.run.id, 1, 1, bodies["a"])
    suspend(fed, "b")
    until(lambda: "Public step 1 of round 1" in (fed.view().waiting_for or ""))
    with server.http(fed.tokens["a"]) as http:
        path = paths.PUBLIC_STEP_EXCHANGED.format(run=fed.run.id, round=1, public_step=1)
        assert http.get(path).status_code == 204
    reinstate(fed, "b")
    fed.members["b"].submit_responses(fed.run.id, 1, 1, bodies["b"])
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    until(lambda: fed.view().waiting_for is None)


def test_a_run_whose_clients_are_all_gone_waits(server: Server) -> None:
    """Nobody is left to send anything, and `waiting_for` says so."""
    fed = begun(server, method="fedavg")
    for name in "ab":
        fed.operator.revoke(fed.run.id, name)
    until(lambda: fed.view().waiting_for is not None)
    assert fed.view().state is RunState.TRAINING
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    assert fed.view().waiting_for is None


def test_only_the_operator_decides_about_members(server: Server) -> None:
    """A member cannot suspend its peer or itself."""
    fed = begun(server)
    for decide in (
        lambda: fed.members["a"].decide(fed.run.id, "b", paths.RUN_MEMBER_SUSPEND),
        lambda: fed.members["a"].decide(fed.run.id, "a", paths.RUN_MEMBER_REINSTATE),
        lambda: fed.members["a"].revoke(fed.run.id, "b"),
    ):
        with pytest.raises(PubSwapError) as caught:
            decide()
        assert caught.value.code == "forbidden"
