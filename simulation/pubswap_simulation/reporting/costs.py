"""Bytes by client and round beside what full fine-tuning would send, and seconds."""

from collections.abc import Sequence
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from pubswap_protocol.messages import Role, Traffic, WholeRun
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

FLOAT_BYTES = 4
KINDS = ("adapters_up", "adapters_down", "responses_up", "responses_down")


class Bytes(BaseModel):
    """Of one client in one round, up = sent."""

    model_config = ConfigDict(frozen=True)

    adapters_up: float
    adapters_down: float
    responses_up: float
    responses_down: float

    @property
    def all(self) -> float:
        """Both ways together."""
        return self.adapters_up + self.adapters_down + self.responses_up + self.responses_down


class Cost(BaseModel):
    """What a row costs at a tau, mean over n seeds."""

    model_config = ConfigDict(frozen=True)

    row: str
    tau: int
    n: int
    rounds: int
    by_client_and_round: Bytes
    full_fine_tuning: int
    seconds: float


class PayloadSizes(BaseModel):
    """Numbers of a model: of an adapter, sum of r (m + d); of the layers it adapts, sum of m d."""

    model_config = ConfigDict(frozen=True)

    adapter: int
    adapted_layers: int
    model: int


def traffic(run: WholeRun) -> Bytes:
    """Bytes of one client in one round, mean over both.

    Where a run does not tell its members apart, its evaluator's downloads are in it too.
    """
    clients = [member.traffic for member in run.members if member.role is Role.CLIENT]
    counted: Sequence[Traffic] = clients or [summary.traffic for summary in run.rounds]
    turns = run.settings.clients * run.settings.rounds
    return Bytes(
        **{kind: sum(getattr(one, kind) for one in counted) / turns for kind in KINDS},
    )


def full_fine_tuning(run: WholeRun) -> int:
    """Bytes of one client in one round if the whole model went up and down in float32."""
    return 2 * FLOAT_BYTES * run.model.parameters


def sizes(run: WholeRun) -> PayloadSizes:
    """Numbers of the adapter, of the layers it adapts, and of the model."""
    return PayloadSizes(
        adapter=run.model.layout.parameters,
        adapted_layers=_adapted(run.model.layout),
        model=run.model.parameters,
    )


def costs(section: Section) -> list[Cost]:
    """Every federated row's and tau's, of FedProx with the best mu only."""
    found = []
    for method in section.methods:
        if method.kind != "federated" or method.detail:
            continue
        for tau, cell in sorted(section.cells[method].items()):
            results = [result for of_seed in cell.values() for result in of_seed]
            found.append(_cost(method.label, tau, len(cell), results))
    return found


def _cost(row: str, tau: int, n: int, results: Sequence[Result]) -> Cost:
    parts = [traffic(result.run) for result in results]
    return Cost(
        row=row,
        tau=tau,
        n=n,
        rounds=results[0].run.settings.rounds,
        by_client_and_round=Bytes(
            **{kind: fmean(getattr(part, kind) for part in parts) for kind in KINDS}
        ),
        full_fine_tuning=full_fine_tuning(results[0].run),
        seconds=fmean(result.seconds for result in results),
    )


def _adapted(layout: AdapterLayout) -> int:
    """Sum of m d over the layers: A is (r, d) and B is (m, r)."""
    total = 0
    for name, (_, inputs) in layout.tensors.items():
        if name.endswith(".lora_A.weight"):
            outputs, _ = layout.tensors[name.replace(".lora_A.", ".lora_B.")]
            total += outputs * inputs
    return total
