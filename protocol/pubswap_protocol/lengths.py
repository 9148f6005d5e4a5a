"""How long a run's prompts may be: counted before it begins, because no step can leave one out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

_NAMED = 5


@dataclass(frozen=True)
class PromptLimit:
    """The most tokens of a prompt (`grpo.max_prompt_tokens`), and how tokens are counted."""

    most: int
    count: Callable[[str], int]

    def fits(self, prompt: str) -> bool:
        """Whether a prompt is short enough."""
        return self.count(prompt) <= self.most

    def check(self, problems: Iterable[Problem], name: str) -> None:
        """Raises InvalidProblems with the lines, ids and lengths of prompts that are too long."""
        counts = [(problem, self.count(problem.prompt)) for problem in problems]
        long = [
            f"line {line} ({problem.id}: {tokens} tokens)"
            for line, (problem, tokens) in enumerate(counts, start=1)
            if tokens > self.most
        ]
        if long:
            more = f" and {len(long) - _NAMED} more" if len(long) > _NAMED else ""
            raise InvalidProblems(
                f"{name}: {len(long)} of {len(counts)} prompts have more than "
                f"{self.most} tokens (grpo.max_prompt_tokens): {', '.join(long[:_NAMED])}{more}. "
                "Shorten or remove them, or raise the limit; `pubswap data prepare --model` leaves "
                "such prompts out."
            )
