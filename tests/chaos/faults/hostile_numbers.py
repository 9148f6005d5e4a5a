"""A member whose numbers are as extreme as they may be, and more, against every rule of a round."""

import itertools
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from pubswap_protocol import paths
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import RunState, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import (
    LARGEST,
    Adapter,
    decode_adapter,
    encode_adapter,
    sent_layout,
)
from pubswap_protocol.tensors.safetensors_header import header_length
from pubswap_protocol.tensors.update_encoding import encode_update
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.postgres import postgres

RULES = ("fedit", "ffa", "svd", "median", "trimmed_mean", "multi_krum")
BEYOND = (np.nan, np.inf, -np.inf, 1e20, -3.4e38, 4 * LARGEST)
WITHIN = (LARGEST, -LARGEST, 1.0)
CASES = [
    (rule, precision, optimizer, weights)
    for rule, precision, optimizer, weights in itertools.product(
        RULES,
        ("float32", "bfloat16"),
        ("none", "momentum", "adam"),
        ("uniform", "examples"),
    )
    if not (rule == "svd" and optimizer != "none")
    and not (rule in ("median", "trimmed_mean") and weights == "examples")
]
MESSAGES = ("NaN", "Infinity", "1e400", "-1", "true", "1.0", "9" * 400, "1" + "0" * 5000)


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Try `count` of the cases, half of them on PostgreSQL; all of them when there are so many."""
    rng = random.Random(seed)
    cases = rng.sample(CASES, min(count, len(CASES)))
    excluded = 0
    with ExitStack() as stack:
        url = stack.enter_context(postgres()).new_database()
        on_sqlite = settings_for(folder / "sqlite")
        settings = (
            on_sqlite,
            on_sqlite.model_copy(update={"data_dir": folder / "postgres", "database_url": url}),
        )
        servers = [stack.enter_context(serving(one)) for one in settings]
        for number, case in enumerate(cases):
            excluded += _case(servers[number % 2], rng, *case)
        for server in servers:
            assert server.client().runs()
            server.closing.close()
    return {"tried": len(cases), "lost": 0, "excluded": excluded}


def _rate(optimizer: str, rng: random.Random) -> dict[str, float]:
    """Its own learning rate, or one that blows numbers up."""
    return {"rate": 10.0} if optimizer != "none" and rng.random() < 0.5 else {}


def _case(
    server: Server, rng: random.Random, rule: str, precision: str, optimizer: str, weights: str
) -> int:
    """A run of two rounds with one hostile member; returns how often it had to be excluded."""
    fed = begun(
        server,
        clients=5 if rule == "multi_krum" else 3,
        wire={"precision": precision},
        aggregation={
            "rule": {"name": rule, "trim": 0.34} if rule == "trimmed_mean" else rule,
            "server_optimizer": {"name": optimizer, **_rate(optimizer, rng)},
            "weights": weights,
        },
    )
    excluded = 0
    for round_ in (1, 2):
        _refused_messages(fed, round_, rng)
        start = decode_adapter(
            fed.run.model.layout, fed.operator.global_adapter(fed.run.id, str(round_ - 1))
        )
        for value in rng.sample(BEYOND, 2):
            _refused(fed, _update(fed, start, value))
        _hand_in(fed, "a", round_, _update(fed, start, rng.choice(WITHIN)), 10**9)
        for name in sorted(set(fed.members) - {"a", "judge"}):
            _hand_in(fed, name, round_, _update(fed, start, 0.01), 10)
        excluded += _through(fed, round_)
    assert fed.view().state is RunState.FINISHED
    return excluded


def _update(fed: Federation, start: Adapter, value: float) -> bytes:
    """An update whose first number is the value, or whose difference is."""
    layout = sent_layout(fed.run.model.layout, fed.run.settings.aggregation.rule)
    precision = fed.run.settings.wire.precision
    if precision == "float32":
        return encode_adapter(
            layout, {n: np.full(shape, value, np.float32) for n, shape in layout.tensors.items()}
        )
    zero = {n: np.zeros(shape, np.float32) for n, shape in layout.tensors.items()}
    inside = value if np.isfinite(value) and abs(value) <= LARGEST else 1.0
    moved = {n: np.full(a.shape, inside, np.float32) for n, a in zero.items()}
    body = bytearray(encode_update(layout, precision, moved, zero))
    if inside != value:
        first = 8 + header_length(bytes(body[:8]))
        raw = np.float32(value).tobytes()
        body[first : first + 4] = raw[2:] * 2
    return bytes(body)


def _refused(fed: Federation, body: bytes) -> None:
    try:
        fed.members["a"].put_blob(fed.run.id, body)
    except PubSwapError as error:
        assert (error.status, error.code) == (422, "invalid_adapter"), error.detail
    else:
        raise AssertionError("a number out of range was taken")


def _refused_messages(fed: Federation, round_: int, rng: random.Random) -> None:
    wrong = rng.choice(MESSAGES)
    digest = "blake3:" + "0" * 64
    sent = {
        paths.HEARTBEAT: f'{{"round": {wrong}, "step": 1, "steps": 1}}',
        paths.UPDATE: f'{{"adapter": "{digest}", "metrics": {{"examples": {wrong}, "steps": 1}}}}',
        paths.UPLOADS: f'{{"digest": "{digest}", "size": {wrong}}}',
    }
    with fed.server.http(fed.tokens["a"]) as http:
        for path, body in sent.items():
            where = path.format(run=fed.run.id, round=round_)
            reply = http.post(where, content=body, headers={"Content-Type": "application/json"})
            assert reply.status_code == 422, reply.text
            assert reply.headers["content-type"] == paths.PROBLEM_TYPE


def _hand_in(fed: Federation, name: str, round_: int, body: bytes, examples: int) -> None:
    digest = fed.members[name].put_blob(fed.run.id, body)
    metrics = UpdateMetrics(examples=examples, steps=fed.run.settings.local_steps)
    update = SubmitUpdate(adapter=digest, metrics=metrics)
    assert fed.members[name].submit_update(fed.run.id, round_, update).status == "accepted"


def _through(fed: Federation, round_: int) -> int:
    """Wait for the round's adapter, without the hostile update if need be; returns 1 then."""
    deadline, excluded = time.monotonic() + 30, 0
    while True:
        view = fed.view()
        if view.round > round_ or view.state is RunState.FINISHED:
            break
        if view.waiting_for and "run exclude" in view.waiting_for and not excluded:
            fed.operator.exclude(fed.run.id, round_, "a")
            excluded = 1
        assert time.monotonic() < deadline, view.waiting_for
        time.sleep(0.02)
    data = fed.operator.global_adapter(fed.run.id, str(round_))
    decode_adapter(fed.run.model.layout, data)
    return excluded
