"""Self-check of a loaded model: choose a path for the update that computes what the model does.

It takes the fastest path whose log-probabilities and LoRA gradients differ from the model's own,
one row at a time, by no more than rounding explains, and in which no row depends on tokens that it
must not see. The effect of rounding is measured by a second pass of the model, with every layer's
output perturbed by a unit in the last place. Windows are narrowed to a few tokens and some rows
are put at the run's last positions, so that short rows are enough.

A difference below the floors changes no update. In float32 they are 1e-4 nats and 0.1 % of the
gradient. 1e-4 nats move a ratio by 0.01 %, a 2000th of the distance to a clip of 0.2. 0.1 % is less
than bfloat16 rounds each number by (0.4 %). On real weights, two orders of summation in 30 layers
differ by more than one rounding per layer: by up to 1.4e-5 nats and 2e-5 in SmolLM2-135M. The
least of the tests' planted errors, a scale that is off by 5 % in weights so small that attention is
nearly even, is 3e-3 nats and 5e-2.

Rounding to bfloat16 hides such errors: on SmolLM2-135M it explains 0.4 nats. So there the first
layers are compared in float32 as well, by the portable kernel. The kernels for bfloat16 alone are
compared in bfloat16 only, and no layers of a sharded model are.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer as Layer

from pubswap_client.policy.attention_kernels import packed_kernels
from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.loading import refusing
from pubswap_client.policy.logprobs import score_pack, token_scores
from pubswap_client.policy.memory import is_out_of_memory, reason
from pubswap_client.policy.packing import pack
from pubswap_client.policy.padded import PADDED
from pubswap_client.policy.policy import Policy, recomputed_layers
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import check_positions, module_of
from pubswap_protocol.tensors.responses import Response

log = logging.getLogger(__name__)

# Lengths of the prompt and responses of two groups; the second is put at the run's last positions.
GROUPS = ((9, (12, 3)), (6, (1, 7)))
UNCHANGED = 6  # tokens of the first response that stay when everything they do not see is changed
WINDOW = 5  # width to which sliding windows are narrowed: less than a prompt
ROUNDINGS = 2.0  # allowed difference of a path, in units of the effect of one rounding per layer
LEAK = 0.1  # share of it that unseen tokens may cause, because experts then get other shapes
# Differences below these are ignored: root mean squares in nats, and relative. See the docstring.
SCORE_FLOOR = {torch.float32: 1e-4, torch.bfloat16: 1e-3}
GRADIENT_FLOOR = {torch.float32: 1e-3, torch.bfloat16: 5e-3}


class PathDifference(NamedTuple):
    """Difference of two paths: log-probabilities (root mean square, nats), gradients (relative L2).

    `leak` is the change in one path's log-probabilities with tokens and positions that they must
    not depend on.
    """

    scores: float
    gradients: float
    leak: float

    def within(self, limit: "PathDifference") -> bool:
        """Whether no difference exceeds its limit; False for NaN."""
        return all(value <= allowed for value, allowed in zip(self, limit, strict=True))

    def __str__(self) -> str:
        return (
            f"{self.scores:.1e} nats, gradients by {self.gradients:.1e}, "
            f"{self.leak:.1e} nats by unseen tokens"
        )


@dataclass(frozen=True, slots=True)
class PathChoice:
    """The chosen path, its difference from the model's own pass, and why not a faster one."""

    path: str
    linear_head: bool
    difference: PathDifference
    refused: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{_NAMES[self.path]}: matches the model's own pass within {self.difference}"
        text += "" if self.linear_head else "; logits by the model's own scaling, computed twice"
        return "; ".join([text, *self.refused])

    @property
    def advice(self) -> str:
        """What to do if a faster path was refused."""
        if self.path != PADDED:
            return "Training is exact, but slower than it could be: see why each path was refused."
        return (
            "Training is exact, but each prompt is computed again for each of its responses, and "
            "so is padding. A model that docs/models.md lists as packed is several times faster."
        )


_NAMES = {
    "flash3": "packed, FlashAttention-3",
    "flash": "packed, flash attention",
    "flex": "packed, FlexAttention",
    "portable": "packed, portable attention",
    PADDED: "padded rows",
}


