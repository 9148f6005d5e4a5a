"""An adapter merged into its base model: a full checkpoint, for software without adapters."""

import json
import shutil
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from peft import PeftModel
from safetensors import SafetensorError

from pubswap_client.policy.loading import load_model, refusing
from pubswap_client.policy.policy import adapted_modules
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.peft_folder import write_peft_folder

# Copied unchanged, so that the tokenizer keeps its digest. vLLM needs the processor of a model with
# a vision tower. Nothing else is copied, because it may not be ours to publish.
_COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt"),
    *("chat_template.jinja", "chat_template.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)
_GENERATION = "generation_config.json"


def write_merged_model(
    folder: Path, adapter: bytes, lora: LoraSettings, card: ModelCard, base: Path
) -> None:
    """Write W + (alpha / r) B A for each adapted W of the model in `base`, in the base's precision.

    PEFT computes the sum in float32 and rounds it once. Generation ends at the run's
    end-of-sequence tokens.

    Raises BaseModelMismatch unless `base` has the card's files; NotSaved if it cannot be written.
    """
    own = model_card(base, lora, card.source, card.revision)
    card.check_declared(own)
    with refusing(f"transformers does not load {base}"):  # the class may be gone
        published = getattr(transformers, own.architecture) if own.text_model else None
    model = load_model(base, "auto", published)
    adapted_modules(model, card, published=True)  # PEFT would skip modules that it does not find
    with TemporaryDirectory() as peft_folder, torch.no_grad(), warnings.catch_warnings():
        # PEFT uses a transformers property by its old name, and a user cannot change that.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        write_peft_folder(Path(peft_folder), adapter, lora, card, str(base))
        with refusing(f"PEFT does not merge the adapter into {base}"):
            merged = PeftModel.from_pretrained(model, peft_folder).merge_and_unload()
    with refusing("transformers does not save the merged model"):
        try:
            merged.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise NotSaved(f"The merged model could not be saved: {error}.") from None
    for weights in folder.glob("*.safetensors"):  # safetensors makes them readable by us alone
        weights.chmod((folder / _GENERATION).stat().st_mode)
    for name in _COPIED:
        if (base / name).exists():
            shutil.copyfile(base / name, folder / name)
    generation = json.loads((folder / _GENERATION).read_bytes())
    generation["eos_token_id"] = list(card.eos_token_ids)
    (folder / _GENERATION).write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
