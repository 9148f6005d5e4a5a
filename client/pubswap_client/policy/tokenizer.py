"""The base model's tokenizer: templates for prompts, plain decoding for responses."""

from collections.abc import Mapping
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoTokenizer

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tokenizer import load_tokenizer

_REPLY = "PubSwap"


class PromptTokenizer:
    """transformers' tokenizer for prompts (templates), the bare tokenizer.json for responses."""

    def __init__(self, folder: Path) -> None:
        # None would ask at the terminal whether to run the folder's own code.
        self._full = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.plain = load_tokenizer((folder / "tokenizer.json").read_bytes())

    @property
    def has_template(self) -> bool:
        return self._full.chat_template is not None

    def encode(
        self, prompt: str, chat: bool, options: Mapping[str, bool | int | str] = {}
    ) -> list[int]:
        """A prompt's token ids. With `chat`, apply the template, if there is one, with `options`.

        Raises InvalidSettings if the template fails.
        """
        if chat and self.has_template:
            turns = [{"role": "user", "content": prompt}]
            try:
                tokens = self._full.apply_chat_template(
                    turns, add_generation_prompt=True, return_dict=False, **options
                )
            except TemplateError as error:
                raise InvalidSettings(
                    f"The model's chat template fails ({error}). Change chat_template_options, or "
                    "set chat_template = 'none'."
                ) from None
        else:
            tokens = self._full(prompt)["input_ids"]
        return [int(token) for token in tokens]

    def encode_for(self, run: RunSettings, prompt: str) -> list[int]:
        """A prompt's token ids as all members of a run encode it."""
        return self.encode(prompt, run.chat_template == "auto", run.chat_template_options)

    def limit(self, run: RunSettings) -> PromptLimit:
        return PromptLimit(
            run.grpo.max_prompt_tokens, lambda prompt: len(self.encode_for(run, prompt))
        )

    def turn_end(self) -> list[int]:
        """The token ids that the chat template puts after a reply."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}]
        text = str(self._full.apply_chat_template(turns, tokenize=False))
        rest = text.rpartition(_REPLY)[2]
        return [int(token) for token in self._full(rest, add_special_tokens=False)["input_ids"]]
