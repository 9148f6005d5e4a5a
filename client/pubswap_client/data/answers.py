r"""Whether a problem's verifier reads the problem's own answer: if not, its rewards are wrong.

An answer such as "B. Paris" for `choice`, or a reasoning-gym problem without its metadata, is read
without a complaint and costs its share of every step's rollout for nothing. That a verifier takes
an answer for itself shows little: it must take it in other words, and refuse a fragment of it.
"""

from collections.abc import Callable, Sequence

from pubswap_client.data.examples import MOST_FAULTS, Tally
from pubswap_client.data.rewriting import right_response, wrong_response
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem

Score = Callable[[str, Sequence[tuple[str, Problem]]], list[float]]

UNREAD = "answer: not read by its own verifier"

# From so many on a share tells something.
_ENOUGH = 256


def unread(problems: Sequence[Problem], default: str | None, score: Score) -> list[Problem]:
    """The problems whose verifier, or else `default`, misreads their own answer."""
    cases: list[tuple[str, Problem]] = []
    expected: list[float] = []
    for problem in problems:
        verifier = problem.verifier or default or "exact"
        right, wrong = (
            respond(verifier, problem.answer) for respond in (right_response, wrong_response)
        )
        cases.append((str(right), problem))
        expected.append(1.0)
        if wrong is not None:
            cases.append((wrong, problem))
            expected.append(0.0)
    rewards = score(default or "exact", cases)
    misread = {
        problem.id
        for (_, problem), reward, due in zip(cases, rewards, expected, strict=True)
        if reward != due
    }
    return [problem for problem in problems if problem.id in misread]


class OwnAnswers:
    """Keeps the problems whose own answer is read, and gives up when too many are not."""

    def __init__(self, score: Score, tally: Tally) -> None:
        """What is not read is counted in `tally`."""
        self._score = score
        self._tally = tally
        self._checked = 0
        self._unread: list[Problem] = []

    def accepted(self, problems: Sequence[Problem]) -> list[Problem]:
        """Those that can be rewarded, or whose verifier is the run's to say.

        Raises InvalidProblems as soon as it is plain that these answers are of another kind.
        """
        known = [problem for problem in problems if problem.verifier is not None]
        wrong = unread(known, None, self._score)
        for problem in wrong:
            self._tally.add(f"{UNREAD}, {problem.verifier}", problem.id)
        self._checked += len(problems)
        self._unread += wrong
        if self._checked >= _ENOUGH:
            self.finish()
        bad = {problem.id for problem in wrong}
        return [problem for problem in problems if problem.id not in bad]

    def finish(self) -> None:
        """Raises InvalidProblems if more than 5 % were not read."""
        if len(self._unread) > MOST_FAULTS * self._checked:
            first = self._unread[0]
            raise InvalidProblems(
                f"answer: {len(self._unread)} of {self._checked} are not read by their own "
                f"verifier, such as {first.answer[:80]!r} of {first.id} by {first.verifier}. No "
                "response to them could be rewarded."
            )
