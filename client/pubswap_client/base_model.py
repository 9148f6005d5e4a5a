"""A base model's files: a local folder as it is, a hub id through the hub's cache."""

from pathlib import Path
from typing import TYPE_CHECKING

from pubswap_protocol.errors import BaseModelMismatch, InvalidSettings
from pubswap_protocol.files import expanded
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard, model_card, weight_files
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.settings import RunSettings

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings

MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def local_folder(source: str, revision: str | None = None) -> Path | None:
    """The folder of a model if its files are here, as a folder or in the hub's cache.

    Raises InvalidSettings if it is neither a folder nor what a hub id looks like.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(source, revision=revision, local_files_only=True))
    except HFValidationError:
        raise InvalidSettings(f"{source!r} is neither a folder nor a hub id.") from None
    except LocalEntryNotFoundError:
        return None
    try:  # the cache may hold a tokenizer alone, or what came of a download that was stopped
        weight_files(cached)
    except InvalidSettings:
        return None
    return cached


def model_folder(source: str, revision: str | None = None) -> Path:
    """The folder of a model, downloaded first if `source` is a hub id.

    Raises InvalidSettings if it is neither a folder nor to be had from the hub.
    """
    folder = expanded(source)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,  # of the library that the hub's own is built on
    )

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=MODEL_FILES))
    except HFValidationError:
        raise InvalidSettings(f"{source!r} is neither a folder nor a hub id.") from None
    except (HTTPError, OSError) as error:
        raise InvalidSettings(
            f"{source!r} is not a folder, and the hub did not give it ({error}). Check the name, "
            "or download it and give the folder."
        ) from None


def own_model(
    settings: "ClientSettings", run: RunView, *, offline: bool = False
) -> tuple[Path, ModelCard]:
    """The folder of a run's base model on this machine, and its card.

    Raises InvalidSettings if it is not to be had, `offline` without asking a hub, and
    BaseModelMismatch if it is another model.
    """
    source = settings.model or run.model.source
    revision = settings.revision or run.model.revision
    folder = local_folder(source, revision) if offline else model_folder(source, revision)
    if folder is None:
        raise InvalidSettings(
            f"The base model {source} is not on this machine, and nothing is asked of a hub here: "
            "name its folder with --model."
        )
    card = model_card(folder, run.settings.lora, str(folder), settings.revision)
    run.model.check_same(card)
    if card.vocabulary != run.model.vocabulary:  # peers' token ids are below it
        raise BaseModelMismatch(
            f"The run says that its base model has a vocabulary of {run.model.vocabulary}, and the "
            f"same files have one of {card.vocabulary}; ask its operator."
        )
    return folder, card


def prompt_limit(folder: Path, run: RunSettings) -> PromptLimit:
    """How long a run's prompts may be, counted with the model in a folder as its members do.

    Raises InvalidSettings if the folder holds no tokenizer.
    """
    from pubswap_client.policy.tokenizer import PromptTokenizer

    try:
        return PromptTokenizer(folder).limit(run)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidSettings(f"{folder} holds no tokenizer that can be read: {reason}") from None
