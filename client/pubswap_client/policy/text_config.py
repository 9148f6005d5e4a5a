"""The text model of a folder, for transformers' `from_pretrained`."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from pubswap_protocol.base.files import json_object
from pubswap_protocol.base.text_model import WITHOUT_PLACE, text_model


def text_loading(folder: Path) -> dict[str, Any]:
    """Arguments with which `AutoModelForCausalLM.from_pretrained` loads the text model alone.

    Its modules then have the names of the run's layout. Raises InvalidSettings if there is no such
    model, and ValueError if transformers cannot read the config.
    """
    path = folder / "config.json"
    model = text_model(json_object(path, path.read_bytes()))
    if not model.place:
        return {}
    whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    config = whole.get_text_config()
    if config.model_type != model.kind:
        values = config.to_dict()
        del values["model_type"]
        # Text alone has one position for each token, so the sections of a rotation are all equal.
        rope = {k: v for k, v in values["rope_parameters"].items() if not k.startswith("mrope")}
        if rope.get("rope_type") == "mrope":
            rope["rope_type"] = "default"
        config = AutoConfig.for_model(model.kind, **values | {"rope_parameters": rope})
    config.tie_word_embeddings = whole.tie_word_embeddings
    return {"config": config, "key_mapping": dict(WITHOUT_PLACE)}
