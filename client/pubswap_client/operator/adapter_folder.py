"""A round's adapter as a folder to keep: for PEFT and vLLM, or merged into its base model."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pubswap_protocol.messages import WholeRun

CARD = "README.md"


class Format(StrEnum):
    """How an adapter is written."""

    PEFT = "peft"
    MERGED = "merged"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="peft: a folder that peft and vLLM load. merged: the base model with the adapter in "
        "its weights.",
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="merged: the base model, a folder or a hub id; by default the run's."
    ),
]


def require_torch(format_: Format) -> None:
    """Raises ModuleNotFoundError, before anything is downloaded, if the format needs torch."""
    if format_ is Format.MERGED:
        import pubswap_client.rollout.merged_model  # noqa: F401


def write_adapter(
    out: Path,
    run: "WholeRun",
    number: int,
    adapter: bytes,
    format_: Format = Format.PEFT,
    base: str | None = None,
) -> None:
    """Write a round's adapter in a format, with a model card, into the folder `out`.

    `base` is where a merged one's base model is, if not where the run says. Raises InvalidSettings
    if it is not to be had, BaseModelMismatch if it is another one.
    """
    from pubswap_client.operator.adapter_card import card_text

    lora, model = run.settings.lora, run.model
    if format_ is Format.MERGED:
        from pubswap_client.base_model import model_folder
        from pubswap_client.rollout.merged_model import write_merged_model

        folder = model_folder(base or model.source, model.revision)
        write_merged_model(out, adapter, lora, model, folder)
    else:
        from pubswap_protocol.tensors.peft_folder import write_peft_folder

        write_peft_folder(out, adapter, lora, model, model.source)
    merged = format_ is Format.MERGED
    (out / CARD).write_text(card_text(run, number, adapter, merged), encoding="utf-8")
