"""The base model's files: where they are, and whether they are the run's."""

from pathlib import Path

from pubswap_client.doctor.finding import Finding, failure, of_error, ok, warning
from pubswap_client.models import model_folder
from pubswap_client.operator.tables import size_text
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import BaseModelMismatch, PubSwapError
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import LoraSettings

MODEL = "model files"


def find_folder(settings: ClientSettings, run: RunView | None) -> Path | None:
    """The folder that training would use; None if neither settings nor run name one.

    Raises InvalidSettings if the model is neither a folder nor to be had from the hub.
    """
    source = settings.model or (run.model.source if run else None)
    if source is None:
        return None
    return model_folder(source, settings.revision or (run.model.revision if run else None))


def check_model(
    settings: ClientSettings, run: RunView | None
) -> tuple[Finding, Path | None, ModelCard | None]:
    """The files are there and, if the run is known, have its digests."""
    lora = run.settings.lora if run else LoraSettings()
    try:
        folder = find_folder(settings, run)
        if folder is None:
            return (
                warning(
                    MODEL,
                    "no model is named, and the run is not known",
                    "Mend the connection, or name the model: --model FOLDER-OR-HUB-ID.",
                ),
                None,
                None,
            )
        card = model_card(folder, lora, str(folder), settings.revision)
    except PubSwapError as error:
        advice = "Give the folder or the hub id of the run's base model: --model."
        return of_error(MODEL, error, advice), None, None
    return compare(folder, card, run), folder, card


def compare(folder: Path, card: ModelCard, run: RunView | None) -> Finding:
    """By the digests, as the coordinator does when a member joins; it is not asked."""
    size = size_text(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
    found = f"{folder}: {card.architecture}, {card.parameters:,} parameters, {size}"
    if run is None:
        return warning(MODEL, f"{found}; not compared with the run's", "Mend the connection first.")
    try:
        run.model.check_same(card)
    except BaseModelMismatch as error:
        revision = f" --revision {run.model.revision}" if run.model.revision else ""
        return failure(
            MODEL,
            f"{found}. {error.detail}",
            f"Get the operator's files, such as: hf download {run.model.source}{revision}; and "
            "give their folder with --model.",
        )
    return ok(MODEL, f"{found}; config, tokenizer and weights are the run's")
