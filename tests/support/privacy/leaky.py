"""A client that leaks: after each heartbeat it sends a canary in each of many ways.

It is installed in a forked daemon (`support/forked.py`) to show that the search finds leaks.
"""

import base64
import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.messages import Progress
from support.privacy.canaries import varint

Options = dict[str, Any]  # of httpx


def _deflated(text: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(text) + packer.flush()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# From a canary and its token ids to the options of the request that leaks it.
LEAKS: Mapping[str, Callable[[str, Sequence[int]], Options]] = {
    "a counter": lambda text, ids: {"json": {"round": 1, "step": 1, "examples": f"n={text}"}},
    "a header": lambda text, ids: {"headers": {"X-Trace": text}},
    "a user agent": lambda text, ids: {"headers": {"User-Agent": f"x/1 {_encoded(text)}"}},
    "base64, one byte behind": lambda text, ids: {"json": {"x": _encoded(f"={text}")}},
    "base64, two bytes behind": lambda text, ids: {"json": {"x": _encoded(f"n={text}")}},
    "lines of base64": lambda text, ids: {"content": base64.encodebytes(text.encode() * 9)},
    "a query in capitals": lambda text, ids: {"params": {"q": text.upper()}},
    "a part of it": lambda text, ids: {"params": {"q": text[3:18]}},
    "hexadecimal": lambda text, ids: {"json": {"x": text.encode().hex()}},
    "UTF-16": lambda text, ids: {"content": f"x{text}".encode("utf-16")},
    "gzip": lambda text, ids: {"content": gzip.compress(text.encode())},
    "zlib": lambda text, ids: {"content": b"x" + zlib.compress(text.encode())},
    "deflate": lambda text, ids: {"content": _deflated(text.encode())},
    "bzip2": lambda text, ids: {"content": bz2.compress(text.encode())},
    "xz": lambda text, ids: {"content": lzma.compress(text.encode())},
    "zstd": lambda text, ids: {
        "content": pyarrow.compress(text.encode(), "zstd", asbytes=True) + b"more"
    },
    "gzip in base64": lambda text, ids: {
        "json": {"log": base64.urlsafe_b64encode(gzip.compress(f"got {text}".encode())).decode()}
    },
    "token ids in a message": lambda text, ids: {"json": {"tokens": [9, *ids, 9]}},
    "a part of its tokens": lambda text, ids: {"json": {"tokens": list(ids[5:17])}},
    "token ids of 16 bits": lambda text, ids: {"content": np.array(ids, ">i2").tobytes()},
    "token ids of 32 bits": lambda text, ids: {"content": np.array(ids, "<i4").tobytes()},
    "token ids of 64 bits": lambda text, ids: {"content": np.array(ids, "<i8").tobytes()},
    "token ids as varints": lambda text, ids: {"content": b"".join(map(varint, ids))},
    "gzip of token ids": lambda text, ids: {
        "content": gzip.compress(np.array(ids, np.int64).tobytes())
    },
}


def requests(canaries: Sequence[str]) -> dict[str, Options]:
    """The leaks by name, in order, each with a canary of its own."""
    tokenizer = load_tokenizer((MODEL / "tokenizer.json").read_bytes())
    return {
        name: leak(canary, tokenizer.encode(canary, add_special_tokens=False).ids)
        for (name, leak), canary in zip(LEAKS.items(), canaries, strict=False)
    }


def install(canaries: str) -> None:
    """Make this process leak the canaries of a file, one a line, from now on."""
    leaks = requests(Path(canaries).read_text().split())
    honest = CoordinatorClient.heartbeat

    def heartbeat(self: CoordinatorClient, run: str, body: Progress) -> None:
        honest(self, run, body)
        for options in leaks.values():
            self._http.request("POST", paths.HEARTBEAT.format(run=run), **options)

    CoordinatorClient.heartbeat = heartbeat  # type: ignore[method-assign]
