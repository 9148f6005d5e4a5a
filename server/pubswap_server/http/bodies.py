"""OpenAPI's descriptions of bodies that are not JSON, of headers, and of the whole interface."""

from typing import Any

from pubswap_protocol import paths
from pubswap_protocol.tensors.adapter import LARGEST

Json = dict[str, Any]
Replies = dict[int | str, Json]

ABOUT = f"""Federated RLVR: runs, rounds, exchanges.

Errors are problem+json (RFC 9457) with a stable `code`. Each status lists its codes. Later versions
may add codes; treat an unknown code by its status. `x-retryable` lists the codes that are worth a
retry, after `Retry-After` seconds if the answer has it. Do not retry the others.

Digests name bytes: `blake3:` and the hexadecimal BLAKE3. Later versions may add fields to answers;
requests with unknown fields are refused. Every answer to a valid HTTP request has a
`{paths.REQUEST_ID_HEADER}`. A request may have `{paths.PROTOCOL_HEADER}: {paths.PROTOCOL_VERSION}`;
a coordinator of another protocol then refuses it with 426.
"""
TAGS = [
    {"name": "health", "description": "Liveness, readiness, metrics, and the handshake."},
    {"name": "runs", "description": "For the operator: runs, their files, their state."},
    {"name": "members", "description": "Invites, tokens, and who takes part."},
    {"name": "viewers", "description": "Who may look at the dashboard, and change nothing."},
    {"name": "rounds", "description": "What members do in a round."},
    {"name": "blobs", "description": "Adapters: resumable uploads, and downloads."},
    {"name": "public steps", "description": "Prompts that all clients answer, and the exchange."},
]

JSONL = (
    'One problem a line: {"id": "1", "prompt": "2 + 2 =", "answer": "4", "topic": "sums"}; '
    "`topic`, `verifier` and `metadata` are optional."
)
ADAPTER = (
    "A safetensors file with exactly the tensors of the run's `model.layout`, float32, without "
    "metadata."
)
RESIDUAL = (
    "One of a task's `residuals` (aggregation.rule = fedex) has the same names, and a rank of its "
    "own: A (r', in) and B (out, r'). With the run's lora.alpha / lora.rank, the product B A of "
    "each module is added to the base model's weight."
)
UPDATE = f"""A client's update is a safetensors file without metadata, in the run's wire.precision.

Its tensors are those of `model.layout`, under aggregation.rule = ffa the B alone (`.lora_B.weight`;
A stays as it is). With lora.min_rank a client may send the first r directions of each module
alone: A (r, in) and B (out, r), with one r from lora.min_rank to lora.rank for all modules. Numbers
are finite, and at most {LARGEST:.0f} in magnitude.

- float32: the trained tensors themselves, F32.
- bfloat16: `NAME` BF16, the difference d rounded to nearest, ties to even.
- int8: `NAME` I8, q = round(d / s) in -127..127, ties to even, and `NAME.scale` F32, s = max |d| /
  127: one for each row of a matrix with no more rows than columns, of shape (rows, 1), and for each
  column of another, (1, columns). Where s is 0, so is q.

d is the trained tensor less the round's adapter, plus what rounding left out of this client's last
update, d - Q(d), where Q(d) is what was sent: the BF16 numbers, or s q.

The file is canonical, to the byte: the tensors of the widest dtype first and then
by name, one after another; the header's entries in the same order, each as in
`{{"NAME":{{"dtype":"I8","shape":[2,64],"data_offsets":[0,128]}}}}`, without spaces or line breaks,
and padded with spaces to a multiple of 8 bytes.
"""
RESPONSES = (
    "A safetensors file for P prompts with K responses each, in the order of the prompts: "
    "`prompts` int32 (P,), their `index`; `lengths` int32 (P, K), tokens with the "
    "end-of-sequence token; `tokens` int32 (S,), all responses one after another; `logprobs` "
    "float32 (S,), of each token when it was sampled, at the run's temperature; `donated` uint8 "
    "(P, K), 0 from a client, 1 in the exchange where a response is a peer's."
)
CANDIDATES = (
    "With swap.donors = likely, the client chooses itself, and the file holds C candidates beside "
    "its own responses: `prompts` int32 (P,); `places` uint8 (P, K), 1 where a candidate is to "
    "replace an own response; `candidates` int32 (P,), how many there are for a prompt, no fewer "
    "than places; `lengths` int32 (P K + C,), of all own responses and then of all candidates; "
    "`tokens` int32 (S,) and `logprobs` float32 (S,) in the same order. A prompt's places are "
    "filled in their order with its candidates, by their mean log-probability a token under the "
    "client's own policy at the run's temperature, the largest first, and of equal ones the first."
)


