"""Bytes by client and round beside those of full fine-tuning, and seconds."""

from collections.abc import Iterator
from statistics import fmean

from pydantic import BaseModel

from pubswap_protocol.messages import Role, Traffic, WholeRun
from pubswap_protocol.tensors.adapter import modules
from pubswap_simulation.reporting.section import Section

FLOAT_BYTES = 4


class Bytes(BaseModel, frozen=True):
    """Of one client in one round, up = sent."""

    adapters_up: float
    adapters_down: float
    responses_up: float
    responses_down: float

    @property
    def all(self) -> float:
        """Both ways together."""
        return self.adapters_up + self.adapters_down + self.responses_up + self.responses_down


class Cost(BaseModel, frozen=True):
    """The cost of a row at a tau, mean over n seeds."""

    row: str
    tau: int
    n: int
    rounds: int
    by_client_and_round: Bytes
    full_fine_tuning: int
    seconds: float


class PayloadSizes(BaseModel, frozen=True):
    """Numbers of a model: of an adapter, sum of r (m + d); of the layers it adapts, sum of m d."""

    adapter: int
    adapted_layers: int
    model: int


def traffic(run: WholeRun) -> Bytes:
    """Bytes of one client in one round, mean over both.

    Where a run does not tell its members apart, its evaluator's downloads are in it too.
    """
    clients: list[Traffic] = [m.traffic for m in run.members if m.role is Role.CLIENT]
    counted = clients or [summary.traffic for summary in run.rounds]
    turns = run.settings.clients * run.settings.rounds
    return Bytes(
        **{kind: sum(getattr(one, kind) for one in counted) / turns for kind in Bytes.model_fields}
    )


def sizes(run: WholeRun) -> PayloadSizes:
    """Numbers of the adapter, of the layers it adapts, and of the model."""
    layout = run.model.layout
    return PayloadSizes(
        adapter=layout.parameters,
        # A is (r, d) and B is (m, r).
        adapted_layers=sum(layout.tensors[b][0] * layout.tensors[a][1] for a, b in modules(layout)),
        model=run.model.parameters,
    )


def costs(section: Section) -> Iterator[Cost]:
    """Every federated row's and tau's."""
    for method, tau, results in section.federated:
        run = results[0].run
        sent = [traffic(result.run) for result in results]
        means = {kind: fmean(getattr(one, kind) for one in sent) for kind in Bytes.model_fields}
        yield Cost(
            row=method.label,
            tau=tau,
            n=len(section.cells[method][tau]),
            rounds=run.settings.rounds,
            by_client_and_round=Bytes(**means),
            # The whole model up and down in float32.
            full_fine_tuning=2 * FLOAT_BYTES * run.model.parameters,
            seconds=fmean(result.seconds for result in results),
        )
