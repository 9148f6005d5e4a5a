"""Tiny models on disk, and fixtures built from them; torch is imported only where it is needed."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter, AdapterLayout
from pubswap_protocol.tensors.responses import Response
from support.client.even import is_even
from support.client.models import EOS, VOCABULARY, save_model

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """A function (kind, **config) that makes a model for a single test."""
    return lambda kind, **changes: save_model(tmp_path / kind, kind, **changes)


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen3."""
    return save_model(tmp_path_factory.mktemp("qwen3"), "qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def tiny_mild_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen3 with small weights, and so with small gradients."""
    return save_model(tmp_path_factory.mktemp("mild"), "qwen3", initializer_range=0.1)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama."""
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def tiny_untied_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen2, with biases in its attention and untied embeddings."""
    changes = {"hidden_size": 24, "num_attention_heads": 3, "initializer_range": 0.1}
    return save_model(tmp_path_factory.mktemp("qwen2"), "qwen2", **changes)


@pytest.fixture(scope="session")
def tiny_sliding_mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Mistral with a sliding window of 5 tokens."""
    return save_model(
        tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=5, initializer_range=0.1
    )


@pytest.fixture(scope="session")
def tiny_mild_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama with tied embeddings."""
    changes = {"tie_word_embeddings": True, "initializer_range": 0.1}
    return save_model(tmp_path_factory.mktemp("mild-llama"), "llama", **changes)


@pytest.fixture(scope="session")
def tiny_deep_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Qwen3 with a third layer and a wider MLP."""
    changes = {"num_hidden_layers": 3, "intermediate_size": 32}
    return save_model(tmp_path_factory.mktemp("deep"), "qwen3", **changes)


@pytest.fixture(scope="session")
def run_settings() -> RunSettings:
    """Small settings, with a learning rate large enough for one step to have a visible effect."""
    return RunSettings.model_validate(
        {
            "seed": 3,
            "local_steps": 2,
            "rounds": 2,
            "clients": 2,
            "lora": {"rank": 2, "alpha": 4},
            "grpo": {
                "prompts_per_step": 3,
                "responses_per_prompt": 4,
                "learning_rate": 1e-2,
                "max_prompt_tokens": 40,
                "max_response_tokens": 12,
            },
        }
    )


CardOf = Callable[[Path], ModelCard]


@pytest.fixture(scope="session")
def card_of(run_settings: RunSettings) -> CardOf:
    """A function that makes a folder's model card, with the run's LoRA settings."""
    return lambda folder: model_card(folder, run_settings.lora, "tiny", None)


def random_adapter(layout: AdapterLayout, seed: int, scale: float = 0.2) -> Adapter:
    """Random non-zero factors, so that B is not zero as in an untrained adapter."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, scale, shape).astype(np.float32)
        for name, shape in layout.tensors.items()
    }


@pytest.fixture(name="random_adapter")
def _random_adapter() -> Callable[..., Adapter]:
    """A function (layout, seed, scale) that makes an adapter with no zero factors."""
    return random_adapter


@pytest.fixture(scope="session")
def _loaded(tiny_qwen3: Path, card_of: CardOf, run_settings: RunSettings) -> "Policy":
    from pubswap_client.policy.policy import Policy

    loaded = Policy.load(tiny_qwen3, card_of(tiny_qwen3), run_settings, device="cpu")
    loaded.load_adapter(random_adapter(loaded.card.layout, seed=1))
    return loaded


@pytest.fixture
def policy(_loaded: "Policy") -> "Policy":
    """The tiny Qwen3 with an adapter that changes its outputs; a copy for each test."""
    return copy.deepcopy(_loaded)


@pytest.fixture
def problems() -> list[Problem]:
    """Sums of different lengths, in two topics."""
    texts = ["1+1=", "22+3=", "9=", "12+13+14=", "0+0=", "7-3=", "8*8=", "66/3="]
    return [
        Problem(id=str(i), prompt=text, answer=text[0], topic="even" if i % 2 == 0 else "odd")
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def even_scorer() -> Callable[[Sequence[tuple[str, Problem]]], list[float]]:
    """Reward 1 for texts with an even number of characters, so that about half are right."""
    return lambda cases: [float(is_even(text)) for text, _ in cases]


@pytest.fixture
def make_responses() -> Callable[..., list[Response]]:
    """A function (lengths, seed, donated) that makes random responses of these lengths."""

    def make(lengths: Sequence[int], seed: int, donated: Sequence[int] = ()) -> list[Response]:
        rng = np.random.default_rng(seed)
        return [
            Response(
                tokens=np.append(
                    rng.integers(3, VOCABULARY, length - 1), EOS if length < 12 else 5
                ).astype(np.int32),
                logprobs=rng.uniform(-4, -1, length).astype(np.float32),
                donated=place in donated,
            )
            for place, length in enumerate(lengths)
        ]

    return make
