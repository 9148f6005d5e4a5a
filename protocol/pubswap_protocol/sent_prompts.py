"""Public prompts as they are sent: every member must be able to read them, as it approved them."""

from collections.abc import Sequence
from heapq import nlargest

from pydantic import ValidationError

from pubswap_protocol.bounds import MAX_COMMAS, MAX_MEMBER_MESSAGE, MAX_TABLES, value_counts
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.messages import PublicPrompt, PublicStepPrompts
from pubswap_protocol.methods.registry import read_newer
from pubswap_protocol.problems import Problem

_ENVELOPE = 1024  # bytes of a message besides its prompts


def check_sent_prompts(problems: Sequence[Problem], per_step: int, source: str) -> None:
    """Raises InvalidProblems unless members can read each public step's `per_step` prompts.

    A problem whose metadata would arrive otherwise is named by its line. The largest prompts are
    taken together, each twice, as in a step at the end of the walk over the set.
    """
    sizes: list[tuple[int, int, int]] = []
    for line, problem in enumerate(problems, start=1):
        body = _message(problem)
        if problem.metadata and not _arrives(body, problem):
            raise InvalidProblems(
                f"{source}, line {line} ({problem.id}): its metadata is not the same once it is "
                "sent, because JSON has no NaN, infinity or very deep lists. Correct it, or "
                "leave it out."
            )
        sizes.append((len(body), *value_counts(body)))
    limits = MAX_MEMBER_MESSAGE - _ENVELOPE, MAX_COMMAS, MAX_TABLES
    names = "bytes", "values", "lists and objects"
    for counts, limit, name in zip(zip(*sizes, strict=True), limits, names, strict=True):
        if (most := sum(nlargest(per_step, [*counts, *counts]))) > limit:
            raise InvalidProblems(
                f"{source}: the {per_step} prompts of a public step may have {most:,} {name} with "
                f"their metadata, and a message to a member has at most {limit:,}. Shorten the "
                "metadata, or set a lower grpo.prompts_per_step."
            )


def _message(problem: Problem) -> bytes:
    """A public step's message with this prompt alone."""
    prompts = [PublicPrompt(index=0, problem=problem)]
    message = PublicStepPrompts(round=1, public_step=1, prompts=prompts)
    return message.model_dump_json().encode()


def _arrives(body: bytes, problem: Problem) -> bool:
    try:
        return [each.problem for each in read_newer(PublicStepPrompts, body).prompts] == [problem]
    except ValidationError:
        return False
