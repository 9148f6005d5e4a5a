"""The base model's tokenizer: templates for prompts, plain decoding for responses."""

from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import cached_file

from pubswap_protocol.texts import load_tokenizer


class PromptTokenizer:
    """transformers' tokenizer for prompts (templates), the bare tokenizer.json for responses."""

    def __init__(self, source: Path | str, revision: str | None) -> None:
        self._full = AutoTokenizer.from_pretrained(source, revision=revision)
        self.plain = load_tokenizer(
            Path(cached_file(source, "tokenizer.json", revision=revision)).read_bytes()
        )

    def encode(self, prompt: str, chat: bool) -> list[int]:
        """A prompt's token ids; in the chat template if asked, and if there is one."""
        if chat and self._full.chat_template is not None:
            tokens = self._full.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
        else:
            tokens = self._full(prompt)["input_ids"]
        return [int(token) for token in tokens]
