"""Where a response's answer is."""

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_LINE = re.compile(r"answer\s*(?:is)?\s*:\s*(.*)", re.IGNORECASE)


def extract_answer(text: str) -> str:
    r"""The last <answer>...</answer>, else the rest of the last line with "Answer:", else the last
    \boxed{...}, else the last line that is not empty; "" if there is none.
    """
    if tagged := _TAGGED.findall(text):
        return str(tagged[-1]).strip()
    if lines := _LINE.findall(text):
        return str(lines[-1]).strip()
    if (boxed := last_boxed(text)) is not None:
        return boxed.strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} whose braces balance, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None
