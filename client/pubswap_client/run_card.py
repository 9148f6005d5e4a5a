"""Run cards: a run's name, settings and model in a file, for commands that work offline."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import CreateRun, RunState, RunView

CARD = "run.json"
_MAX_BYTES = 32 << 20


def card_bytes(run: CreateRun | RunView) -> bytes:
    card = CreateRun(name=run.name, settings=run.settings, model=run.model)
    return card.model_dump_json(indent=1).encode() + b"\n"


def read_card(path: Path) -> RunView:
    """Read a card as a run that has not begun. Raises InvalidSettings if there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InvalidSettings(f"{path} has more than {_MAX_BYTES >> 20} MiB; no run card has.")
        card = CreateRun.model_validate_json(data)
    except FileNotFoundError:
        raise InvalidSettings(
            f"There is no {path}. `pubswap client start` writes one to the state folder."
        ) from None
    except ValidationError as error:
        raise InvalidSettings(
            f"{path} is not a run card of this version of PubSwap ({first_fault(error)}). Give the "
            "run.json of a state folder."
        ) from None
    begun: dict[str, Any] = {
        "state": RunState.CREATED,
        "paused": False,
        "round": 0,
        "created_at": datetime.now(UTC),
    }
    return RunView(id="unknown", name=card.name, settings=card.settings, model=card.model, **begun)
