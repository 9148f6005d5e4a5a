"""Hostile tokenizers as a hub might serve them, made from the small model's own."""

import json
from collections.abc import Callable
from typing import Any

from support.coordinator.coordinator import TOKENIZER


def tokenizer_with(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The small model's tokenizer.json after a change."""
    file = json.loads(TOKENIZER)
    change(file)
    return json.dumps(file).encode()


def replacing(*pairs: tuple[str, str]) -> bytes:
    """A tokenizer whose decoder also replaces each pair's first string by its second, in order."""
    return _with_decoders([_replace({"String": old}, new) for old, new in pairs])


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _with_decoders(more: list[dict[str, Any]]) -> bytes:
    def change(file: dict[str, Any]) -> None:
        file["decoder"] = {"type": "Sequence", "decoders": [file["decoder"], *more]}

    return tokenizer_with(change)


def _with_a_long_token(file: dict[str, Any]) -> None:
    file["added_tokens"].append(
        {
            **file["added_tokens"][0],
            "id": max(file["model"]["vocab"].values()) + 1000,
            "content": "7" * (1 << 20),
            "special": False,
        }
    )


_NESTED = {
    "type": "Sequence",
    "decoders": [_replace({"String": "1"}, "22"), _replace({"String": "2"}, "3" * 1000)],
}
BOMBS = {
    "two replacements": replacing(("1", "a" * 1000), ("a", "b" * 1000)),
    "four small ones": replacing(("1", "aa"), ("a", "bb"), ("b", "cc"), ("c", "dd")),
    "regular expression": _with_decoders([_replace({"Regex": "."}, "x" * 1000)]),
    "nested": _with_decoders([_NESTED]),
    "long token": tokenizer_with(_with_a_long_token),
}
