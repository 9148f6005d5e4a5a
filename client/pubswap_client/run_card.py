"""A run card: a run's name, settings and model in a file, for what asks no coordinator."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import CreateRun, RunState, RunView

CARD = "run.json"
_LARGEST = 4 << 20


def card_bytes(run: CreateRun | RunView) -> bytes:
    card = CreateRun(name=run.name, settings=run.settings, model=run.model)
    return card.model_dump_json(indent=1).encode() + b"\n"


def read_card(path: Path) -> RunView:
    """The run of a card, as if it were to begin. Raises InvalidSettings for what is no card."""
    try:
        with path.open("rb") as file:
            card = CreateRun.model_validate_json(file.read(_LARGEST))
    except ValidationError as error:
        raise InvalidSettings(
            f"{path} is no run card of this version of PubSwap, such as run.json of a bundle or of "
            f"a state folder: {first_fault(error)}."
        ) from None
    begun: dict[str, Any] = {
        "state": RunState.CREATED,
        "paused": False,
        "round": 0,
        "created_at": datetime.now(UTC),
    }
    return RunView(id="unknown", name=card.name, settings=card.settings, model=card.model, **begun)
