r"""`math-verify`: equal according to the library alone, for figures to hold against other people's.

The response is parsed and compared as by `accuracy_reward` of TRL (trl/rewards/accuracy_rewards.py)
with none of the rules of `math`. So the library's errors are rewarded: 27 - 8 equals 19.
"""

import logging
from functools import lru_cache
from typing import Any

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import first_of
from pubswap_protocol.verifiers.verifier import VERIFIERS, Mathematical


@VERIFIERS.register
class MathVerify(Mathematical):
    r"""Correct if the library finds the last \boxed{...} or stated formula equal to the answer.

    An answer that the library cannot read is never matched; TRL leaves such problems out.
    """

    name = "math-verify"
    library = "math-verify"

    def score(self, response: str, problem: Problem) -> float:
        from math_verify import LatexExtractionConfig, parse, verify
        from math_verify.parser import NormalizationConfig

        text = first_of(response, lambda whole: whole)
        gold = _gold(problem.answer)
        if text is None or not gold:
            return 0.0
        reading = LatexExtractionConfig(
            normalization_config=NormalizationConfig(units=True),
            boxed_match_priority=0,
            try_extract_without_anchor=False,
        )
        answer = parse(text, [reading], extraction_mode="first_match", parsing_timeout=None)
        return float(verify(gold, answer, timeout_seconds=None))


@lru_cache(maxsize=256)  # the responses of a group share their gold
def _gold(answer: str) -> list[Any]:
    from math_verify import parse

    # It warns at every call that its timeout is off; the pool has one.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Outside of a formula it reads 2 in 2\sqrt{3}.
    bare = "$" not in answer and r"\boxed" not in answer
    return list(parse(f"\\boxed{{{answer}}}" if bare else answer, parsing_timeout=None))
