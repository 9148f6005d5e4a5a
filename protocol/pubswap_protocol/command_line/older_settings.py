"""A run's settings as earlier versions stored them, in today's form."""

from collections.abc import Mapping
from typing import Any

from pubswap_protocol.command_line.keys import flat, nested
from pubswap_protocol.command_line.removed import RENAMED
from pubswap_protocol.methods.registries import REGISTRIES


def converted(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with each parameter of a named value in that value.

    Earlier versions stored the parameters of all values, whichever was chosen: those without
    effect are left out, and so is one that was not set. What was not renamed stays as it is.
    """
    values = flat(stored)
    longest = values.get("swap.max_donated_tokens")
    silent = longest == 1  # no response is that short
    if longest is None or silent:  # others had an effect that there is no more
        values.pop("swap.max_donated_tokens", None)
    if values.get("privacy.epsilon", ...) is None:
        values = {key: value for key, value in values.items() if not key.startswith("privacy.")}
    for old, new in RENAMED.items():
        if old in values:
            value, setting = values.pop(old), new.rpartition(".")[0]
            kind = REGISTRIES[setting]
            chosen = kind.class_of(values.get(setting, kind.default))
            if value is not None and (
                chosen is None or new.rpartition(".")[2] in chosen.model_fields
            ):
                values[new] = value
    if silent and "method.strategy" in values:
        values["method.strategy"] = "none"
    return nested(values)
