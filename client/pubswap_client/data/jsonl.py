"""Problems of a user's own JSONL, under whatever names its columns have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pubswap_client.data.spec import DataSpec
from pubswap_client.data.templates import ask
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import check_usable


def jsonl_problems(path: Path, spec: DataSpec) -> Iterator[Problem]:
    """The problems of the file, in order; `id`, `verifier` and `metadata` are kept if it has them.

    Raises InvalidProblems, naming the line and the column, for anything that cannot be used: the
    file is the user's own, who can mend it.
    """
    topic = spec.topic_column or "topic"
    columns = {"prompt": spec.prompt_column, "answer": spec.answer_column, "topic": topic}
    seen: set[str | None] = {None}
    for number, row in _rows(path):
        where = f"{path}, line {number}"
        values = {role: _text(row, column, role, where) for role, column in columns.items()}
        values["prompt"] = ask(values["prompt"], spec)
        try:
            problem = Problem(
                id=str(row.get("id", f"line-{number}")),
                verifier=row.get("verifier", spec.verifier),
                metadata=row.get("metadata", {}),
                **values,
            )
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidProblems(f"{where}: {field}: {first['msg']}.") from None
        if problem.verifier not in seen:
            _check_verifier(str(problem.verifier), where)
            seen.add(problem.verifier)
        yield problem


def _check_verifier(name: str, where: str) -> None:
    try:
        check_usable(name)
    except InvalidSettings as error:
        raise InvalidProblems(f"{where}: verifier: {error.detail}") from None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise InvalidProblems(
                        f"from: {path}, line {number} is not JSON ({error})."
                    ) from None
                if not isinstance(row, dict):
                    raise InvalidProblems(
                        f"from: {path}, line {number} is no JSON object: a line looks like "
                        '{"prompt": "2 + 2 =", "answer": "4", "topic": "sums"}.'
                    )
                yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidProblems(f"from: {path} cannot be read: {error}.") from None


def _text(row: dict[str, Any], column: str, role: str, where: str) -> str:
    if column not in row:
        raise InvalidProblems(
            f"{role}_column: {where} has no column {column!r}. It has {', '.join(row) or 'none'}; "
            f"name one with --{role}-column."
        )
    value = row[column]
    # An answer may be a number in the file; what is compared with a response is its text.
    if isinstance(value, int | float) and not isinstance(value, bool) and role != "prompt":
        value = json.dumps(value)
    if not isinstance(value, str) or not value.strip():
        raise InvalidProblems(f"{where}: {column}: must be a text that is not empty.")
    return value.strip()