def header(description: str) -> Json:
    return {"description": description, "schema": {"type": "string"}}


RETRY_AFTER = {"Retry-After": header("Seconds to wait at least, if known.")}
REFUSED = " Worth a retry."
_OFFSET = (
    "The bytes of the upload that are here, such as `0-4194303`, both inclusive; without unit."
)
REFUSAL_HEADERS = {
    401: {"WWW-Authenticate": header("`Bearer`.")},
    416: {
        "Range": header(f"Of a chunk: {_OFFSET} `0-0` if there is none. Go on after it."),
        "Content-Range": header("Of a download: its size, such as `bytes */4194304`."),
    },
}

_TAG = {"ETag": header("The digest in quotes.")}
_WHOLE = _TAG | {"Accept-Ranges": header("`bytes`.")}
_PART = {"Content-Range": header("Such as `bytes 10-19/4194304`.")}
_ROUND = {paths.ROUND_HEADER: header("The round whose adapter it is.")}
_CONDITIONS = {
    "Range": "One range of bytes, such as `bytes=1048576-`; several are answered with all bytes.",
    "If-Range": "An ETag: the range is for these bytes alone.",
    "If-None-Match": "An ETag: 304 if these are still the bytes.",
}
# A head has 16 KiB by default, and no condition more.
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
    """The answers of a GET that takes ranges and conditions."""
    whole, part = _WHOLE | (headers or {}), _WHOLE | _PART | (headers or {})
    content = _binary(media_type)
    return {
        200: {"description": description, "content": content, "headers": whole},
        206: {"description": "The bytes of `Range`.", "content": content, "headers": part},
        304: {"description": "The bytes that you have.", "headers": _TAG},
        416: {},
        507: {},
    }


_BLOB = f"{ADAPTER}\n\n{RESIDUAL}\n\nOne's own:\n\n{UPDATE}"
BLOB_REPLIES: Replies = _download(paths.TENSORS_TYPE, _BLOB) | {
    307: {
        "description": "Of `direct`: the bytes, or a range of them, are at another address for "
        "some minutes. Send no token there.",
        "headers": {"Location": header("In the bucket.")},
    }
}
ADAPTER_REPLIES = _download(paths.TENSORS_TYPE, ADAPTER, _ROUND)
SET_REPLIES = _download(paths.JSONL_TYPE, JSONL)
CHUNK_REPLIES: Replies = {
    202: {"description": "The bytes are here.", "headers": {"Range": header(_OFFSET)}},
    416: {},
}
EXCHANGED_REPLIES: Replies = {
    200: {
        "description": f"{RESPONSES}\n\n{CANDIDATES}",
        "content": _binary(paths.TENSORS_TYPE),
    },
    204: {
        "description": "The exchange is still open; ask again.",
        "headers": {
            paths.WAITS_HEADER: header("What for, in words: who has not answered, and until when.")
        },
    },
}


def binary_body(media_type: str, description: str) -> Json:
    body = {"required": True, "description": description, "content": _binary(media_type)}
    return {"requestBody": body}
