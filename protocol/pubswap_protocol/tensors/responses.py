"""The wire format of responses to public prompts: token ids and log-probabilities in safetensors.

A file of P prompts with K responses each holds

    prompts    int32   (P,)    positions in the public set
    lengths    int32   (P, K)  tokens of each response, end-of-sequence included
    tokens     int32   (S,)    all responses one after another, S = lengths.sum()
    logprobs   float32 (S,)    of each token under the policy that sampled it, at its temperature
    donated    uint8   (P, K)  1 for a peer's response from the exchange (server to client only)

and, if receivers can check that responses were sampled,

    seeds      int64   (P, K)  of the noise that each was drawn with; -1 if unknown
    donors     int64   (P, K)  an opaque number of the donor; 0 for none (server to client only)

Tokens are never decoded and encoded again, and nothing in the file names a donor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pubswap_protocol.bounds import MAX_COUNT
from pubswap_protocol.errors import InvalidAdapter, InvalidResponses
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.safetensors_header import read_header

if TYPE_CHECKING:
    from pubswap_protocol.model import ModelCard
    from pubswap_protocol.settings import RunSettings

Tokens = NDArray[np.int32]
Logprobs = NDArray[np.float32]

_DTYPES = {"prompts": "I32", "lengths": "I32", "tokens": "I32", "logprobs": "F32", "donated": "U8"}
_ORIGINS = {"seeds": "I64", "donors": "I64"}
_LARGEST = {"seeds": 2**63 - 1, "donors": MAX_COUNT}  # receivers report donors by number

UNVERIFIED = -1  # the seed of a response that cannot be recomputed
NOBODY = 0  # the donor of one's own responses


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """One sampled response: `tokens` (T,) as `ResponseForm` says, `logprobs` (T,)."""

    tokens: Tokens
    logprobs: Logprobs
    donated: bool = False
    seed: int = UNVERIFIED
    donor: int = NOBODY

    def as_donated(self) -> "Response":
        """The same response, marked as a peer's."""
        return replace(self, donated=True)

    def anonymous(self) -> "Response":
        """The same response without seed and donor, as in earlier versions of the format."""
        return replace(self, seed=UNVERIFIED, donor=NOBODY)


Group = Sequence[Response]


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """The requirements on a public step's responses."""

    prompts: tuple[int, ...]
    responses_per_prompt: int
    form: ResponseForm

    @classmethod
    def of(cls, card: "ModelCard", settings: "RunSettings", prompts: Sequence[int]) -> Self:
        form = ResponseForm.of(card, settings)
        return cls(tuple(prompts), settings.grpo.responses_per_prompt, form)

    def max_bytes(self) -> int:
        """The most bytes of a valid file: 8 a token, the counts and seeds, and the header."""
        of_prompt = self.responses_per_prompt * (8 * self.form.longest + 21) + 8
        return len(self.prompts) * of_prompt + 4096


def encode_responses(prompts: Sequence[int], groups: Sequence[Group]) -> bytes:
    """The file for `groups` (P groups of K responses) that answer `prompts` (P,) in order."""
    flat = [response for group in groups for response in group]
    shape = (len(groups), len(groups[0]))
    data: bytes = save(
        {
            "prompts": np.asarray(prompts, dtype=np.int32),
            "donated": np.array([r.donated for r in flat], dtype=np.uint8).reshape(shape),
            **_flat_arrays(flat, shape),
        }
    )
    return data


class ResponseFile:
    """The checked responses of a file; each is created on access.

    So the responses of a thousand members are a few arrays instead of many small objects, which
    Python's garbage collector would traverse again and again while everything else waits.
    """

    def __init__(self, data: bytes | memoryview, rules: ResponseRules) -> None:
        """Raises InvalidResponses for anything that the rules do not allow.

        That is: other prompts, another K, tokens that are no response, a donated response with
        tokens of a turn, a log-probability that is positive or not finite.
        """
        arrays = read_arrays(data, _DTYPES, _ORIGINS)
        check_prompts(arrays["prompts"], rules)
        shape = (len(rules.prompts), rules.responses_per_prompt)
        lengths, donated = arrays["lengths"], arrays["donated"]
        if lengths.shape != shape or donated.shape != shape:
            raise InvalidResponses(f"lengths and donated must have the shape {shape}.")
        self._shape = shape
        self._flat = PackedResponses(lengths.flatten(), arrays, shape, rules)
        self._donated = donated.flatten()
        for number in np.flatnonzero(self._donated):
            if not rules.form.donatable(self._flat[int(number)].tokens):
                raise InvalidResponses("A donated response has a token that ends or begins a turn.")

    def response(self, prompt: int, index: int) -> Response:
        """The index-th (0..K-1) response to the prompt-th (0..P-1) prompt."""
        number = prompt * self._shape[1] + index
        response = self._flat[number]
        return response.as_donated() if self._donated[number] else response

    def groups(self) -> list[list[Response]]:
        """The groups (P lists of K responses), in the order of the rules' prompts."""
        prompts, size = self._shape
        return [[self.response(prompt, k) for k in range(size)] for prompt in range(prompts)]


