"""An approval covers every setting of a run, and a change is asked about by its name."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pubswap_client.consent.approval import approval_path, read_approval, save_approval
from pubswap_client.consent.policy import LocalPolicy
from pubswap_client.consent.proposal import Proposal
from pubswap_client.consent.rules import Code, changes, judge
from pubswap_protocol.command_line.keys import flat, nested
from pubswap_protocol.command_line.schema_text import choices, tables
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_protocol.settings import RunSettings
from support.client.terms import changed, proposed

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SCHEMA = RunSettings.model_json_schema()
FIELDS = {
    f"{table}.{name}".strip("."): field
    for table, _, fields in tables(RunSettings)
    for name, field in fields.items()
}
# Some values are possible only with others; the first of these settings that fit are taken.
BASES: list[dict[str, Any]] = [
    {"clients": 4},
    {"clients": 4, "local_steps": 9, "method": {"period": 3}},
    {"clients": 7, "aggregation": {"rule": "svd"}},
    {"clients": 7, "aggregation": {"rule": "trimmed_mean"}},
    {"clients": 7, "aggregation": {"rule": "multi_krum", "server_optimizer": "adam"}},
    {"clients": 7, "aggregation": {"weights": "examples"}},
    {"clients": 4, "method": "fedprox", "privacy": {"epsilon": 8.0}},
    {"clients": 4, "local_steps": 9, "members": {"fewest_steps": 2}},
    {"clients": 4, "verifier": {"name": "weighted", "parts": [{"verifier": "math"}]}},
    *({"clients": 4, "verifier": name} for name in ("label", "number", "regex", "json", "sql")),
]


def others(field: dict[str, Any], value: Any) -> Iterator[Any]:
    """Values that the schema of a setting may allow besides this one."""
    for choice in choices(field, SCHEMA):
        yield from (each for each in choice.get("enum", [choice.get("const")]) if each is not None)
        match choice.get("type"):
            case "boolean":
                yield not value
            case "integer" | "number" if not isinstance(value, (int, float)):
                yield from (1, 2, 1.5)
            case "integer":
                yield from (value + 1, value - 1, value + 2)
            case "number":
                yield from (value * 2, value / 2, value + 0.25)
            case "string" if "blake3" in choice.get("pattern", ""):
                yield digest_of(b"another")
            case "string":
                yield "another"
            case "array":
                yield ("q_proj",)
                yield ({"verifier": "exact"},)
                yield ({"name": "category"},)
                yield ({"prompt": "1 + 1 =", "answer": "2"},)
            case "object":
                yield {"enable_thinking": False}


def values_of(settings: RunSettings) -> dict[str, Any]:
    """The values that are sent, by dotted name."""
    return flat(settings.model_dump(mode="json"), whole=("chat_template_options",))


def changed_in(name: str) -> tuple[RunSettings, RunSettings]:
    """Settings, and the same with another value of this one."""
    for base in BASES:
        before = RunSettings.model_validate(base)
        values = values_of(before)
        if name not in values:
            continue
        if name in REGISTRIES:
            values = {key: values[key] for key in values if not key.startswith(f"{name}.")}
        for other in others(FIELDS[name], values[name]):
            try:
                after = RunSettings.model_validate(nested(values | {name: other}))
            except ValidationError:
                continue
            if after != before:
                return before, after
    raise AssertionError(f"no base allows another value of {name}")


def test_every_value_of_the_settings_is_walked_through() -> None:
    """The schema's names are those of the values that are sent."""
    found = {name for base in BASES for name in values_of(RunSettings.model_validate(base))}
    assert found - {"privacy"} == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_that_changes_is_asked_about_by_its_name(tmp_path: Path, name: str) -> None:
    """The question names this setting, with the value approved and the value now.

    With a named value, it names that value's own parameters, too.
    """
    before, after = (proposed(settings) for settings in changed_in(name))
    save_approval(tmp_path, before)
    approval = read_approval(tmp_path, "r")
    assert approval is not None and before.terms != after.terms
    policy = LocalPolicy()
    assert judge(policy, before, approval) == ()
    (refusal,) = judge(policy, after, approval)
    assert refusal.code is Code.NOT_APPROVED
    found = changes(policy, after, approval)
    assert name in {line.removesuffix(".enable_thinking") for line in found}
    assert len(found) == 1 or (name in REGISTRIES and all(line.startswith(name) for line in found))
    lines = "; ".join(f"{line} {old} -> {new}" for line, (old, new) in found.items())
    assert refusal.detail == f"Changed since this organisation approved the run: {lines}."
    assert all(old != new for old, new in found.values())


def test_a_number_of_clients_within_the_policy_s_limits_asks_nobody(tmp_path: Path) -> None:
    """Nothing else may change with it, and without such a limit a person is asked."""
    before, fewer = (proposed(RunSettings(clients=number)) for number in (4, 3))
    save_approval(tmp_path, before)
    approval = read_approval(tmp_path, "r")

    def codes(limits: dict[str, Any], ask: Proposal) -> list[Code]:
        policy = LocalPolicy.model_validate({"limits": limits})
        return [one.code for one in judge(policy, ask, approval)]

    within = {"clients": {"min": 3}}
    assert codes(within, fewer) == []
    assert codes({}, fewer) == [Code.NOT_APPROVED]
    assert codes({"rounds": {"max": 9}}, fewer) == [Code.NOT_APPROVED]
    assert codes({"clients": {"min": 4}}, fewer) == [Code.SETTING, Code.NOT_APPROVED]
    more = proposed(RunSettings(clients=3, seed=1))
    assert codes(within, more) == [Code.NOT_APPROVED]


def test_an_approval_of_another_form_approves_nothing(tmp_path: Path) -> None:
    """The message says how to decide again."""
    approval_path(tmp_path).write_text('{"run": "r", "approved": true, "asked": {}}')
    with pytest.raises(InvalidSettings, match="decide again with `pubswap client approve`"):
        read_approval(tmp_path, "r")


def test_terms_that_cannot_be_compared_are_asked_about(tmp_path: Path) -> None:
    """An approval's bytes may be of a version that allowed more."""
    ask = proposed(RunSettings())
    save_approval(tmp_path, changed(ask, terms="{}"))
    approval = read_approval(tmp_path, "r")
    (refusal,) = judge(LocalPolicy(), ask, approval)
    assert refusal.detail.endswith("terms that this version of PubSwap cannot read.")
