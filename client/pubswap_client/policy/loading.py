"""Load a base model from its folder, or refuse it with one sentence.

transformers only warns of weights that are missing, fills them with random numbers, and raises all
kinds of exceptions.
"""

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from pubswap_client.policy.memory import is_out_of_memory
from pubswap_client.policy.text_config import text_loading
from pubswap_protocol.base.files import weight_files, weight_shapes
from pubswap_protocol.base.text_model import text_model
from pubswap_protocol.errors import InvalidSettings, OutOfMemory, PubSwapError

log = logging.getLogger(__name__)


def load_model(folder: Path, dtype: Any, published: Any = None) -> Any:
    """The text model in a folder, or all of its model with the `published` class.

    Raises InvalidSettings, which names them, if weights are missing, have other shapes than the
    config's, or belong to no layer. What else transformers does not load, such as layers for a
    second token and buffers, is named in the log. Code in the folder is never run.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with refusing(f"transformers does not load {folder}"):
        own = {} if published else text_loading(folder)
        arguments = {"config": AutoConfig.from_pretrained(folder, trust_remote_code=False)} | own
        model, found = (published or AutoModelForCausalLM).from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else an error that does not name them
            attn_implementation=None,  # not the config's, which may need another package
            **arguments,
        )
        config = json.loads((folder / "config.json").read_bytes())
        shapes = weight_shapes(weight_files(folder))
        tensors = text_model(config).tensors(shapes)
    unexpected = set(found["unexpected_keys"])
    surplus = {name for name, ours in tensors.names.items() if {name, ours} & unexpected}
    weights = {name for name in surplus if _is_weight(name, len(shapes[name]))}
    _refuse(folder, "lacks", found["missing_keys"])
    mismatched = [name for name, *_ in found["mismatched_keys"]]
    _refuse(folder, "has other shapes than its config says of", mismatched)
    _refuse(folder, "has no layer for", weights)
    dropped = (surplus - weights).union(tensors.dropped)
    if dropped and not published:
        log.info("Not trained, because transformers does not load them: %s.", _listed(dropped))
    return model


def _is_weight(name: str, dimensions: int) -> bool:
    """Whether the name is a weight's; older files also hold attention masks named `bias`."""
    return name.endswith(".weight") or (name.endswith(".bias") and dimensions == 1)


def _listed(names: Collection[str]) -> str:
    first, more = sorted(names)[:3], len(names) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _refuse(folder: Path, fault: str, names: Collection[str]) -> None:
    if names:
        raise InvalidSettings(
            f"{folder} {fault} {_listed(names)}, so this is not the model that was published. Use "
            "a whole copy, and the config.json that belongs to it."
        )


@contextmanager
def refusing(fault: str) -> Iterator[None]:
    """Inside, whatever transformers, PEFT or torch raise becomes our error, with it as the cause.

    Its detail begins with `fault`.
    """
    try:
        yield
    except PubSwapError:
        raise
    except Exception as error:  # each model has code and checks of its own
        log.debug("%s.", fault, exc_info=True)
        if is_out_of_memory(error):
            raise OutOfMemory(f"{fault}: memory runs out. Use a machine with more.") from error
        said = " ".join(str(error).split())[:300]
        raise InvalidSettings(f"{fault}: {said or type(error).__name__}") from error
