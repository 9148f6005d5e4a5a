"""How each data set asks: the one place with the words of prompts.

The paper does not print its prompts; those for mathematics are what its framework, verl, uses.
"""

from collections.abc import Mapping

from pubswap_client.data.spec import DataSpec, SourceName

BOXED = "Let's think step by step and output the final answer within \\boxed{}."
LETTER = 'Think step by step. End with a line "Answer: " and the letter of the one right option.'

INSTRUCTIONS: Mapping[SourceName, str] = {
    "math": BOXED,
    "deepmath": BOXED,
    "medical": LETTER,
    "gsm8k": BOXED,
    "jsonl": "",
    "reasoning-gym": "",
}


def ask(question: str, spec: DataSpec) -> str:
    """The whole prompt: the question, and how to answer."""
    own = INSTRUCTIONS[spec.source] if spec.instruction is None else spec.instruction
    return f"{question.strip()}\n\n{own}" if own else question.strip()


def with_options(question: str, options: Mapping[str, str]) -> str:
    """A question and its options, one a line: "A. ..."."""
    lines = [f"{letter}. {text.strip()}" for letter, text in sorted(options.items())]
    return "\n".join([question.strip(), "", *lines])
