"""Rounds from the steps in all, so that runs with different tau make equally many."""

from collections.abc import Mapping
from typing import Any

from pubswap_protocol.settings import RunSettings

ELSE = "else"


def with_rounds(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's nested values, with `total_steps` as one number and `rounds` following from it.

    Raises ValueError, beginning with the key, where that cannot be. Values of a wrong type stay
    as they are.
    """
    total = values.get("total_steps")
    if total is None:
        return dict(values)
    if "rounds" in values:
        raise ValueError("rounds: it follows from total_steps; give one of the two")
    tau = values.get("local_steps", RunSettings.model_fields["local_steps"].default)
    if isinstance(total, Mapping):
        total = _chosen(total, tau)
    if not _count(total) or not _count(tau):
        return {**values, "total_steps": total}
    if total % tau:
        below = total // tau * tau
        near = f"{below} or {below + tau}" if below else f"{tau}"
        raise ValueError(
            f"total_steps: {total} is no multiple of local_steps = {tau}, and a run ends with a "
            f"round; use {near}"
        )
    return {**values, "total_steps": total, "rounds": total // tau}


def _chosen(table: Mapping[str, Any], tau: Any) -> Any:
    wrong = [key for key in table if key != ELSE and not key.isdecimal()]
    if wrong:
        raise ValueError(
            f"total_steps.{wrong[0]}: the keys are numbers of local_steps, or {ELSE!r}"
        )
    if str(tau) not in table and ELSE not in table:
        raise ValueError(f"total_steps: the table has no value for local_steps = {tau}, nor `else`")
    return table.get(str(tau), table.get(ELSE))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
