"""The search for canaries finds each leak that it is for, and nothing where there is none."""

import httpx
import numpy as np
import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_protocol.base.tokenizer import load_tokenizer
from support.privacy.canaries import Search, draw_canaries
from support.privacy.leaky import LEAKS, requests

CANARIES = draw_canaries(len(LEAKS), seed=11)


@pytest.fixture(scope="module")
def search() -> Search:
    tokenizer = load_tokenizer((MODEL / "tokenizer.json").read_bytes())
    return Search(CANARIES, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def noise(size: int, seed: int) -> bytes:
    """Bytes that could be an adapter's."""
    return np.random.default_rng(seed).normal(size=size // 4).astype(np.float32).tobytes()


@pytest.mark.parametrize("name", LEAKS)
def test_each_leak_is_found_among_other_bytes(search: Search, name: str) -> None:
    """And only the canary that leaked."""
    request = httpx.Request("POST", "http://host/v1", **requests(CANARIES)[name])
    head = b"\r\n".join(b": ".join(pair) for pair in request.headers.raw)
    body = request.read()
    leaked = b"%s HTTP/1.1\r\n%s\r\n\r\n%s" % (request.url.raw_path, head, body)
    # Bare deflate has no mark, by which it could be found within other bytes.
    found = search(noise(99_996, 1) + leaked + noise(20_000, 2)) | search(body)
    assert {canary for canary, _ in found} == {CANARIES[list(LEAKS).index(name)]}


def test_nothing_is_found_where_nothing_is(search: Search) -> None:
    """In an adapter's bytes, and in other words and digests."""
    others = " ".join(draw_canaries(2000, seed=12)).encode()
    assert search(noise(8 << 20, 3) + others + others.hex().encode()) == set()
    assert search(b"") == search(b"short") == set()
