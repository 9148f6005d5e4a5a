"""A run's terms: the bytes that an organisation approves, and from which it takes what it trains.

The coordinator makes them when a run is opened. It never writes them anew, so that a version with
other defaults or more settings asks nobody again; only `clients` can change, before the start.

A client ignores a setting that it does not know unless the run requires it. So the default of a new
setting must change nothing, and a renamed setting is read by its older name, too.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from pubswap_protocol.bounds import MAX_TERMS, Label, Name, Strict
from pubswap_protocol.command_line.keys import dotted_keys, flat
from pubswap_protocol.command_line.older_settings import converted
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import Invalid, OtherTerms, UnknownSetting, first_fault
from pubswap_protocol.messages import Digest, RunView
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_protocol.methods.registry import NAME, read_newer
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings

UNKNOWN = "a setting that this version of PubSwap does not know"
UNSET = "unset"


class Terms(Strict):
    """Everything that determines what a member of a run computes and sends."""

    name: Name
    settings: RunSettings
    model: ModelCard
    verifier_version: Label  # when the run was opened; members agree on later ones in their hello
    public: Digest  # of the public set


def make_terms(
    name: str,
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    verifier_version: str,
    public: str,
) -> str:
    """The terms of a run as canonical JSON, in ASCII; settings and model are in their JSON form.

    Raises Invalid if they are too large to be sent with every view of the run.
    """
    return _canonical(
        {
            "name": name,
            "settings": settings,
            "model": model,
            "verifier_version": verifier_version,
            "public": public,
        }
    )


def with_clients(terms: str, clients: int) -> str:
    """The same terms, with another number of clients and no other change."""
    values = json.loads(terms)
    values["settings"]["clients"] = clients
    return _canonical(values)


def read_terms(text: str) -> Terms:
    """Parse terms of any earlier version, without the fields that this version does not know.

    Raises OtherTerms unless they are canonical, so that no key occurs twice and everybody reads the
    same.
    """
    try:
        values = json.loads(text)
        canonical = _canonical(values) == text
        terms = read_newer(Terms, json.dumps(_in_todays_form(values)))
    except ValidationError as error:
        raise OtherTerms(
            f"The run's terms cannot be read ({first_fault(error)}). Upgrade pubswap to the "
            "coordinator's version, or ask the run's operator."
        ) from None
    except (ValueError, RecursionError, Invalid):
        canonical = False
    if not canonical:
        raise OtherTerms("The run's terms are not canonical JSON; ask the run's operator.")
    return terms


def _in_todays_form(values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
        return values
    return values | {"settings": converted(_without_paths(values["settings"]))}


def _without_paths(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without keys such as `grpo.resample`, which are none and could hide another."""
    return {
        key: _without_paths(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if "." not in key
    }


def agreed(view: RunView) -> RunView:
    """A member's run, with the settings and the model that are in its terms.

    Raises OtherTerms if there are no terms, or if the coordinator shows anything else than them.
    """
    if view.terms is None:
        raise OtherTerms(
            f"Run {view.name} has no terms, which its members approve. It is {view.state}: wait "
            "until its operator has opened it, or ask for an upgrade of the coordinator."
        )
    terms = read_terms(view.terms)
    shown = terms.model_copy(
        update={"name": view.name, "settings": view.settings, "model": view.model}
    )
    if wrong := differing(_terms_lines(terms), _terms_lines(shown)):
        raise OtherTerms(
            f"The coordinator shows {', '.join(wrong)} of run {view.name} otherwise than in the "
            "run's terms. Nothing is trained; ask the run's operator."
        )
    return view.model_copy(update={"settings": terms.settings, "model": terms.model})


def check_public(run: RunView, data: bytes) -> None:
    """Raises OtherTerms unless these are the bytes of the public set in the run's terms."""
    if digest_of(data) != read_terms(run.terms or "").public:
        raise OtherTerms(
            "The coordinator's public set is not the one in the run's terms. Nothing is trained; "
            "ask the run's operator."
        )


def differences(old: str, new: str) -> dict[str, tuple[str, str]]:
    """What differs between two terms: old and new value as JSON, by the setting's dotted name.

    Empty only if the bytes are the same.
    """
    if old == new:
        return {}
    lines = (_terms_lines(read_terms(text)) for text in (old, new))
    return differing(*lines) or {UNKNOWN: (UNSET, UNSET)}


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The lines that differ, each as it was and as it is."""
    return {
        name: (old.get(name, UNSET), new.get(name, UNSET))
        for name in dict.fromkeys([*old, *new])
        if old.get(name, UNSET) != new.get(name, UNSET)
    }


def setting_lines(settings: RunSettings) -> dict[str, str]:
    """Every setting as JSON, by its dotted name."""
    return _lines(settings.model_dump(mode="json"))


def _terms_lines(terms: Terms) -> dict[str, str]:
    # As this version reads them, because the text's own keys could be made to hide each other.
    values = terms.model_dump(mode="json", exclude={"settings"})
    # The layout is long, and follows from the model and `lora`.
    values["model"]["layout"] = digest_of(json.dumps(values["model"]["layout"]).encode())
    return setting_lines(terms.settings) | _lines(values)


def _lines(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _line(value) for name, value in flat(values).items()}


def _line(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 64.0 is 64
    return UNSET if value is None else json.dumps(value)


def required(settings: RunSettings) -> list[str]:
    """The settings that a client must know: those whose values differ from their defaults."""
    return [*given(settings)]


def given(settings: RunSettings) -> dict[str, Any]:
    """The values that differ from their defaults, by dotted key.

    A named value's parameters are compared with its own defaults.
    """
    values, defaults = (
        flat(each.model_dump(mode="json"), whole=("chat_template_options",))
        for each in (settings, RunSettings())
    )
    for key, kind in REGISTRIES.items():
        if (chosen := kind.class_of(values.get(key))) and chosen.model_fields:
            own = flat({NAME: chosen.name} | chosen.defaults(), prefix=f"{key}.")
            defaults |= {name: value for name, value in own.items() if name not in REGISTRIES}
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def check_required(names: Iterable[str]) -> None:
    """Raises UnknownSetting if this version does not know one of the settings."""
    if unknown := sorted({*names} - {*dotted_keys(RunSettings)}):
        raise UnknownSetting(
            f"The run requires {', '.join(unknown)}, which this version of pubswap does not know. "
            "Upgrade pubswap to the coordinator's version."
        )


def _canonical(values: Any) -> str:
    # In the order of the fields: a sum over an adapter's tensors follows its layout.
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_TERMS:
        raise Invalid(
            f"The run's settings and model card have {len(text):,} bytes, and at most "
            f"{MAX_TERMS:,} are allowed; choose fewer lora.target_modules."
        )
    return text