def check_packed_path(policy: Policy, checkpointing: bool = False) -> PathChoice:
    """Choose the policy's path, and set its `path` and `linear_head`.

    `checkpointing` is the member's setting. Raises InvalidSettings if no path computes what the
    model does, the model itself bypasses an adapter or has no finite gradient, or its layers cannot
    be recomputed.
    """
    with refusing(f"{policy.card.architecture} cannot be trained"), _probing(policy) as probe:
        if checkpointing:
            recomputed_layers(policy.decoder)
        policy.linear_head = head_is_linear(policy)
        wrong = _wrong_in_float32(policy, checkpointing)
        limit = probe.limit()
        if not all(map(math.isfinite, limit)):
            scale = policy.settings.lora.alpha / policy.settings.lora.rank
            raise InvalidSettings(
                f"Scaled by lora.alpha / lora.rank = {scale:.3g}, an adapter leaves the "
                "model without finite gradients: ask the operator for a run with a lora.alpha "
                "of about twice the rank. If it has one, the base model's files may be damaged."
            )
        refused = []
        for path in (*packed_kernels(policy.device, policy.dtype), PADDED):
            if fault := wrong.get(PADDED if path == PADDED else "portable"):
                refused.append(f"not {_NAMES[path]}: {fault}")
                continue
            policy.path = path
            if path == PADDED:
                # This path cannot try rows at the last positions, so look them up in the config.
                check_positions(policy.model.config.to_dict(), policy.settings.grpo.longest_row)
            try:
                difference = probe.difference(path, checkpointing)
            except Exception as error:  # a kernel, a compiler or a model may raise anything
                refused.append(f"not {_NAMES[path]}: {reason(error)}")
                continue
            if difference.within(limit):
                verdict = PathChoice(path, policy.linear_head, difference, tuple(refused))
                log.log(
                    logging.WARNING if refused else logging.INFO, "The update's path: %s.", verdict
                )
                return verdict
            refused.append(f"not {_NAMES[path]}: {_off(difference, limit)}")
    raise InvalidSettings(
        f"{policy.card.architecture} cannot be trained: {'; '.join(refused)}. Use a model that "
        "docs/models.md lists, or report this one to us."
    )


def _off(difference: PathDifference, limit: PathDifference) -> str:
    return f"off by {difference}, where rounding explains {limit}"


def _wrong_in_float32(policy: Policy, checkpointing: bool) -> dict[str, str]:
    """The fault of each path that differs from the first layers' own pass in float32."""
    where = _layers_of(policy)
    if policy.dtype == torch.float32 or policy.sharded or where is None:
        return {}
    faults: dict[str, str] = {}
    try:
        with _first_layers_in_float32(policy, where):
            for path in ("portable", PADDED):
                policy.path = path
                fault = _fault_in_float32(_Probe(policy), path, checkpointing)
                if fault is not None:
                    faults[path] = fault
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.warning("The first layers are not compared in float32, for want of memory.")
    return faults


def _fault_in_float32(probe: "_Probe", path: str, checkpointing: bool) -> str | None:
    try:
        limit, difference = probe.limit(), probe.difference(path, checkpointing)
    except Exception as error:  # told again where the path is tried in its own dtype
        log.debug("%s in float32: %s.", _NAMES[path], reason(error))
        return None
    return None if difference.within(limit) else f"in float32, {_off(difference, limit)}"


@dataclass(frozen=True)
class _Pass:
    """Result of one path: log-probabilities (n,), and the gradient of a weighted sum of them."""

    scores: Tensor
    gradient: Tensor

    def gradient_off(self, other: "_Pass") -> float:
        """The relative L2 distance from another's gradient."""
        return float((self.gradient - other.gradient).norm() / other.gradient.norm())


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


