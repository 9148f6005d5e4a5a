"""A run's terms: one meaning of the bytes, whichever version reads them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import Invalid, OtherTerms
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import (
    UNKNOWN,
    agreed,
    check_public,
    differences,
    make_terms,
    read_terms,
    setting_lines,
    with_clients,
)
from support.client.results import CARD
from support.client.terms import terms_of, with_terms

SETTINGS = RunSettings()
TEXT = terms_of(SETTINGS)
VIEW = with_terms(
    RunView(
        id="r",
        name="medqa",
        state=RunState.OPEN,
        paused=False,
        round=0,
        settings=SETTINGS,
        model=CARD,
        created_at=datetime(2026, 11, 23, tzinfo=UTC),
    )
)


def edited(*path: str, value: object = None, text: str = TEXT) -> str:
    """Canonical terms in which the value at this path is another; without one, it is missing."""
    values: dict[str, Any] = json.loads(text)
    table = values
    for key in path[:-1]:
        table = table[key]
    if value is None:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    return json.dumps(values, separators=(",", ":"))


def leaves(table: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    """The paths of all values that are no tables."""
    found = []
    for key, value in table.items():
        found += leaves(value, *path, key) if isinstance(value, dict) else [(*path, key)]
    return found


def test_terms_are_read_as_they_were_made() -> None:
    """They are ASCII, so their characters are their bytes."""
    terms = read_terms(TEXT)
    assert (terms.settings, terms.model, terms.name) == (SETTINGS, CARD, "medqa")
    assert TEXT.isascii() and terms.public == digest_of(b"")
    assert agreed(VIEW) == VIEW
    assert differences(TEXT, TEXT) == {}


@pytest.mark.parametrize("path", leaves(json.loads(TEXT)["model"], "model"), ids=".".join)
def test_each_part_of_the_model_is_a_part_of_the_terms(path: tuple[str, ...]) -> None:
    """A long layout of adapters is one line."""
    if path[-1] == "prompt_sample":
        sample = {"date": "2026-11-23", "token_ids": [5], "transformers": "5.24.0"}
        names = differences(TEXT, edited(*path, value=sample))
        assert {f"model.prompt_sample.{name}" for name in sample} <= names.keys()
        return
    old = json.loads(TEXT)
    for key in path:
        old = old[key]
    other: Any = "sha256:" + "f" * 64 if "digest" in path[-1] else "other"
    if isinstance(old, list):
        other = [each + 7 for each in old] or [7]
        if "layout" in path:  # both of a pair, because the shapes of A and B must agree
            other = [old[0] + 1, old[1]] if old[0] > old[1] else [old[0], old[1] + 1]
    elif isinstance(old, int):
        other = old + 1
    (name,) = differences(TEXT, edited(*path, value=other))
    assert name == ("model.layout" if "layout" in path else ".".join(path))


def test_another_public_set_than_the_approved_one_is_refused() -> None:
    """Each member downloads the set before it works."""
    check_public(VIEW, b"")
    with pytest.raises(OtherTerms, match="public set"):
        check_public(VIEW, b"{}")


@pytest.mark.parametrize("field", ["name", "verifier_version", "public"])
def test_the_rest_is_a_part_of_the_terms_too(field: str) -> None:
    value = digest_of(b"other") if field == "public" else "other"
    assert [*differences(TEXT, edited(field, value=value))] == [field]


def test_no_setting_has_the_name_of_another_part() -> None:
    """One of them would hide the other."""
    others = leaves({key: value for key, value in json.loads(TEXT).items() if key != "settings"})
    assert not {*setting_lines(SETTINGS)} & {".".join(path) for path in others}


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        ({"settings": RunSettings(grpo={"gradient_epochs": 64})}, "grpo.gradient_epochs"),  # type: ignore[arg-type]
        ({"settings": RunSettings(clients=1)}, "clients"),
        ({"model": CARD.model_copy(update={"vocabulary": 65})}, "model.vocabulary"),
        ({"name": "other"}, "name"),
        ({"terms": None}, "has no terms"),
    ],
)
def test_a_run_that_is_shown_otherwise_than_in_its_terms_is_refused(
    shown: dict[str, Any], named: str
) -> None:
    """The error names the difference."""
    with pytest.raises(OtherTerms, match=named):
        agreed(VIEW.model_copy(update=shown))


def test_a_new_version_asks_nobody_again() -> None:
    """Terms of a version without a setting mean its default, and keep their bytes."""
    older = edited("settings", "grpo", "resample")
    assert agreed(VIEW.model_copy(update={"terms": older})).settings == SETTINGS
    fewer = with_clients(older, 3)
    assert "resample" not in fewer
    assert differences(older, fewer) == {"clients": ("4", "3")}
    assert with_clients(fewer, 4) == older


def test_a_version_ignores_settings_that_it_does_not_know_and_tells_of_their_changes() -> None:
    """A coordinator's version may have more than a member's."""
    newer, changed = (edited("settings", "grpo", "novel", value=each) for each in (1, 2))
    assert agreed(VIEW.model_copy(update={"terms": newer})).settings == SETTINGS
    assert [*differences(newer, changed)] == [UNKNOWN]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace('"gradient_epochs":2', '"gradient_epochs":64,"gradient_epochs":2'),
        TEXT + " ",
        TEXT.replace("medqa", "med\\u0071a"),
        TEXT.replace('"alpha":64', '"alpha":Infinity'),
        "[" * 100_000,
        "[]",
        "",
    ],
    ids=["twice", "space", "escape", "infinity", "deep", "list", "empty"],
)
def test_what_two_readers_could_read_differently_is_refused(text: str) -> None:
    """Only one text has each meaning."""
    assert text != TEXT
    with pytest.raises(OtherTerms):
        read_terms(text)


def test_a_key_that_looks_like_another_s_path_hides_nothing() -> None:
    """The lines are those that this version reads, and not the text's own keys."""
    sly = edited("settings", "grpo", "gradient_epochs", value=64)
    sly = edited("settings", "grpo.gradient_epochs", value=2, text=sly)
    assert differences(TEXT, sly) == {"grpo.gradient_epochs": ("2", "64")}


def test_terms_of_any_size_are_refused() -> None:
    """They are sent with every view of the run."""
    with pytest.raises(Invalid, match="at most"):
        make_terms("medqa", {"novel": "x" * (5 << 20)}, {}, "exact@1", digest_of(b""))
