"""A run's settings: the paper's defaults, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from pubswap_client.demo.demos import RUN_FILE
from pubswap_client.recipes.recipe import load_recipe
from pubswap_protocol.command_line.removed import REMOVED
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.methods.advantages import ByStd
from pubswap_protocol.methods.losses import SequenceMean
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.methods.rules import FedIT
from pubswap_protocol.methods.strategies import Keep
from pubswap_protocol.methods.weights import Uniform
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import required


def test_defaults_are_the_paper_s() -> None:
    """Unset values are those of the paper's appendix."""
    run = RunSettings()
    grpo = run.grpo
    assert (run.clients, run.method) == (4, PubSwap(strategy=Keep(), period=2))
    assert (grpo.prompts_per_step, grpo.responses_per_prompt, grpo.gradient_epochs) == (8, 8, 2)
    assert (run.lora.rank, run.lora.alpha, run.lora.target_modules) == (32, 64, "all-linear")
    assert (grpo.learning_rate, grpo.weight_decay, grpo.max_grad_norm) == (1e-5, 0.01, 1.0)
    assert (grpo.clipping.low, grpo.clipping.high, grpo.kl_beta) == (0.2, 0.25, 1e-4)
    assert (grpo.temperature, run.evaluation.temperature, run.evaluation.batch_size) == (
        0.7,
        0.7,
        512,
    )
    assert (grpo.max_prompt_tokens, grpo.max_response_tokens) == (1024, 2048)
    assert (grpo.entropy_coefficient, PubSwap().donor_ratio) == (0.0, "local")
    assert (grpo.loss_aggregation, grpo.optimizer_state) == (SequenceMean(), "reset")
    assert grpo.advantage == ByStd()
    assert (run.aggregation.rule, run.aggregation.weights) == (FedIT(), Uniform())
    assert PubSwap().mode == "synchronous"


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("method", "mode", "pipelined"),
        ("grpo", "resample", 2),
        ("grpo", "clipping", "sequence"),
        ("members", "minimum", 2),
        ("aggregation", "rule", "median"),
    ],
)
def test_clients_must_know_a_newer_setting_that_is_not_at_its_default(
    table: str, name: str, value: Any
) -> None:
    """A run with such a value requires clients that know this setting, and no other."""
    run = RunSettings.model_validate({table: {name: value}})
    assert RunSettings.model_validate_json(run.model_dump_json()) == run
    assert required(run) == [f"{table}.{name}"]
    assert not required(RunSettings())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chat_template_options": {"x": 1}, "chat_template": "none"}, "require chat_template"),
        ({"chat_template_options": {"x y": 1}}, "chat_template_options"),
        ({"chat_template_options": {"x": [1]}}, "chat_template_options"),
        ({"chat_template_options": {"x": 10**400}}, "chat_template_options"),
        ({"chat_template_options": {"x": "a" * 201}}, "chat_template_options"),
        ({"chat_template_options": {f"x{n}": 1 for n in range(17)}}, "chat_template_options"),
        ({"grpo": {"responses_per_prompt": 7}}, "must be even"),
        ({"method": {"period": 50}}, "no step would be public"),
        (
            {"method": {"quorum": 5}},
            "method.quorum is larger than the number of clients; use at most 4",
        ),
        (
            {"members": {"minimum": 5}},
            "members.minimum is larger than the number of clients; use at most 4",
        ),
        (
            {"members": {"fewest_steps": 41}},
            "members.fewest_steps is larger than local_steps; use at most 40",
        ),
        ({"aggregation": {"weights": "steps"}}, "set members.fewest_steps"),
        ({"method": {"mode": "pipelined", "period": 1}}, "method.period = 1 and local_steps = 40"),
        (
            {"method": {"mode": "pipelined", "period": 40}},
            "method.period = 40 and local_steps = 40",
        ),
        (
            {"aggregation": {"quorum": 5}},
            "aggregation.quorum is larger than the number of clients; use at most 4",
        ),
        ({"aggregation": {"rule": "multi_krum"}}, "2 f + 3 = 5 clients, and the run has 4"),
        (
            {"clients": 5, "aggregation": {"rule": {"name": "multi_krum", "averaged": 5}}},
            "at most n - f",
        ),
        ({"aggregation": {"rule": "trimmed_mean"}}, "drops none of 4 clients"),
        (
            {"clients": 2, "aggregation": {"rule": "trimmed_mean"}},
            "needs 3, and the run has 2; use",
        ),
        ({"aggregation": {"rule": {"name": "trimmed_mean", "trim": 0.5}}}, "aggregation.rule.trim"),
        ({"aggregation": {"rule": "median", "weights": "examples"}}, "takes no weights"),
        ({"aggregation": {"rule": "svd", "server_optimizer": "adam"}}, "moves the old ones"),
        (
            {"aggregation": {"rule": "svd"}, "grpo": {"optimizer_state": "keep"}},
            "does not fit them",
        ),
        ({"aggregation": {"clip_norm": 0}}, "aggregation.clip_norm"),
        ({"grpo": {"temperature": 0}}, "grpo.temperature"),
        ({"grpo": {"clipping": "hard"}}, "grpo.clipping"),
        ({"method": {"donor_ratio": "luffy"}}, "method.donor_ratio"),
        ({"grpo": {"resample": -1}}, "grpo.resample"),
        ({"grpo": {"resample": 65}}, "grpo.resample"),
        ({"grpo": {"resample": True}}, "grpo.resample"),
        ({"privacy": {"epsilon": 0.0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 101.0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": True}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": float("nan")}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "clip": 0.0}}, "privacy.clip"),
        ({"privacy": {"epsilon": 8.0}, "grpo": {"resample": 2}}, "use resample = 0"),
        (
            {"privacy": {"epsilon": 8.0}, "grpo": {"loss_aggregation": "token_mean"}},
            "use 'sequence_mean' or 'constant'",
        ),
        ({"rounds": 0}, "rounds"),
        ({"tau": 3}, "tau"),
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"method": "fedsgd"}, "method"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_key(
    values: dict[str, Any], message: str
) -> None:
    """An unknown key, a value out of range, or an impossible combination."""
    with pytest.raises(ValidationError) as caught:
        RunSettings.model_validate(values)
    first = caught.value.errors()[0]
    assert message in ".".join(map(str, first["loc"])) + " " + first["msg"]


