"""OpenAPI descriptions of the whole API, of headers, and of bodies that are not JSON."""

from typing import Any

from pubswap_protocol import paths
from pubswap_protocol.tensors.adapter import LARGEST

Json = dict[str, Any]
Replies = dict[int | str, Json]

ABOUT = f"""Federated RLVR: runs, rounds, exchanges.

Errors are problem+json (RFC 9457) with a stable `code`. Each status lists its codes. Later versions
may add codes; treat an unknown code by its status. `x-retryable` lists the codes that are worth a
retry, after `Retry-After` seconds if the answer has it. Do not retry the others.

A digest is `blake3:` and the hexadecimal BLAKE3 of the bytes. Later versions may add fields to
answers; requests with unknown fields are refused. Every answer to a valid HTTP request has a
`{paths.REQUEST_ID_HEADER}`. A request may have `{paths.PROTOCOL_HEADER}: {paths.PROTOCOL_VERSION}`;
a coordinator with another protocol version then refuses it with 426.
"""
TAGS = [
    {"name": "health", "description": "Liveness, readiness, metrics, and the handshake."},
    {"name": "runs", "description": "For the operator: runs, their files, their state."},
    {"name": "members", "description": "Invites, tokens, and who takes part."},
    {"name": "viewers", "description": "People with read-only access to the dashboard."},
    {"name": "rounds", "description": "What members do in a round."},
    {"name": "blobs", "description": "Adapters: resumable uploads, and downloads."},
    {"name": "public steps", "description": "Prompts for all clients, and the exchange."},
]

JSONL = (
    'One problem a line: {"id": "1", "prompt": "2 + 2 =", "answer": "4", "topic": "sums"}; '
    "`topic`, `verifier` and `metadata` are optional. `prompt` may be messages: "
    '[{"role": "system", "content": "…"}, {"role": "user", "content": "2 + 2 ="}].'
)
ADAPTER = (
    "A safetensors file with exactly the tensors of the run's `model.layout`, float32, without "
    "metadata."
)
UPDATE = f"""A client's update is a safetensors file without metadata, in the run's wire.precision.

Its tensors are those of `model.layout`; with aggregation.rule = ffa only the B (`.lora_B.weight`),
because A is frozen. With aggregation.rule.min_rank a client may send only the first r directions
of each module: A (r, in) and B (out, r), with the same r for all modules, from that rank to
lora.rank.
Numbers are finite, and at most {LARGEST:.0f} in magnitude.

- float32: the trained tensors themselves, F32.
- bfloat16: `NAME` BF16, the trained tensor minus the round's adapter, rounded to nearest, ties to
  even.

The file is canonical to the byte. The tensors are contiguous and ordered by name. The header's
entries have the same order, each as in
`{{"NAME":{{"dtype":"BF16","shape":[2,64],"data_offsets":[0,256]}}}}`, without spaces or line
breaks; the header is padded with spaces to a multiple of 8 bytes.
"""
RESPONSES = (
    "A safetensors file for P prompts with K responses each, in the order of the prompts: "
    "`prompts` int32 (P,), their `index`; `lengths` int32 (P, K), tokens including the "
    "end-of-sequence token; `tokens` int32 (S,), all responses concatenated; `logprobs` "
    "float32 (S,), each token's log-probability when sampled, at the run's temperature; `donated` "
    "uint8 (P, K), 0 in a client's file; in the exchange's, 1 where a response is a peer's."
)


def header(description: str) -> Json:
    return {"description": description, "schema": {"type": "string"}}


RETRY_AFTER = {"Retry-After": header("Minimum seconds to wait, if known.")}
REFUSED = " Worth a retry."
_OFFSET = "The bytes of the upload stored so far, such as `0-4194303`, inclusive and without unit."
REFUSAL_HEADERS = {
    401: {"WWW-Authenticate": header("`Bearer`.")},
    416: {
        "Range": header(f"For a chunk: {_OFFSET} Absent if there are none. Continue after them."),
        "Content-Range": header("For a download: its size, such as `bytes */4194304`."),
    },
}

_TAG = {"ETag": header("The digest in quotes.")}
_WHOLE = _TAG | {"Accept-Ranges": header("`bytes`.")}
_PART = {"Content-Range": header("Such as `bytes 10-19/4194304`.")}
_ROUND = {paths.ROUND_HEADER: header("The adapter's round.")}
_VERIFIERS = {
    paths.VERIFIERS_HEADER: header("Versions of the verifiers that problems name, if any do.")
}
_CONDITIONS = {
    "Range": "One byte range, such as `bytes=1048576-`; a request for several gets all bytes.",
    "If-Range": "An ETag: apply Range only if it still matches.",
    "If-None-Match": "An ETag: 304 if it still matches.",
}
# Far above what a client sends; the proxy limits the whole head.
_CONDITION: Json = {"type": "string", "maxLength": 16 << 10}
CONDITIONAL: Json = {
    "parameters": [
        {"in": "header", "name": name, "description": text, "schema": _CONDITION}
        for name, text in _CONDITIONS.items()
    ]
}


def _binary(media_type: str) -> Json:
    return {media_type: {"schema": {"type": "string", "format": "binary"}}}


def _download(media_type: str, description: str, headers: Json | None = None) -> Replies:
    """The answers of a GET that supports ranges and conditions."""
    whole, part = _WHOLE | (headers or {}), _WHOLE | _PART | (headers or {})
    content = _binary(media_type)
    return {
        200: {"description": description, "content": content, "headers": whole},
        206: {"description": "The bytes of `Range`.", "content": content, "headers": part},
        304: {"description": "Unchanged: you have the bytes.", "headers": _TAG},
        416: {},
        507: {},
    }


_BLOB = f"{ADAPTER}\n\nYour own update:\n\n{UPDATE}"
BLOB_REPLIES: Replies = _download(paths.TENSORS_TYPE, _BLOB) | {
    307: {
        "description": "With `direct`: the bytes, or a range of them, are at another URL for "
        "some minutes. Send no token there.",
        "headers": {"Location": header("A URL in the bucket.")},
    }
}
ADAPTER_REPLIES = _download(paths.TENSORS_TYPE, ADAPTER, _ROUND)
SET_REPLIES = _download(paths.JSONL_TYPE, JSONL, _VERIFIERS)
CHUNK_REPLIES: Replies = {
    202: {"description": "The bytes are stored.", "headers": {"Range": header(_OFFSET)}},
    416: {},
}
EXCHANGED_REPLIES: Replies = {
    200: {
        "description": RESPONSES,
        "content": _binary(paths.TENSORS_TYPE),
    },
    204: {
        "description": "The exchange is still open; ask again.",
        "headers": {
            paths.WAITS_HEADER: header(
                "Members that have not answered, and the deadline, in words."
            )
        },
    },
}


def binary_body(media_type: str, description: str) -> Json:
    body = {"required": True, "description": description, "content": _binary(media_type)}
    return {"requestBody": body}
