"""Whole runs: real uvicorn, real daemons, the shipped model."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from pubswap_client.consent.ledger import entries, ledger_folder, verify
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import WholeRun
from support.chaos.raw_http import requests_in
from support.coordinator.coordinator import TOKENIZER
from support.coordinator.processes import federated_adapter, sums

pytestmark = pytest.mark.usefixtures("unmeasured")


@dataclass(frozen=True)
class Lived:
    """A federation's folder, the run, its final adapter, and what the clients sent."""

    folder: Path
    view: WholeRun
    adapter: bytes
    sent: list[bytearray]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lived]:
    """A function that returns a method's federation, run only once."""

    def live(method: str) -> Lived:
        folder, sent = tmp_path_factory.mktemp(method) / "run", list[bytearray]()
        return Lived(folder, *federated_adapter(folder, {"method": method}, sent=sent), sent)

    return cache(live)


@pytest.mark.parametrize("method", ["pubswap", pytest.param("fedprox", marks=pytest.mark.full)])
def test_two_clients_train_two_rounds(lived: Callable[[str], Lived], method: str) -> None:
    """The run finishes, with two updates a round and exchanges only under PubSwap.

    The clients send nothing of the private prompts, and all they send is in their ledgers.
    """
    run = lived(method)
    view, adapter, sent = run.view, run.adapter, run.sent
    assert sum(map(len, sent)) > 4 * len(adapter)
    tokenizer = load_tokenizer(TOKENIZER)
    for problem in (*sums(3, 10), *sums(4, 10)):
        ids = np.array(tokenizer.encode(problem.prompt).ids, np.int32)
        for trace in (problem.id.encode(), problem.prompt.encode(), ids.tobytes()):
            assert not any(trace in stream for stream in sent), problem
    check_ledgers([run.folder / name for name in ("alpha", "beta")], sent)
    rounds = view.rounds[1:]
    assert [summary.updates for summary in rounds] == [2, 2]
    assert [len(summary.public_steps) for summary in rounds] == (
        [1, 1] if method == "pubswap" else [0, 0]
    )
    assert view.rounds[-1].adapter == digest_of(adapter)
    assert len({summary.adapter for summary in view.rounds}) == 3
    for summary in rounds:
        assert summary.traffic.adapters_up >= 2 * len(adapter)
        assert (summary.traffic.responses_up > 0) == (method == "pubswap")
        assert summary.drift is not None
        assert summary.drift.pairwise > 0


def check_ledgers(states: Sequence[Path], sent: Iterable[bytes]) -> None:
    """Check that each request through the proxy is in a ledger, its body byte for byte.

    Other entries are only reads, made after the proxy was gone.
    """
    recorded: Counter[tuple[str, str, str]] = Counter()
    for state in states:
        verdict = verify(ledger_folder(state))
        assert verdict.faults == ()
        recorded += Counter(
            (entry.method, entry.target, entry.digest) for entry in entries(ledger_folder(state))
        )
    seen = Counter(
        (request.method, request.target, f"blake3:{blake3(request.body).hexdigest()}")
        for stream in sent
        for request in requests_in(bytes(stream))
    )
    assert seen.total() > 30
    assert not seen - recorded
    assert {method for method, _, _ in recorded - seen} <= {"GET"}


@pytest.mark.full
def test_same_seed_gives_the_same_adapter_bit_for_bit(
    lived: Callable[[str], Lived], tmp_path: Path
) -> None:
    """Two runs with the same seed agree in every bit, whatever order the clients start in."""
    _, adapter = federated_adapter(tmp_path / "run", {"method": "pubswap"}, order=("beta", "alpha"))
    assert adapter == lived("pubswap").adapter
