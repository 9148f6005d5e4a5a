"""A round's global adapter as a folder of an organisation's own."""

from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.operator.adapter_card import adapter_text, loading
from pubswap_client.operator.adapter_folder import Format, require_torch, write_adapter
from pubswap_protocol.errors import WrongState
from pubswap_protocol.files import require_vacant, whole_folder
from pubswap_protocol.messages import RunState, WholeRun


def take_adapter(
    api: CoordinatorClient,
    run: WholeRun,
    out: Path,
    round_: int | None = None,
    format_: Format = Format.PEFT,
    base: str | None = None,
) -> list[str]:
    """Write a round's adapter, by default a finished run's last; returns what to say of it.

    The folder is there whole or not at all. `base` is where a merged one's base model is, if not
    where the run says. Raises InvalidSettings if something is there already, WrongState if the run
    has no last round yet.
    """
    require_vacant(out)
    require_torch(format_)
    number, adapter = adapter_of(api, run, round_)
    with whole_folder(out) as making:
        write_adapter(making, run, number, adapter, format_, base)
    lines = loading(run, adapter, str(out), format_ is Format.MERGED)
    wrote = f"Wrote {adapter_text(run, number)} of {run.name} to {out}. Load it with"
    return [wrote, *(f"  {line}" for line in lines)]


def adapter_of(api: CoordinatorClient, run: WholeRun, round_: int | None) -> tuple[int, bytes]:
    """The number and the adapter of a round, by default a finished run's last; or WrongState."""
    if round_ is None and run.state is not RunState.FINISHED:
        made = [each.round for each in run.rounds if each.adapter is not None]
        raise WrongState(
            f"Run {run.name} is {run.state}, so it has no final adapter. For a round's so far give "
            f"--round, from 0 (untrained) to {max(made, default=0)}."
        )
    return api.adapter_of_round(run.id, "final" if round_ is None else str(round_))
