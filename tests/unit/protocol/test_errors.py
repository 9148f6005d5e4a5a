"""The error tree."""

import re

import pytest

from pubswap_protocol import errors
from pubswap_protocol.errors import Invalid, ProblemDetails, PubSwapError, ServerFault, error_for


def tree(root: type[PubSwapError], depth: int = 0) -> list[tuple[int, type[PubSwapError]]]:
    """The classes with their depths, in the order of definition."""
    below = [entry for child in root.__subclasses__() for entry in tree(child, depth + 1)]
    return [(depth, root), *below]


CLASSES = [error for _, error in tree(PubSwapError)][1:]


def test_the_drawn_tree_is_the_tree() -> None:
    """Names, nesting, codes and statuses in the docstring are those of the classes."""
    drawn = re.findall(r"^( *)[+-] (\w+) +(\w+) +(\d+)", errors.__doc__ or "", re.MULTILINE)
    assert {(len(space) // 2, name, code, int(status)) for space, name, code, status in drawn} == {
        (depth, error.__name__, error.code, error.status)
        for depth, error in tree(PubSwapError)
        if depth
    }


def test_codes_are_unique() -> None:
    """A code names one class."""
    assert len({error.code for error in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_comes_back_from_its_problem_as_itself(error: type[PubSwapError]) -> None:
    """Class, code and detail survive the wire; without a detail, the title is said."""
    again = error_for(
        ProblemDetails.model_validate_json(error("try this").problem("id").model_dump_json())
    )
    assert (type(again), again.detail) == (error, "try this")
    assert error().detail == error.title()


@pytest.mark.parametrize(("status", "kind"), [(599, ServerFault), (499, Invalid)])
def test_an_unknown_code_becomes_its_nearest_relative(status: int, kind: type) -> None:
    """A newer coordinator's codes are understood by their status."""
    assert type(error_for(ProblemDetails(title="t", status=status, detail="d", code="new"))) is kind
