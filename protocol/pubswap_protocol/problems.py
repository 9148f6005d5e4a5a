"""Problems: prompts with checkable answers. Private, public and test sets are JSONL of these."""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic.config import ExtraValues

from pubswap_protocol.bounds import (
    MAX_TOPIC_BYTES,
    MAX_TOPICS,
    VALUE_LIMITS,
    Label,
    Strict,
    Topic,
    too_many_values,
)
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.command_line.formats import HEAD, format_of, not_jsonl
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidProblems, fault_text
from pubswap_protocol.prompts import MAX_TEXT, Prompt, question_of, text_of

_MAX_PLAIN, _MAX_EXPONENT = 20, 6  # characters of a number without an exponent, and of one
_FIGURE = 25  # bytes of a topic's pass@1 in JSON: at most 23 characters, a colon and a comma
MAX_LINE = 1 << 24  # characters: JSON escapes may lengthen a prompt and an answer six times

_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and symbols without ink


class Problem(Strict):
    """One line of a problem file."""

    id: str = Field(min_length=1, max_length=200)
    prompt: Prompt = Field(description="Text, or messages that end with the user's.")
    answer: str = Field(min_length=1, max_length=MAX_TEXT)
    topic: Topic = "all"
    verifier: Label | None = Field(default=None, description="Overrides the run's verifier.")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="What the verifier needs besides the answer."
    )

    @property
    def text(self) -> str:
        """The prompt as one text."""
        return text_of(self.prompt)

    @property
    def question(self) -> str:
        """What the user says in the prompt."""
        return question_of(self.prompt)


class _Numeral(str):
    """A number of a JSON text, as it is written there."""


def numerals(line: str, keys: Collection[str]) -> dict[str, str]:
    """The numbers and booleans under these keys of a JSON object, as text.

    Nothing is lost: 1.50 keeps its zero, and 0.1234567890123456789 its digits. Exponents are
    written out, 3e-05 as 0.00003, as responses have them; very large or small numbers keep theirs.
    """
    row = json.loads(line, parse_int=_Numeral, parse_float=_Numeral)
    return {key: as_written(row[key]) for key in keys if isinstance(row.get(key), _Numeral | bool)}


def as_written(number: str | bool) -> str:
    """A number or boolean of a table as an answer's text."""
    if isinstance(number, bool):
        return json.dumps(number)
    mantissa, power, exponent = number.lower().partition("e")
    if not power or len(exponent) > _MAX_EXPONENT:
        return str(number)
    if abs(int(exponent)) <= _MAX_PLAIN:
        plain = f"{Decimal(mantissa).scaleb(int(exponent)):f}"
        if len(plain) <= _MAX_PLAIN:
            return plain
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{int(exponent)}"


def _read(line: str, extra: ExtraValues | None) -> Problem:
    """The problem of a line, whose id, answer and topic may be numbers."""
    try:
        return Problem.model_validate_json(line, extra=extra)
    except ValidationError as error:
        if error.errors()[0]["type"] != "string_type":
            raise
        try:
            row = json.loads(line) | numerals(line, ("id", "answer", "topic"))
        except ValueError:  # an integer of thousands of digits
            raise error from None
    return Problem.model_validate_json(json.dumps(row), extra=extra)


def parse_problem(line: str, where: str, extra: ExtraValues | None = None) -> Problem:
    """The problem of one JSONL line; raises InvalidProblems, whose text begins with `where`."""
    if not line.strip():
        raise InvalidProblems(f"{where}: the line is empty; remove it.")
    if len(line) > MAX_LINE:
        raise InvalidProblems(
            f"{where}: the line has {len(line):,} characters; at most {MAX_LINE:,} are allowed. "
            "Shorten the problem, or remove it."
        )
    if too_many_values(line.encode()):
        raise InvalidProblems(
            f"{where}: the line has more than {VALUE_LIMITS}; shorten its metadata."
        )
    try:
        problem = _read(line, extra)
    except ValidationError as error:
        fault = error.errors()[0]
        advice = 'A line looks like {"id": "1", "prompt": "2 + 2 =", "answer": "4"}.'
        if fault["type"] == "extra_forbidden":
            advice = "Move further fields into `metadata`."
        raise InvalidProblems(f"{where}: {fault_text(fault)}. {advice}") from None
    # A set that a coordinator has accepted already is read as it is.
    if extra != "ignore" and is_blank(problem.answer):
        raise InvalidProblems(f"{where}: answer: it is blank. Add the answer, or remove the line.")
    return problem


def is_blank(answer: str) -> bool:
    """Whether an answer has nothing to see: white space, invisible signs, or an empty formula."""
    bare = re.sub(r"[\s$]|\\[()\[\]]", "", answer)
    return all(unicodedata.category(s) in ("Cc", "Cf") or s in _FILLERS for s in bare)


