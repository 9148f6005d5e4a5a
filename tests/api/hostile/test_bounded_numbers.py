"""Numbers that no run can use are refused on arrival, in every message."""

import numpy as np
import pytest

from pubswap_protocol import paths
from pubswap_protocol.messages import RunState
from pubswap_protocol.tensors.adapter import decode_adapter
from support.coordinator.coordinator import Federation, Server, begun

HUGE = "1" + "0" * 320
LONGEST = "1" + "0" * 4200  # within the limit of Python's int()
WRONG = [HUGE, LONGEST, "9" * 5000, str(2**63), "-1", "true", "1.0", '"1"', "NaN", "-Infinity"]
WRONG_FLOATS = ["NaN", "Infinity", "1e400", HUGE, "true", '"1"', "[]"]


def answers(fed: Federation, path: str, body: str, method: str = "POST") -> tuple[int, str]:
    """The status and error code of a member's request with this body."""
    headers = {"Content-Type": "application/json"}
    with fed.server.http(fed.tokens["a"]) as http:
        reply = http.request(method, path, content=body, headers=headers)
    assert reply.headers["content-type"] == paths.PROBLEM_TYPE, reply.text
    return reply.status_code, reply.json()["code"]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda text: text[:8] + str(len(text)))
def test_no_integer_of_a_message_is_without_bound(server: Server, wrong: str) -> None:
    """In a heartbeat, an update and an upload's announcement."""
    fed = begun(server)
    heartbeat, update = paths.HEARTBEAT.format(run=fed.run.id), paths.UPDATE
    digest = "blake3:" + "0" * 64
    for round_ in ("1", HUGE[:30]):
        where = update.format(run=fed.run.id, round=round_)
        body = f'{{"adapter": "{digest}", "metrics": {{"examples": {wrong}, "steps": 1}}}}'
        assert answers(fed, where, body) == (422, "invalid")
    for field in ("round", "step", "steps"):
        values = {"round": "1", "step": "1", "steps": "1"} | {field: wrong}
        body = "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"
        assert answers(fed, heartbeat, body) == (422, "invalid")
    body = f'{{"digest": "{digest}", "size": {wrong}}}'
    assert answers(fed, paths.UPLOADS.format(run=fed.run.id), body) == (422, "invalid")
    assert fed.operator.run(fed.run.id).state is RunState.TRAINING


@pytest.mark.parametrize("wrong", WRONG_FLOATS)
def test_no_float_of_a_message_is_infinite_or_no_number(server: Server, wrong: str) -> None:
    """JSON has no such numbers; a member sends null instead."""
    fed = begun(server)
    body = f'{{"round": 1, "step": 1, "steps": 1, "loss": {wrong}}}'
    assert answers(fed, paths.HEARTBEAT.format(run=fed.run.id), body) == (422, "invalid")
    metrics = f'{{"examples": 1, "steps": 1, "seconds": {wrong}}}'
    body = f'{{"adapter": "blake3:{"0" * 64}", "metrics": {metrics}}}'
    where = paths.UPDATE.format(run=fed.run.id, round=1)
    assert answers(fed, where, body) == (422, "invalid")
    assert answers(fed, paths.TASK.format(run=fed.run.id) + f"?wait={wrong}", "", "GET")[0] == 422


def test_a_key_twice_in_a_body_is_refused(server: Server) -> None:
    """Two parsers might each keep a different value."""
    fed = begun(server)
    body = '{"round": 1, "round": 2, "step": 1, "steps": 1}'
    assert answers(fed, paths.HEARTBEAT.format(run=fed.run.id), body) == (422, "invalid")


def test_no_member_takes_the_mean_by_its_counter(server: Server) -> None:
    """With weights by examples, a claim of a billion examples gets twice an equal share.

    The run's log names the member.
    """
    clients = {"a": (1.0, 10**9), "b": (0.0, 3), "c": (2.0, 1), "d": (2.0, 1), "e": (2.0, 1)}
    fed = begun(server, clients=5, aggregation={"weights": "examples"})
    for name, (value, examples) in clients.items():
        tensors = {n: np.full_like(array, value) for n, array in fed.adapter(0).items()}
        fed.submit(name, 1, tensors, examples)
    mean = fed.wait_for(1).rounds[1].adapter or ""
    tensors = decode_adapter(fed.run.model.layout, fed.members["a"].blob(fed.run.id, mean))
    numbers = {float(number) for array in tensors.values() for number in array.flat}
    [number] = numbers
    assert number == pytest.approx(0.4 * 1.0 + 0.6 * (3 * 0.0 + 3 * 2.0) / 6)
    log = fed.operator.events(fed.run.id).events
    [bounded] = [event.details for event in log if event.kind == "weight bounded"]
    assert (bounded["member"], bounded["share"]) == ("a", 0.4)


def test_metrics_are_stored_as_json_that_every_database_takes(server: Server) -> None:
    """A diverged member's numbers become null, and our own client can read the run's view."""
    fed = begun(server)
    body = {"round": 1, "step": 1, "steps": 1, "loss": None, "reward": 1e300}
    with server.http(fed.tokens["a"]) as http:
        assert http.post(paths.HEARTBEAT.format(run=fed.run.id), json=body).status_code == 204
    (a, *_) = fed.operator.members(fed.run.id).members
    assert a.progress is not None and a.progress.reward is None
