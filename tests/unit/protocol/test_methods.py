"""Named values: each has its own parameters, and none that does nothing can be written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from pubswap_protocol.command_line.keys import flat, key_fault, nested, spelled
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_protocol.methods.registry import Registrable, Registry, read_newer
from pubswap_protocol.methods.rules import RULES, FedIT, TrimmedMean
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import given

# What an outsider could write in 0.1.0's first form although nothing read it, each in today's form
# and in that one.
IDLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "f of multi_krum with fedit": (
        {"aggregation.rule": "fedit", "aggregation.rule.bad": 2},
        {"aggregation.krum_f": 2},
    ),
    "trim with fedit": ({"aggregation.rule.trim": 0.3}, {"aggregation.trim": 0.3}),
    "a server's beta1 without an optimizer": (
        {"aggregation.server_optimizer.rate": 0.1},
        {"aggregation.server_beta1": 0.5},
    ),
    "mu with pubswap": ({"method": "pubswap", "method.mu": 0.1}, {"fedprox.mu": 0.1}),
    "a period with fedavg": ({"method": "fedavg", "method.period": 3}, {"swap.period": 3}),
    "candidates with uniform donors": ({"method.candidates": 2}, {"swap.candidates": 2}),
    "a cap of local ratios": ({"method.donor_ratio_cap": 3.0}, {"grpo.donor_ratio_cap": 3.0}),
    "bounds of an asymmetric clipping": (
        {"grpo.clipping": "asymmetric", "grpo.clipping.low": 0.1},
        {"grpo.clipping": "asymmetric", "grpo.clip_low": 0.1},
    ),
    "clip without epsilon": ({"privacy.clip": 2.0}, {"privacy.clip": 2.0}),
    "a largest share of equal weights": (
        {"aggregation.weights": "uniform", "aggregation.weights.max_share": 0.4},
        {"aggregation.max_weight_share": 0.4},
    ),
    "a longest donated response with fedavg": (
        {"method": "fedavg", "method.max_donated_tokens": 9},
        {"swap.max_donated_tokens": 9},
    ),
    "a cap of no correction": (
        {"grpo.rollout_correction": "none", "grpo.rollout_correction_cap": 3.0},
        {"grpo.rollout_correction_cap": 3.0},
    ),
}


def faults(values: dict[str, Any]) -> list[str]:
    """The errors of a run with these settings, as a user reads them."""
    with pytest.raises(ValidationError) as raised:
        RunSettings.model_validate(nested(values))
    return [key_fault(fault, list(given(RunSettings()))) for fault in raised.value.errors()]


@pytest.mark.parametrize("name", IDLE)
def test_a_combination_that_does_nothing_cannot_be_written(name: str) -> None:
    """It is refused by the key of the parameter, in both forms; the older one says the newer."""
    today, older = IDLE[name]
    if name == "clip without epsilon":
        assert faults(today) == faults(older) == ["privacy.epsilon: it is missing"]
        return
    assert all(any(key.rpartition(".")[2] in text for key in today) for text in faults(today))
    assert all("0.1.0" in text for text in faults(older))


def foreign() -> Iterator[tuple[str, str, str, str]]:
    """Each setting, a name, and a parameter that another name of it has and this one lacks."""
    for setting, registry in REGISTRIES.items():
        for cls in registry:
            for other in registry:
                for parameter in sorted(other.model_fields.keys() - cls.model_fields.keys()):
                    yield setting, cls.name, parameter, other.name


@pytest.mark.parametrize(("setting", "name", "parameter", "owner"), list(foreign()))
def test_a_parameter_of_another_value_is_refused(
    setting: str, name: str, parameter: str, owner: str
) -> None:
    """The message names those that have it, whichever two values they are."""
    [text] = faults({setting: name, f"{setting}.{parameter}": 1})
    assert f"{name!r} has no such parameter" in text and repr(owner) in text


NEEDED: dict[str, dict[str, Any]] = {
    "reasoning_gym": {"task": "gcd"},
    "plugin": {"entry": "complaints"},
    "weighted": {"parts": [{"verifier": "exact"}]},
}
"""Parameters that have no default."""


@pytest.mark.parametrize("setting", REGISTRIES)
def test_each_value_is_written_and_read_in_every_form(setting: str) -> None:
    """As a name, as a table, by dotted keys and as JSON it is the same value."""
    registry = REGISTRIES[setting]
    for cls in registry:
        value = cls(**NEEDED.get(cls.name, {}))
        dumped = value.model_dump(mode="json")
        if cls.name not in NEEDED:
            assert registry.read(cls.name) == registry.read({"name": cls.name}) == value
        if cls.one_word:
            assert registry.read(dumped) == value and isinstance(dumped, str)
            continue
        assert registry.read(json.loads(json.dumps(dumped))) == registry.read(value) == value
        keys = spelled(flat(nested({setting: cls.name} | flat(parameters(value), prefix="x."))))
        assert nested(keys)["x"] == nested(flat(parameters(value), prefix="x."))["x"]


def parameters(value: Registrable) -> dict[str, Any]:
    """A value's parameters in JSON, with one more, so that there is always a table."""
    dumped = value.model_dump(mode="json")
    return {"more": 1} | (dumped if isinstance(dumped, dict) else {})


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    """So is what is no name and no table."""
    for wrong in ("oracle", 3, None, ["fedit"], {"name": 3}, {"name": ["fedit"]}):
        with pytest.raises(ValidationError, match="use one of 'fedit', 'ffa', 'median'"):
            RULES.read(wrong)


