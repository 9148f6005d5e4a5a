"""Decoding with tokenizers from a hub, which could be crafted to fill the memory."""

import json
import resource
from typing import Any

import numpy as np
import pytest
from tokenizers import decoders

from pubswap_protocol.base.tokenizer import MAX_PIECE_CHARACTERS, decode, load_tokenizer
from pubswap_protocol.verifiers import score
from pubswap_protocol.verifiers.registry import MAX_RESPONSE_CHARACTERS
from support.chaos.hostile_tokenizers import BOMBS, replacing, tokenizer_with
from support.coordinator.coordinator import TOKENIZER

HARMLESS = {
    "ByteLevel": decoders.ByteLevel(),
    "WordPiece": decoders.WordPiece(),
    "Metaspace": decoders.Metaspace(),
    "BPEDecoder": decoders.BPEDecoder(),
    "CTC": decoders.CTC(),
    "Llama's": decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_decoders_of_common_models_are_accepted(name: str) -> None:
    """All kinds in the library, and the sequence of Llama 2."""
    tokenizer = load_tokenizer(TOKENIZER)
    tokenizer.decoder = HARMLESS[name]
    load_tokenizer(tokenizer.to_str().encode())


@pytest.mark.parametrize("name", BOMBS)
def test_a_tokenizer_whose_decoder_multiplies_a_text_is_refused(name: str) -> None:
    """By chained replacements, by a regular expression, or in a nested sequence."""
    with pytest.raises(ValueError, match=r"times as long|characters"):
        load_tokenizer(BOMBS[name])


def test_replacements_are_counted_as_the_library_applies_them() -> None:
    """A text grows no more than the check computes, at most eightfold."""
    most = replacing(("1", "12345678"))
    text = load_tokenizer(most).encode("1111").ids
    grown = decode(load_tokenizer(most), np.array(text, dtype=np.int32))
    assert len(grown) <= 8 * len(decode(load_tokenizer(TOKENIZER), np.array(text, dtype=np.int32)))
    with pytest.raises(ValueError, match="9 times as long"):
        load_tokenizer(replacing(("1", "123456789")))


def test_a_text_is_cut_where_no_verifier_reads_on() -> None:
    """32 responses of the longest pieces need the memory of one; each is too long, and so
    scores 0.
    """
    piece = "7" * MAX_PIECE_CHARACTERS
    tokenizer = load_tokenizer(tokenizer_with(lambda file: _rename(file, piece)))
    number = tokenizer.token_to_id(piece)
    responses = [np.full(4096, number, dtype=np.int32)] * 32
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    texts = [decode(tokenizer, tokens) for tokens in responses]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10  # KiB; uncut, they take at least 128 MiB
    assert {len(text) for text in texts} == {MAX_RESPONSE_CHARACTERS + 1}
    problem: Any = type("P", (), {"answer": texts[0]})
    assert score("exact", texts[0], problem) == 0.0


def _rename(file: dict[str, Any], piece: str) -> None:
    vocabulary = file["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    file["model"]["merges"] = []
    file["model"]["vocab"] = {(piece if k == last else k): v for k, v in vocabulary.items()}
    assert json.dumps(file)
