"""What the doctor's checks know, for a check on its own."""

import io
from typing import Any

from rich.console import Console

from pubswap_client.doctor.facts import Facts
from pubswap_client.settings import ClientSettings
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool


def facts_of(
    settings: ClientSettings | None = None,
    run: RunSettings | None = None,
    card: ModelCard | None = None,
    **found: Any,
) -> Facts:
    """The facts of a member in a run with these settings, on the model of this card."""
    view = RunView.model_construct(id="r", settings=run or RunSettings(), model=card)
    facts = {"pool": VerifierPool(), "run": view} | found
    progress = progress_bar(Console(file=io.StringIO()))
    return Facts(settings or ClientSettings(), progress, **facts)
