"""The error tree."""

import re

import pytest
from pydantic import TypeAdapter, ValidationError

from pubswap_protocol import errors
from pubswap_protocol.command_line.keys import dotted_keys, fault_lines
from pubswap_protocol.command_line.removed import REMOVED
from pubswap_protocol.errors import (
    Invalid,
    LocalFault,
    ProblemDetails,
    PubSwapError,
    ServerFault,
    error_for,
    first_fault,
)
from pubswap_protocol.settings import RunSettings


def tree(root: type[PubSwapError], depth: int = 0) -> list[tuple[int, type[PubSwapError]]]:
    """The classes with their depths, in order of definition."""
    below = [entry for child in root.__subclasses__() for entry in tree(child, depth + 1)]
    return [(depth, root), *below]


CLASSES = [error for _, error in tree(PubSwapError)][1:]
# Never change these, because older clients and scripts rely on them. Add a new class's code.
CODES = """
backup_fault base_model_mismatch conflict damaged_blob digest_mismatch diverged engine_fault
error fenced forbidden gone hello_needed idempotency_mismatch invalid
invalid_adapter invalid_problems invalid_responses invalid_settings invalid_update
invite_expired invite_used ledger_damaged length_mismatch local_fault name_taken no_space
not_found not_saved other_terms out_of_memory out_of_range privacy_spent protocol_mismatch
proxy_fault refused_by_policy round_closed run_cancelled run_paused server_fault stale_adapter
state_in_use suspended too_large too_many_adapters too_many_requests too_slow unauthenticated
unavailable unknown_blob unknown_run unknown_setting unknown_upload unreachable
unsupported_encoding unsupported_type verifier_fault wrong_offset wrong_state
"""


def test_the_drawn_tree_is_the_tree() -> None:
    """The docstring has the classes' names, nesting, codes and statuses."""
    drawn = re.findall(r"^( *)[+-] (\w+) +(\w+) +(\d+)", errors.__doc__ or "", re.MULTILINE)
    assert {(len(space) // 2, name, code, int(status)) for space, name, code, status in drawn} == {
        (depth, error.__name__, error.code, error.status)
        for depth, error in tree(PubSwapError)
        if depth
    }


def test_codes_are_unique_and_stay() -> None:
    """Each code belongs to one class and follows from its name, so classes must not be renamed."""
    assert sorted(error.code for error in [PubSwapError, *CLASSES]) == CODES.split()


@pytest.mark.parametrize("error", [one for one in CLASSES if not issubclass(one, LocalFault)])
def test_an_error_comes_back_from_its_problem_as_itself(error: type[PubSwapError]) -> None:
    """Class, code and detail survive the wire; the default detail is the title."""
    again = error_for(
        ProblemDetails.model_validate_json(error("try this").problem("id").model_dump_json())
    )
    assert (type(again), again.detail) == (error, "try this")
    assert error().detail == error.title()


@pytest.mark.parametrize("code", ["new", "refused_by_policy", "not_saved"])
@pytest.mark.parametrize(("status", "kind"), [(599, ServerFault), (499, Invalid)])
def test_an_unknown_code_is_mapped_by_its_status(code: str, status: int, kind: type) -> None:
    """Codes of newer coordinators, and codes that only a client may raise, are mapped by their
    status.
    """
    assert type(error_for(ProblemDetails(title="t", status=status, detail="d", code=code))) is kind


def test_a_detail_moves_no_cursor() -> None:
    """A coordinator's text reaches a member's terminal, so its control characters are replaced."""
    problem = ProblemDetails(title="t", status=409, detail="a\x1b[2J\n\x9b8mé", code="conflict")
    assert error_for(problem).detail == "a [2J\n 8mé"


def test_a_removed_setting_is_refused_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, or a value of a key that stays, in a file of settings and in a request."""
    monkeypatch.setitem(REMOVED, "grpo.gone", "removed in 0.1.0; use method.period")
    monkeypatch.setitem(REMOVED, "method = gone", "removed in 0.1.0; use pubswap")
    table, request = {"grpo": {"gone": 1}}, TypeAdapter(dict[str, RunSettings])
    with pytest.raises(ValidationError) as caught:
        RunSettings.model_validate(table)
    assert first_fault(caught.value) == "grpo.gone: removed in 0.1.0; use method.period"
    (line,) = fault_lines(caught.value.errors(), dotted_keys(RunSettings))
    assert line == "grpo.gone: removed in 0.1.0; use method.period"
    with pytest.raises(ValidationError) as caught:
        request.validate_python({"settings": {"method": "gone"}})
    assert first_fault(caught.value) == "settings.method: removed in 0.1.0; use pubswap"
