"""Locate a base model's files: in a local folder, or by hub id in the hub's cache."""

from pathlib import Path
from typing import TYPE_CHECKING

from pubswap_protocol.base.files import weight_files
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import expanded
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.settings import RunSettings

if TYPE_CHECKING:
    from pubswap_client.policy.tokenizer import PromptTokenizer
    from pubswap_client.settings import ClientSettings

MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def local_folder(source: str, revision: str | None = None) -> Path | None:
    """A model's folder, local or in the hub's cache; None if its files are not on this machine.

    Raises InvalidSettings if `source` is neither a folder nor a valid hub id.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(source, revision=revision, local_files_only=True))
    except HFValidationError:
        raise _neither(source) from None
    except LocalEntryNotFoundError:
        return None
    try:  # the cache may hold only a tokenizer, or a partial download
        weight_files(cached)
    except InvalidSettings:
        return None
    return cached


def _neither(source: str) -> InvalidSettings:
    return InvalidSettings(
        f"{source!r} is neither a folder nor a hub id. Give the folder of your copy, with --model "
        "or as a run file's model.source."
    )


def model_folder(source: str, revision: str | None = None) -> Path:
    """A model's folder, downloaded first if `source` is a hub id.

    Raises InvalidSettings if it is neither a folder nor available from the hub.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,  # the HTTP library's, the base of the hub's own errors
    )

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=MODEL_FILES))
    except HFValidationError:
        raise _neither(source) from None
    except (HTTPError, OSError) as error:
        # The hub's own advice follows on further lines.
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise InvalidSettings(
            f"{source!r} is not a folder, and downloading it from the hub failed ({reason}). Check "
            "the name, or download it yourself and give its folder, with --model or as a run "
            "file's model.source."
        ) from None


def own_model(
    settings: "ClientSettings", run: RunView, *, offline: bool = False
) -> tuple[Path, ModelCard]:
    """The folder of a run's base model on this machine, and its card.

    With `offline`, the hub is not contacted. Raises InvalidSettings if the model is not available,
    and BaseModelMismatch if it is a different one.
    """
    source = settings.model or run.model.source
    revision = settings.revision or run.model.revision
    folder = local_folder(source, revision) if offline else model_folder(source, revision)
    if folder is None:
        raise InvalidSettings(
            f"The base model {source} is not on this machine, and this command contacts no hub. "
            "Give its folder with --model."
        )
    card = model_card(folder, run.settings.lora, str(folder), settings.revision)
    run.model.check_declared(card)
    return folder, card


def tokenizer_of(folder: Path) -> "PromptTokenizer":
    """The tokenizer in a model's folder. Raises InvalidSettings if there is none."""
    from pubswap_client.policy.tokenizer import readable_tokenizer  # transformers, seconds

    return readable_tokenizer(folder)


def prompt_limit(folder: Path, run: RunSettings) -> PromptLimit:
    """The limit on a run's prompts, counted with the tokenizer in `folder` as its members do.

    Raises InvalidSettings if the folder holds no tokenizer.
    """
    return tokenizer_of(folder).limit(run)
