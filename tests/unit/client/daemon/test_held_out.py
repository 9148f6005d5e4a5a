"""The client's held-out pass@1: its definition, that it leaves training unchanged, and kills."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.daemon import Daemon
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.reporters import LogLines
from pubswap_client.organisation.report import held_out_text
from pubswap_client.state import history
from pubswap_client.state.history import HeldOutScore
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import ServerFault
from pubswap_protocol.messages import RunState, Task, TaskKind
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from support.client.even import is_even
from support.client.one_client import ROUNDS, World, kill_again_and_again

HELD_OUT = [Problem(id=f"h{n}", prompt=f"5+{n}=", answer="?") for n in range(6)]


def kept(one: World) -> list[HeldOutScore]:
    """The scores in the state folder."""
    return history.read(one.state / history.HELD_OUT, one.coordinator.run.id, HeldOutScore)


def scores_of(one: World) -> list[tuple[Any, ...]]:
    """The kept scores without their times and durations."""
    return [(each.round, each.adapter, each.pass_at_1, each.problems) for each in kept(one)]


def test_holding_out_changes_no_bit_and_each_adapter_is_scored_once(
    world: Callable[..., World],
) -> None:
    """A client that is killed again and again has an undisturbed client's scores and adapters."""
    without, undisturbed, killed = world(), world(), world()
    undisturbed.held_out = killed.held_out = HELD_OUT
    without.live()
    undisturbed.live()
    assert without.adapters() == undisturbed.adapters()
    assert without.coordinator.submitted == undisturbed.coordinator.submitted
    kill_again_and_again(killed)
    assert killed.adapters() == undisturbed.adapters()
    assert scores_of(killed) == scores_of(undisturbed)
    assert [score[0] for score in scores_of(killed)] == list(range(ROUNDS))
    assert not (without.state / history.HELD_OUT).exists()


def test_the_score_is_the_share_of_right_answers(world: Callable[..., World]) -> None:
    """One response per problem is sampled from the given adapter."""
    trainer = world().trainer(None)
    layout = trainer.policy.card.layout
    adapters = [initial_adapter(layout, 1)]
    adapters.append({name: values + 0.3 for name, values in adapters[0].items()})
    sampled: list[list[Any]] = []
    generate = trainer.engine.generate

    def recorded(prompts: Any, sampling: Any) -> Any:
        assert sampling.count == 1 and sampling.temperature == 0.7
        sampled.append(generate(prompts, sampling))
        return sampled[-1]

    trainer.engine.generate = recorded  # type: ignore[method-assign]
    for adapter in adapters:
        score = trainer.pass_at_1(adapter, HELD_OUT)
        texts = [trainer.policy.decode(group)[0] for group in sampled[-1]]
        assert score == sum(map(is_even, texts)) / len(HELD_OUT)
    first, second = ([list(group[0].tokens) for group in groups] for groups in sampled)
    assert first != second
    assert trainer.pass_at_1(adapters[0], HELD_OUT) >= 0
    assert [list(group[0].tokens) for group in sampled[-1]] == first


def test_changed_problems_are_measured_anew(world: Callable[..., World]) -> None:
    """The private file may be edited within a round, so the gain is measured on the new problems.

    An upgrade to another version of the verifier has the same effect.
    """
    one = world()
    one.state.mkdir(exist_ok=True)
    trainer = one.trainer(None)
    adapter, run = initial_adapter(trainer.policy.card.layout, 1), one.coordinator.run.id
    sets = (HELD_OUT, HELD_OUT[1:] + HELD_OUT[:1], HELD_OUT[:2], HELD_OUT[:2], HELD_OUT[:2])
    for problems, verifier in zip(sets, ("1", "1", "1", "1", "2"), strict=True):
        held_out = HeldOut(one.state, run, problems, verifier)
        found = held_out.measure(trainer, LogLines(), 0, digest_of(b"adapter"), adapter)
        assert found == trainer.pass_at_1(adapter, problems)
    assert [score.problems for score in kept(one)] == [6, 6, 2, 2]
    assert (
        held_out_text(kept(one))
        .partition(" (95")[0]
        .endswith("after round 0, on 2 held-out problems of our own")
    )


@pytest.mark.parametrize("served", ["adapter", "nothing", "nonsense"])
def test_the_last_adapter_is_measured_when_the_run_is_finished(
    world: Callable[..., World], served: str
) -> None:
    """A restarted daemon does not measure it again; if it cannot be fetched, the run still ends."""
    one = world()
    trainer, run = one.trainer(None), one.coordinator.run
    generate, asked = trainer.engine.generate, list[int]()

    def counted(prompts: Any, sampling: Any) -> Any:
        asked.append(sampling.count)
        return generate(prompts, sampling)

    trainer.engine.generate = counted  # type: ignore[method-assign]
    layout = run.model.layout
    data = encode_adapter(layout, initial_adapter(layout, 5))

    def adapter_of_round(_: str, which: str, max_bytes: int) -> tuple[int, bytes]:
        assert (which, max_bytes) == ("final", layout.file_bytes)
        if served == "nothing":
            raise ServerFault
        return 2, data if served == "adapter" else bytes(len(data))

    ended = Task(kind=TaskKind.FINISHED, state=RunState.FINISHED, round=2)
    api: Any = SimpleNamespace(task=lambda *_: ended, adapter_of_round=adapter_of_round)
    nothing: Any = None
    held_out = HeldOut(one.state, run.id, HELD_OUT, "1")
    one.state.mkdir()
    context = MemberContext(api, run, trainer, nothing, LogLines(), held_out=held_out)
    daemon = Daemon(context)
    for _ in range(2):
        assert daemon.work() is RunState.FINISHED
    measured = served == "adapter"
    assert [score[:2] for score in scores_of(one)] == ([(2, digest_of(data))] if measured else [])
    assert asked == ([1] if measured else [])