@pytest.mark.parametrize(
    "removed", [one for one in REMOVED if one.partition(".")[0] in RunSettings.model_fields]
)
def test_a_removed_setting_of_a_run_is_refused_with_its_sentence(removed: str) -> None:
    """A key, or a value of one that stays: since when, and what to use."""
    key, _, value = removed.partition(" = ")
    table, _, name = key.partition(".")
    given = {"min": 1, "max": 8} if value == "{…}" else value or 1
    with pytest.raises(ValidationError) as caught:
        RunSettings.model_validate({table: {name: given}})
    assert first_fault(caught.value) == f"{key}: {REMOVED[removed]}"


@pytest.mark.parametrize("values", [{"method": "fedavg"}, {"method": {"strategy": "random"}}])
def test_an_odd_k_is_fine_without_keep(values: dict[str, Any]) -> None:
    """Only `keep` splits a group in halves."""
    RunSettings.model_validate({**values, "grpo": {"responses_per_prompt": 7}})


EXTREMES = [
    ("grpo.temperature", {"grpo": {"temperature": 1e-40}}),
    ("evaluation.temperature", {"evaluation": {"temperature": 1e-40}}),
    ("privacy.clip", {"privacy": {"epsilon": 8.0, "clip": 1e-300}}),
    ("lora.alpha", {"lora": {"alpha": 1e-320}}),
    ("grpo.weight_decay", {"grpo": {"learning_rate": 1e-3, "weight_decay": 1e3}}),
    ("rounds", {"privacy": {"epsilon": 8.0}, "rounds": 25_001, "local_steps": 40}),
    ("grpo.gradient_epochs", {"privacy": {"epsilon": 8.0}, "grpo": {"gradient_epochs": 257}}),
]


@pytest.mark.parametrize(("key", "values"), EXTREMES)
def test_numbers_that_would_break_training_are_refused(key: str, values: dict[str, Any]) -> None:
    """The error names the key, for settings and for a run file."""
    with pytest.raises(ValidationError, match=key.rpartition(".")[2]):
        RunSettings.model_validate(values)
    with pytest.raises(InvalidSettings, match=f"{key}: "):
        load_recipe(RUN_FILE, values)
