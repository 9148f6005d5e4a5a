r"""Whether a problem's own answer is one that its verifier takes: if not, no response can be right.

An answer such as "B. Paris" for `choice`, or a reasoning-gym problem without its metadata, is read
without a complaint and costs its share of every step's rollout for nothing.
"""

from collections.abc import Callable, Sequence

from pubswap_protocol.problems import Problem

Score = Callable[[str, Sequence[tuple[str, Problem]]], list[float]]


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