def test_a_name_is_taken_once() -> None:
    """A second class of the same name would decide what runs by the order of imports."""
    rules = Registry[Registrable]("rule", default="one")

    class One(Registrable):
        name = "one"

    rules.register(One)
    with pytest.raises(ValueError, match="The rule 'one' exists already"):
        rules.register(type("Another", (Registrable,), {"name": "one", "__module__": "elsewhere"}))
    assert list(rules) == [One]


def test_a_later_version_s_parameters_are_ignored_where_messages_are_read() -> None:
    """A client ignores them at their defaults, and a wrong value of a known one is still wrong."""
    sent = RunSettings(clients=5, aggregation={"rule": "trimmed_mean"}).model_dump(mode="json")  # type: ignore[arg-type]
    sent["method"]["strategy"] = {"name": "keep", "later": 1}
    sent["method"]["later"] = {"a": 1}
    sent["aggregation"]["rule"]["later"] = 2.0
    read = read_newer(RunSettings, json.dumps(sent))
    assert read == RunSettings(clients=5, aggregation={"rule": "trimmed_mean"})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="later"):
        RunSettings.model_validate(sent)
    sent["aggregation"]["rule"]["trim"] = 0.7
    with pytest.raises(ValidationError, match=r"less than 0\.5"):
        read_newer(RunSettings, json.dumps(sent))


def test_a_value_says_only_what_differs_from_its_own_defaults() -> None:
    """A parameter at its value's default is not written, though another value's default differs."""
    run = RunSettings.model_validate(
        {"grpo": {"clipping": {"name": "sequence", "high": 0.5}}, "aggregation": {"rule": "ffa"}}
    )
    assert given(run) == {
        "grpo.clipping": "sequence",
        "grpo.clipping.high": 0.5,
        "aggregation.rule": "ffa",
    }
    assert RunSettings.model_validate(nested(given(run))) == run


def test_values_are_equal_if_their_parameters_are() -> None:
    """A rule without parameters equals no other one without any."""
    assert FedIT() == RULES.read("fedit") != RULES.read("ffa")
    assert TrimmedMean(trim=0.2) == RULES.read("trimmed_mean") != TrimmedMean(trim=0.1)


def test_a_value_is_shown_by_its_name() -> None:
    """Wherever a text or a page has it, without its parameters."""
    assert f"{RunSettings().method}, {TrimmedMean(trim=0.1)}" == "pubswap, trimmed_mean"
