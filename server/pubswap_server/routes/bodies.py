"""How OpenAPI tells of bodies that are not JSON."""

from typing import Any

from pubswap_protocol import paths

JSONL = (
    'One problem a line: {"id": "1", "prompt": "2 + 2 =", "answer": "4", "topic": "sums"}; '
    "`topic`, `verifier` and `metadata` are optional."
)
ADAPTER = (
    "A safetensors file with exactly the tensors of the run's `model.layout`, float32, without "
    "metadata. Its name is its digest: `blake3:` and the hexadecimal BLAKE3 of the bytes, or "
    "`sha256:` and their SHA-256."
)
RESPONSES = (
    "A safetensors file for P prompts with K responses each, in the order of the prompts: "
    "`prompts` int32 (P,), their `index`; `lengths` int32 (P, K), tokens with the "
    "end-of-sequence token; `tokens` int32 (S,), all responses one after another; `logprobs` "
    "float32 (S,), of each token when it was sampled, at the run's temperature; `donated` uint8 "
    "(P, K), 0 from a client, 1 in the exchange where a response is a peer's."
)

TENSORS_REPLY: dict[int | str, dict[str, Any]] = {
    200: {"description": ADAPTER, "content": {paths.TENSORS_TYPE: {}}}
}
RESPONSES_REPLY: dict[int | str, dict[str, Any]] = {
    200: {"description": RESPONSES, "content": {paths.TENSORS_TYPE: {}}},
    204: {"description": "The exchange is still open; ask again."},
}


def binary_body(media_type: str, description: str) -> dict[str, Any]:
    """A request body of bytes."""
    schema = {"type": "string", "format": "binary"}
    content = {media_type: {"schema": schema}}
    return {"requestBody": {"required": True, "description": description, "content": content}}