def decode_responses(data: bytes | memoryview, rules: ResponseRules) -> list[list[Response]]:
    """The groups of a file; raises InvalidResponses, as `ResponseFile` does."""
    return ResponseFile(data, rules).groups()


def _flat_arrays(flat: Sequence[Response], shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Concatenated responses, with seeds and donors if there are any; files without them are valid
    in earlier versions too."""
    seeds = np.array([response.seed for response in flat], dtype=np.int64).reshape(shape)
    donors = np.array([response.donor for response in flat], dtype=np.int64).reshape(shape)
    arrays: dict[str, NDArray[Any]] = {
        "lengths": np.array([len(r.tokens) for r in flat], dtype=np.int32).reshape(shape),
        "tokens": np.concatenate([r.tokens for r in flat]).astype(np.int32),
        "logprobs": np.concatenate([r.logprobs for r in flat]).astype(np.float32),
    }
    if (seeds != UNVERIFIED).any():
        arrays["seeds"] = seeds
    if (donors != NOBODY).any():
        arrays["donors"] = donors
    return arrays


def check_prompts(prompts: NDArray[np.generic], rules: ResponseRules) -> None:
    """Raises InvalidResponses unless these are the rules' prompts."""
    if prompts.ndim != 1 or tuple(prompts.tolist()) != rules.prompts:
        raise InvalidResponses(
            f"The responses are for other prompts. This public step asks for "
            f"{list(rules.prompts)}, in this order."
        )


class PackedResponses:
    """Responses of `lengths` (n,) whose `tokens` and `logprobs` are concatenated."""

    def __init__(
        self,
        lengths: NDArray[np.generic],
        arrays: Mapping[str, NDArray[np.generic]],
        shape: tuple[int, ...],
        rules: ResponseRules,
    ) -> None:
        """`shape` is the shape of the seeds and donors; raises InvalidResponses."""
        if lengths.min() < 1:
            raise InvalidResponses(f"A response has 1 to {rules.form.longest} tokens.")
        tokens, logprobs = arrays["tokens"], arrays["logprobs"]
        total = int(lengths.sum(dtype=np.int64))
        if tokens.shape != (total,) or logprobs.shape != (total,):
            raise InvalidResponses(f"tokens and logprobs must have the shape ({total},).")
        rules.form.check(tokens, lengths)
        if not np.isfinite(logprobs).all() or logprobs.max() > 1e-4:
            raise InvalidResponses("Log-probabilities must be finite and at most 0.")
        self._tokens, self._logprobs = tokens, logprobs
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._lengths = lengths
        self._seeds = _origin("seeds", arrays, shape, UNVERIFIED)
        self._donors = _origin("donors", arrays, shape, NOBODY)

    def __getitem__(self, number: int) -> Response:
        """The response with this number, counted from 0."""
        end = int(self._ends[number])
        begin = end - int(self._lengths[number])
        return Response(
            self._tokens[begin:end],  # type: ignore[arg-type]
            self._logprobs[begin:end],  # type: ignore[arg-type]
            seed=int(self._seeds[number]),
            donor=int(self._donors[number]),
        )


def _origin(
    name: str, arrays: Mapping[str, NDArray[np.generic]], shape: tuple[int, ...], unknown: int
) -> NDArray[np.int64]:
    """The seeds or donors of the responses (n,); raises InvalidResponses."""
    array = arrays.get(name, np.full(shape, unknown))
    if array.shape != shape or array.min() < unknown or array.max() > _LARGEST[name]:
        raise InvalidResponses(
            f"{name} must be numbers from {unknown} to {_LARGEST[name]}, of shape {shape}."
        )
    return array.flatten().astype(np.int64)


def read_arrays(
    data: bytes | memoryview, dtypes: Mapping[str, str], optional: Mapping[str, str] = {}
) -> dict[str, NDArray[np.generic]]:
    """The tensors of a file by name; raises InvalidResponses unless it has exactly these.

    `optional` ones may be missing.
    """
    try:
        specs, start = read_header(data)
    except InvalidAdapter as error:
        raise InvalidResponses(error.detail) from None
    stored = {name: spec.dtype for name, spec in specs.items()}
    if stored != {**dtypes, **{name: optional[name] for name in stored.keys() & optional.keys()}}:
        raise InvalidResponses(f"The file must hold exactly these tensors: {dtypes}.")
    kinds = {"I64": np.int64, "I32": np.int32, "F32": np.float32, "U8": np.uint8}
    return {
        name: np.frombuffer(
            data[start + spec.begin : start + spec.end], dtype=kinds[spec.dtype]
        ).reshape(spec.shape)
        for name, spec in specs.items()
    }
