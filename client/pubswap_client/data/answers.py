r"""Whether a problem's own answer is one that its verifier takes: if not, no response can be right.

An answer such as "B. Paris" for `choice`, or a reasoning-gym problem without its metadata, is read
without a complaint and costs its share of every step's rollout for nothing.
"""

from collections.abc import Callable, Sequence

from pubswap_client.data.examples import MOST_FAULTS, Tally
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

Score = Callable[[str, Sequence[tuple[str, Problem]]], list[float]]

# From so many on a share tells something.
_ENOUGH = 256


def responses_for(verifier: str, answer: str) -> tuple[str, str]:
    r"""Two responses that a verifier takes for an answer, if it can be taken at all."""
    tagged, stated = f"<answer>{answer}</answer>", f"Answer: {answer}"
    if verifier == "math":
        return (answer if "\\boxed" in answer else f"\\boxed{{{answer.strip('$ ')}}}"), stated
    return (stated, tagged) if verifier in ("exact", "choice") else (tagged, stated)


def refused(problems: Sequence[Problem], default: str | None, score: Score) -> list[Problem]:
    """The problems whose verifier, or else `default`, does not take their own answer."""
    left = list(problems)
    for form in (0, 1):
        cases = [
            (responses_for(problem.verifier or default or "exact", problem.answer)[form], problem)
            for problem in left
        ]
        rewards = score(default or "exact", cases)
        left = [problem for problem, reward in zip(left, rewards, strict=True) if reward < 1]
    return left


class OwnAnswers:
    """Keeps the problems whose own answer is accepted, and gives up when too many are not."""

    def __init__(self, score: Score, tally: Tally) -> None:
        """What is refused is counted in `tally`."""
        self._score = score
        self._tally = tally
        self._checked = 0
        self._refused: list[Problem] = []

    def accepted(self, problems: Sequence[Problem]) -> list[Problem]:
        """Those that can be rewarded, or whose verifier is the run's to say.

        Raises InvalidProblems as soon as it is plain that these answers are of another kind.
        """
        known = [problem for problem in problems if problem.verifier is not None]
        wrong = refused(known, None, self._score)
        for problem in wrong:
            reason = f"answer: not accepted by its own verifier, {problem.verifier}"
            self._tally.add(reason, problem.id)
        self._checked += len(problems)
        self._refused += wrong
        if self._checked >= _ENOUGH:
            self.finish()
        bad = {problem.id for problem in wrong}
        return [problem for problem in problems if problem.id not in bad]

    def finish(self) -> None:
        """Raises InvalidProblems if more than 5 % were refused."""
        if len(self._refused) > MOST_FAULTS * self._checked:
            first = self._refused[0]
            raise InvalidProblems(
                f"answer: {len(self._refused)} of {self._checked} are not accepted by their own "
                f"verifier, such as {first.answer[:80]!r} of {first.id} by {first.verifier}. No "
                "response to them could be rewarded."
            )
