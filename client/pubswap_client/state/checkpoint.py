"""A checkpoint: everything that a daemon must know to go on after its last finished local step.

The random state is the step's number: every draw is a function of (seed, client, round, step)
and no generator is carried along. The problems of a batch follow from it as well.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from pubswap_client.state.sealed import BrokenSeal, seal, unseal
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import Snapshot
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import Digest, RunView

FORMAT = 1
_ADAPTER, _OPTIMIZER = "adapter", "optimizer"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose work a file belongs to: a client of a run with these settings and this model."""

    run: str
    client: str
    terms: Digest

    @classmethod
    def of(cls, run: RunView, client: str) -> Self:
        """The owner of a client's work in a run."""
        terms = run.settings.model_dump_json() + run.model.model_dump_json()
        return cls(run.id, client, digest_of(terms.encode()))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A round after some of its local steps: the adapter, AdamW's state, and what was measured."""

    round: int
    start: Digest  # of the global adapter that the round began from
    steps: tuple[StepMetrics, ...]  # of local steps 1, 2, ..., the last of them finished
    snapshot: Snapshot

    @property
    def step(self) -> int:
        """The number of the last finished local step."""
        return len(self.steps)


def encode_checkpoint(owner: Owner, checkpoint: Checkpoint) -> bytes:
    """The sealed file of a checkpoint: tensors `adapter/NAME` and `optimizer/KEY/NAME`."""
    facts = {
        "format": FORMAT,
        "owner": asdict(owner),
        "round": checkpoint.round,
        "start": checkpoint.start,
        "step": checkpoint.step,
        "steps": [asdict(metrics) for metrics in checkpoint.steps],
    }
    tensors = {f"{_ADAPTER}/{name}": array for name, array in checkpoint.snapshot.adapter.items()}
    for name, state in checkpoint.snapshot.optimizer.items():
        for key, array in state.items():
            tensors[f"{_OPTIMIZER}/{key}/{name}"] = array
    return seal(facts, tensors)


def decode_checkpoint(owner: Owner, data: bytes) -> Checkpoint:
    """The checkpoint in a file; raises BrokenSeal, saying why, if it is damaged or not ours."""
    facts, tensors = unseal(data)
    check_owner(owner, facts)
    snapshot = Snapshot(adapter={}, optimizer={})
    for path, array in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == _ADAPTER:
            snapshot.adapter[rest] = array
        else:
            key, _, name = rest.partition("/")
            snapshot.optimizer.setdefault(name, {})[key] = array
    try:
        steps = tuple(StepMetrics(**metrics) for metrics in facts["steps"])
        return Checkpoint(facts["round"], facts["start"], steps, snapshot)
    except (LookupError, TypeError) as error:
        raise BrokenSeal(f"another version of PubSwap wrote it: {error}") from None


def check_owner(owner: Owner, facts: dict[str, Any]) -> None:
    """Raises BrokenSeal unless the facts are of this format and this owner."""
    if facts.get("format") != FORMAT:
        raise BrokenSeal(f"its format is {facts.get('format')}, not {FORMAT}")
    theirs = facts.get("owner")
    if theirs != asdict(owner):
        raise BrokenSeal(f"it is the work of {theirs}, not of {asdict(owner)}")
