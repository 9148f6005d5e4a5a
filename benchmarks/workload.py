"""The workload of both sides: a random model, and groups with lengths and tokens drawn once.

A random model hardly ever ends a response: all sampled lengths would be the limit and hide the cost
of padding. So lengths are drawn here, and both sides are forced to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from pubswap_client.policy.groups import Group
from pubswap_protocol.methods.advantages import ByStd
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, AdapterLayout
from pubswap_protocol.tensors.responses import Response

PAD, EOS = 0, 1
FIRST_WORD = 2  # ids below it are special
PROMPTS, RESPONSES = 8, 8  # b and K: 64 rows, the paper's step


class AsTrl(ByStd):
    """GRPO's advantage with TRL's epsilon, for which TRL has no option."""

    def scale(self, rewards: Tensor) -> Tensor:
        return rewards.std(dim=1, keepdim=True) + 1e-4


SMALL_MODEL: dict[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """The distribution of a workload's lengths: prompts uniform, responses lognormal and cut."""

    prompts: tuple[int, int]
    median: float
    sigma: float
    cut: int

    def draw(self, rng: np.random.Generator) -> tuple[list[int], list[list[int]]]:
        """b prompt lengths, and b x K response lengths."""
        prompts = rng.integers(self.prompts[0], self.prompts[1] + 1, PROMPTS)
        drawn = self.median * np.exp(self.sigma * rng.standard_normal((PROMPTS, RESPONSES)))
        return prompts.tolist(), np.clip(drawn.round(), 2, self.cut).astype(int).tolist()


RAGGED = Lengths(prompts=(64, 256), median=120, sigma=0.8, cut=512)
UNIFORM = Lengths(prompts=(64, 64), median=64, sigma=0, cut=64)
QUICK_RAGGED = Lengths(prompts=(16, 64), median=30, sigma=0.8, cut=128)
QUICK_UNIFORM = Lengths(prompts=(16, 16), median=16, sigma=0, cut=16)
WARM_UP = Lengths(prompts=(4, 8), median=6, sigma=0.2, cut=8)


@dataclass(frozen=True, slots=True)
class Workload:
    """b prompts with K responses each, as token ids, and a fixed reward for each response."""

    prompts: list[list[int]]
    responses: list[list[list[int]]]
    rewards: list[list[float]]

    @classmethod
    def make(cls, lengths: Lengths, vocabulary: int, seed: int = 0) -> "Workload":
        """Random tokens; a response ends in EOS unless it was cut. About half are rewarded."""
        rng = np.random.default_rng(seed)
        prompt_lengths, response_lengths = lengths.draw(rng)

        def words(count: int) -> list[int]:
            return [int(word) for word in rng.integers(FIRST_WORD, vocabulary, count)]

        def response(length: int) -> list[int]:
            last = words(1) if length == lengths.cut and lengths.sigma else [EOS]
            return words(length - 1) + last

        return cls(
            prompts=[words(length) for length in prompt_lengths],
            responses=[[response(length) for length in group] for group in response_lengths],
            # The first two differ in every group, so that every group has a gradient.
            rewards=[
                [1.0, 0.0, *rng.integers(0, 2, RESPONSES - 2).astype(float)] for _ in prompt_lengths
            ],
        )

    @property
    def lengths(self) -> list[tuple[int, list[int]]]:
        """Each group's prompt length and response lengths."""
        return [
            (len(prompt), [len(response) for response in group])
            for prompt, group in zip(self.prompts, self.responses, strict=True)
        ]

    @property
    def tokens(self) -> int:
        """Real tokens of all rows: each response, and its prompt once for each response."""
        return sum(prompt * len(group) + sum(group) for prompt, group in self.lengths)

    @property
    def limit(self) -> int:
        """The longest response."""
        return max(length for _, group in self.lengths for length in group)

    def describe(self) -> dict[str, Any]:
        """The facts that a reader needs to judge the figures."""
        responses = [length for _, group in self.lengths for length in group]
        prompts = [prompt for prompt, _ in self.lengths]
        return {
            "prompts": len(prompts),
            "responses_per_prompt": len(responses) // len(prompts),
            "prompt_min": min(prompts),
            "prompt_max": max(prompts),
            "response_mean": float(np.mean(responses)),
            "response_median": float(np.median(responses)),
            "response_max": max(responses),
            "real_tokens": self.tokens,
            "padded_tokens": len(responses) * (max(prompts) + max(responses)),
        }


def frozen_groups(workload: Workload) -> list[Group]:
    """The responses as if an engine had sampled them.

    An update's ratios are relative to its own pass before the first step, so the log-probabilities
    given here are never used.
    """
    return [
        Group(
            prompt,
            [
                Response(np.array(tokens, np.int32), np.full(len(tokens), -1.0, np.float32))
                for tokens in group
            ],
            rewards,
        )
        for prompt, group, rewards in zip(
            workload.prompts, workload.responses, workload.rewards, strict=True
        )
    ]


def text(tokens: Sequence[int]) -> str:
    """The text that the model's tokenizer turns into exactly these tokens."""
    return " ".join(f"w{token}" for token in tokens)


def save_model(folder: Path, shape: dict[str, Any], dtype: torch.dtype) -> Path:
    """A Qwen3 with random weights and tied embeddings, and a tokenizer of one word a token."""
    torch.manual_seed(0)
    config = Qwen3Config(
        **shape,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)
    save_tokenizer(folder, shape["vocab_size"])
    return folder


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    """One word for each token id, see `text`."""
    words = {f"w{i}": i for i in range(FIRST_WORD, vocabulary)}
    # An unknown word is not a control token, or the check of prompts would take it for one.
    unknown = f"w{FIRST_WORD}"
    tokenizer = Tokenizer(models.WordLevel({"<pad>": PAD, "<eos>": EOS} | words, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)


def run_settings(lengths: Lengths) -> RunSettings:
    """The paper's settings.

    Responses are frozen, so there is no engine whose log-probabilities could be corrected.
    """
    return RunSettings.model_validate(
        {
            "method": "fedavg",
            "clients": 1,
            "chat_template": "none",
            "grpo": {
                "prompts_per_step": PROMPTS,
                "responses_per_prompt": RESPONSES,
                "rollout_correction": "none",
                "max_prompt_tokens": lengths.prompts[1],
                "max_response_tokens": lengths.cut,
            },
        }
    )


def start_adapter(layout: AdapterLayout, seed: int = 1) -> Adapter:
    """Non-zero factors, so that the KL term and all gradients can be compared."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in sorted(layout.tensors.items())
    }