class _Probe:
    """A few random rows, to compare how the paths compute them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        generator = torch.Generator().manual_seed(0)

        def tokens(count: int) -> Tensor:
            return torch.randint(policy.card.vocabulary, (count,), generator=generator)

        groups = []
        for prompt, lengths in GROUPS:
            sequences = [tokens(length).int().numpy() for length in lengths]
            responses = [
                Response(sequence, torch.zeros(len(sequence)).numpy()) for sequence in sequences
            ]
            groups.append(Group(tokens(prompt).tolist(), responses, [0.0] * len(responses)))
        self.batch = collate(groups)
        prompt, lengths = GROUPS[1]
        self.offset = max(0, last_positions(policy) - prompt - max(lengths))

    def limit(self) -> PathDifference:
        """The difference that rounding explains, measured in the policy's own dtype."""
        self.plain = self._plain(self.offset)
        with _rounded_once_more(self.policy):
            disturbed = self._plain(self.offset)
        dtype = self.policy.dtype
        scores = ROUNDINGS * _root_mean_square(disturbed.scores - self.plain.scores)
        scores = max(scores, SCORE_FLOOR[dtype])
        gradients = ROUNDINGS * disturbed.gradient_off(self.plain)
        return PathDifference(scores, max(gradients, GRADIENT_FLOOR[dtype]), LEAK * scores)

    def difference(self, path: str, checkpointing: bool = False) -> PathDifference:
        """Difference of a path, already set in the policy, from the model's own pass."""
        if path == PADDED and self.offset:
            # This path passes no positions, so its rows can only be at the first ones.
            self.plain, self.offset = self._plain(0), 0
        part = pack(self.batch, range(self.batch.rows), self.policy.device)
        second = [span for span in part.tree.spans if span.prefix_end == span.prefix_start][1].start
        far = part.position_ids.clone()
        far[:, second:] += self.offset
        with self.policy.packed(checkpointing):
            scores = score_pack(self.policy, replace(part, position_ids=far), 1.0).logprobs
            result = self._differentiated(scores)
            # Change the second group and its positions, and the end of the first response.
            unseen = part.input_ids.clone()
            changed = slice(GROUPS[0][0] + UNCHANGED, GROUPS[0][0] + GROUPS[0][1][0] - 1)
            for where in (changed, slice(second, None)):
                unseen[:, where] = (unseen[:, where] + 1) % self.policy.card.vocabulary
            with torch.no_grad():
                again = score_pack(self.policy, replace(part, input_ids=unseen), 1.0).logprobs
        first, other = GROUPS[0][1]
        same = [*range(UNCHANGED + 1), *range(first, first + other)]
        return PathDifference(
            _root_mean_square(result.scores - self.plain.scores),
            result.gradient_off(self.plain),
            _root_mean_square((again - result.scores)[same]),
        )

    def _plain(self, offset: int) -> _Pass:
        """The model's own pass: transformers computes each row alone."""
        scores = []
        for row in range(self.batch.rows):
            group = row // self.batch.group_size
            prompt, response = self.batch.prompts[group], self.batch.responses[row]
            ids = torch.cat([prompt, response])[None].to(self.policy.device)
            where = {}
            if offset and group == 1:
                positions = torch.arange(ids.shape[1], device=ids.device)[None]
                where = {"position_ids": positions + offset}
            logits = self.policy.model(input_ids=ids, use_cache=False, **where).logits[0]
            chosen = logits[len(prompt) - 1 : -1]
            scores.append(token_scores(chosen, ids[0, len(prompt) :], temperature=1.0))
        return self._differentiated(torch.cat(scores))

    def _differentiated(self, scores: Tensor) -> _Pass:
        weights = torch.arange(len(scores), device=scores.device).cos()
        names, factors = zip(*self._held(), strict=True)
        gradients = torch.autograd.grad((scores * weights).sum(), factors, allow_unused=True)
        _check_used(dict(zip(names, gradients, strict=True)))
        return _Pass(scores.detach(), torch.cat([each.flatten() for each in gradients]))

    def _held(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The names and trained factors of the layers that the model holds now."""
        held = set(self.policy.model.parameters())
        for name, factor in zip(self.policy.trained_names(), self.policy.trainable(), strict=True):
            if factor in held:
                yield name, factor


def _check_used(gradients: Mapping[str, Tensor | None]) -> None:
    """Raises InvalidSettings if a factor has no gradient, not even zero."""
    modules = {name: module_of(name.replace("lora_B", "lora_A")) for name in gradients}
    unused = {modules[name] for name, gradient in gradients.items() if gradient is None}
    if unused:
        last = {module.rsplit(".", 1)[-1] for module in modules.values()}
        good = sorted(last - {module.rsplit(".", 1)[-1] for module in unused})
        raise InvalidSettings(
            f"The model bypasses {len(unused)} of its {len(set(modules.values()))} adapters, such "
            f"as that of {min(unused)}. Ask the operator for a run with "
            + (f"lora.target_modules = {json.dumps(good)}." if good else "another model.")
        )


def last_positions(policy: Policy) -> int:
    """Positions in the run's longest row, or fewer if the model's position table is shorter."""
    count = policy.settings.grpo.longest_row
    config = policy.model.config.get_text_config()
    if getattr(config, "rope_parameters", None):
        return count
    return min(count, getattr(config, "max_position_embeddings", None) or count)


@torch.no_grad()
def head_is_linear(policy: Policy) -> bool:
    """Whether logits are W h + b, tested on states large enough to reveal any soft-capping."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = policy.head()
    hidden = torch.randn((4, weight.shape[1]), generator=generator).to(weight)
    hidden *= 100 / torch.matmul(hidden, weight.t()).abs().max()
    logits = policy.own_logits(hidden).float()
    linear = hidden.float() @ weight.float().t() + (0 if bias is None else bias.float())
    if logits.shape != linear.shape:
        return False
    return bool((logits - linear).norm() <= 0.01 * linear.norm())


@contextmanager
def _probing(policy: Policy) -> Iterator[_Probe]:
    """Inside, the adapter is random and the windows are narrow; both are restored afterwards."""
    factors, windows = policy.factors(), list(_windows(policy))
    originals = [factor.detach().clone() for factor in factors]
    generator = torch.Generator().manual_seed(2)
    try:
        with torch.no_grad():
            for factor in factors:
                # A gives values of size 1 on a normalised input; B, a change of a few percent.
                scale = 0.3 / max(factor.shape[1], 1) ** 0.5
                factor.copy_(torch.randn(factor.shape, generator=generator) * scale)
        for holder, name, _ in windows:
            setattr(holder, name, WINDOW)
        yield _Probe(policy)
    finally:
        for holder, name, width in windows:
            setattr(holder, name, width)
        with torch.no_grad():
            for factor, value in zip(factors, originals, strict=True):
                factor.copy_(value)


def _windows(policy: Policy) -> Iterator[tuple[Any, str, int]]:
    """Configs and layers that hold the width of an attention window or chunk."""
    config = policy.model.config
    holders = [config, config.get_text_config(), policy.decoder.config]
    for holder in {id(module): module for module in (*holders, *policy.decoder.modules())}.values():
        for name in ("sliding_window", "attention_chunk_size"):
            width = getattr(holder, name, None)
            if isinstance(width, int) and not isinstance(width, bool) and width > WINDOW:
                yield holder, name, width


@contextmanager
def _first_layers_in_float32(policy: Policy, where: "_Layers") -> Iterator[None]:
    """Inside, the policy has as few of its first layers as show each kind, in float32."""
    holder, name, layers = where
    types = getattr(policy.model.config.get_text_config(), "layer_types", None) or []
    kinds = [
        (kind, *map(type, layer.modules()))
        for kind, layer in zip_longest(types[: len(layers)], layers)
    ]
    first = max(2, *(1 + kinds.index(kind) for kind in kinds))
    dtype, replaced = policy.dtype, list[tuple[Tensor, Tensor]]()
    try:
        setattr(holder, name, layers[:first])
        policy.dtype = torch.float32
        for tensor in (*policy.model.parameters(), *policy.model.buffers()):
            if tensor.dtype == dtype:
                replaced.append((tensor, tensor.data))
                tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, data in replaced:
            tensor.data = data
        policy.dtype = dtype
        setattr(holder, name, layers)


class _Layers(NamedTuple):
    """The decoder's layers, and the module and attribute that hold them."""

    holder: torch.nn.Module
    name: str
    layers: torch.nn.ModuleList


def _is_layer(module: torch.nn.Module) -> bool:
    return isinstance(module, Layer)


def _layers_of(policy: Policy) -> _Layers | None:
    """None if the model does not keep them in one list."""
    for holder in policy.decoder.modules():
        for name, child in holder.named_children():
            if isinstance(child, torch.nn.ModuleList) and {*map(_is_layer, child)} == {True}:
                return _Layers(holder, name, child)
    return None


@contextmanager
def _rounded_once_more(policy: Policy) -> Iterator[None]:
    """Inside, the embedding's and each layer's output is off by a unit in the last place."""
    generator = torch.Generator().manual_seed(3)

    def disturbed(states: Tensor) -> Tensor:
        uniform = 2 * torch.rand(states.shape, generator=generator) - 1
        return states * (1 + torch.finfo(states.dtype).eps * uniform).to(states)

    def disturb(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return disturbed(output)
        return (disturbed(output[0]), *output[1:])

    layers = [module for module in policy.decoder.modules() if isinstance(module, Layer)]
    with ExitStack() as stack:
        for module in (policy.model.get_input_embeddings(), *layers):
            stack.callback(module.register_forward_hook(disturb).remove)
        yield
