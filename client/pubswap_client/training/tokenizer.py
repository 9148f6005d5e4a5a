"""The base model's tokenizer: templates for prompts, plain decoding for responses."""

from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import cached_file

from pubswap_protocol.texts import load_tokenizer

_REPLY = "PubSwap"


class PromptTokenizer:
    """transformers' tokenizer for prompts (templates), the bare tokenizer.json for responses."""

    def __init__(self, source: Path | str, revision: str | None = None) -> None:
        """From a folder, or from the hub at a revision."""
        self._full = AutoTokenizer.from_pretrained(source, revision=revision)
        self.plain = load_tokenizer(
            Path(cached_file(source, "tokenizer.json", revision=revision)).read_bytes()
        )

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return self._full.chat_template is not None

    def encode(self, prompt: str, chat: bool) -> list[int]:
        """A prompt's token ids; with `chat`, in the template if the model has one."""
        if chat and self.has_template:
            tokens = self._full.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
        else:
            tokens = self._full(prompt)["input_ids"]
        return [int(token) for token in tokens]

    def turn_end(self) -> list[int]:
        """The token ids that the chat template puts behind a reply."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}]
        text = str(self._full.apply_chat_template(turns, tokenize=False))
        rest = text.rpartition(_REPLY)[2]
        return [int(token) for token in self._full(rest, add_special_tokens=False)["input_ids"]]