def read_set(
    data: bytes, source: str = "the problem set", extra: ExtraValues | None = None
) -> list[Problem]:
    """The problems of a stored set's bytes, as everybody reads them.

    Raises what `parse_problems` raises, and InvalidProblems for bytes that are not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidProblems(f"{source} is not UTF-8 text.") from None
    return parse_problems(text, source, extra)


def parse_problems(
    text: str, source: str = "the problem set", extra: ExtraValues | None = None
) -> list[Problem]:
    """Problems from JSONL, in order.

    Raises InvalidProblems, naming the line, for an empty line before another, a missing field, an
    unknown field unless `extra` is "ignore", text that is not JSON, or a repeated id.
    """
    # Split at newlines only, because JSON may contain other separators, such as U+2028.
    return _problems(_numbered(StringIO(text)), source, extra)


def _problems(
    lines: Iterable[tuple[int, str]], source: str, extra: ExtraValues | None = None
) -> list[Problem]:
    problems: dict[str, Problem] = {}
    for number, line in lines:
        problem = parse_problem(line, f"{source}, line {number}", extra)
        if problem.id in problems:
            raise InvalidProblems(f"{source}, line {number}: id {problem.id!r} occurs twice.")
        problems[problem.id] = problem
    return list(problems.values())


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1, without empty ones at the end."""
    empty: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        if number == 1:  # editors on Windows put a byte-order mark first
            line = line.removeprefix("\ufeff")
        if not line.strip():
            empty.append((number, line))
            continue
        yield from empty
        empty.clear()
        yield number, line


def check_topics(problems: Iterable[Problem], source: str) -> None:
    """Raises InvalidProblems if a test set has more topics than an evaluation may report.

    Also if their names are so long that an evaluation would be no valid request.
    """
    topics = {problem.topic for problem in problems}
    if (count := len(topics)) > MAX_TOPICS:
        raise InvalidProblems(
            f"{source} has {count} topics, and an evaluation reports at most {MAX_TOPICS}; "
            "give several problems the same topic."
        )
    texts = (json.dumps(topic, ensure_ascii=False) for topic in topics)
    if (size := sum(len(text.encode()) + _FIGURE for text in texts)) > MAX_TOPIC_BYTES:
        raise InvalidProblems(
            f"{source} has {count} topics, which take {size:,} bytes with their figures; an "
            f"evaluation has room for {MAX_TOPIC_BYTES:,}. Give them shorter names, or several "
            "problems the same topic."
        )


def read_jsonl(path: Path) -> Iterator[tuple[int, str]]:
    """A JSONL file's lines with their numbers, without empty ones at the end, one in memory.

    Raises InvalidProblems if the file cannot be read or has another format.
    """
    try:
        with path.open("rb") as file:
            if found := format_of(file.peek(HEAD), path):
                raise InvalidProblems(not_jsonl(path, found))
            yield from _numbered(_decoded(line, n, path) for n, line in enumerate(file, start=1))
    except OSError as error:
        raise InvalidProblems(
            f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from None


def _decoded(line: bytes, number: int, path: Path) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidProblems(
            f"{path} cannot be read: line {number} is not UTF-8. Save the file as UTF-8."
        ) from None


def read_problems(path: Path) -> list[Problem]:
    """The problems of a JSONL file; raises InvalidProblems if it has none or an unusable one."""
    problems = _problems(read_jsonl(path), str(path))
    if not problems:
        raise InvalidProblems(f"{path} has no problems.")
    return problems


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems as JSONL, without the fields that have their defaults."""
    path.write_bytes(problem_lines(problems))


def problem_lines(problems: Iterable[Problem]) -> bytes:
    """Problems as the bytes of a JSONL file, without the fields that have their defaults."""
    lines = [problem.model_dump_json(exclude_defaults=True) + "\n" for problem in problems]
    return "".join(lines).encode()


def prompts_digest(problems: Iterable[Problem]) -> str:
    """The digest of ids and prompts in their order, which a schedule's draws depend on."""
    prompts = (
        (problem.id, problem.model_dump(mode="json", include={"prompt"})["prompt"])
        for problem in problems
    )
    return digest_of(json.dumps([*prompts]).encode())


@dataclass(frozen=True)
class PromptLimit:
    """The maximum number of tokens in a prompt (`grpo.max_prompt_tokens`), and how to count them.

    Checked before a run begins, because no step can leave a prompt out.
    """

    max_tokens: int
    count: Callable[[Prompt], int]

    def tokens(self, problem: Problem, where: str) -> int:
        """The tokens of a problem's prompt; raises InvalidProblems, saying where it stands."""
        try:
            return self.count(problem.prompt)
        except InvalidProblems as error:
            raise InvalidProblems(f"{where} ({problem.id}): {error.detail}") from None

    def check(self, problems: Iterable[Problem], name: str) -> None:
        """Raises InvalidProblems with the lines, ids and lengths of prompts that are too long.

        Also for the first one that the run or its tokenizer cannot take.
        """
        counts = [
            (line, problem.id, self.tokens(problem, f"{name}, line {line}"))
            for line, problem in enumerate(problems, start=1)
        ]
        long = [
            f"line {line} ({id_}: {tokens} tokens)"
            for line, id_, tokens in counts
            if tokens > self.max_tokens
        ]
        if long:
            raise InvalidProblems(
                f"{name}: {len(long)} of {len(counts)} prompts have more than "
                f"{self.max_tokens} tokens (grpo.max_prompt_tokens): "
                f"{first_few(long)}. "
                "Shorten or remove them, or raise the limit; `data.prepare` of a run file leaves "
                "such prompts out."
            )
