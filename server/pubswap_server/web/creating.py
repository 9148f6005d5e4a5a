"""A new run from one that is there: its base model and problem sets, with other settings."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import CreateRun, Digest
from pubswap_protocol.settings import RunSettings, every_value
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.runs import runs

# What a run file says about things that stay as they are.
KEPT = ("about", "data", "extends", "model", "sweep", "total_steps")


@dataclass(frozen=True)
class Wish:
    """A run to create, and what a person should know first.

    `changed`: each setting that differs from the other run's, with its value there and here.
    `ignored`: tables of the file that change nothing.
    """

    request: CreateRun
    changed: dict[str, tuple[Any, Any]]
    ignored: tuple[str, ...]


def run_file(run: RunRow) -> str:
    """The run as a file: its name, and the settings that differ from the defaults."""
    values = runs.settings_of(run).model_dump(mode="json", exclude_defaults=True)
    # Not in ASCII: TOML has no halves of a character such as JSON's \ud83d\ude00.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in flat(values)]
    return "\n".join([f"name = {json.dumps(f'{run.name}-2'[-63:])}", *lines, ""])


def read_wish(run: RunRow, text: str) -> Wish:
    """The run that the file asks for.

    Raises InvalidSettings with the key that is wrong, or that needs the model's own files.
    """
    try:
        values = tomllib.loads(text)
        ignored = tuple(key for key in KEPT if values.pop(key, None) is not None)
        name = values.pop("name", None)
        given = json.dumps(values, default=str)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"The file is not TOML: {error}") from None
    if name is None:
        raise InvalidSettings('The file has no name; add a line such as: name = "second-try"')
    try:
        settings = RunSettings.model_validate_json(given)
        request = CreateRun(name=name, settings=settings, model=runs.model_of(run))
    except ValidationError as error:
        raise InvalidSettings(first_fault(error)) from None
    _check_model_fits(runs.settings_of(run), settings)
    before, after = (dict(flat(every_value(each))) for each in (runs.settings_of(run), settings))
    pairs = {key: (before.get(key), after.get(key)) for key in [*before, *after]}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    return Wish(request, changed, ignored)


def _check_model_fits(old: RunSettings, new: RunSettings) -> None:
    """The model's files are with the operator's commands alone, which check all of these."""
    command = "use `pubswap run create`, which reads the model's files"
    for key in ("rank", "target_modules"):
        if getattr(old.lora, key) != getattr(new.lora, key):
            raise InvalidSettings(f"lora.{key} cannot be changed here; {command}.")
    if new.grpo.longest_row > old.grpo.longest_row:
        raise InvalidSettings(
            f"A prompt and its response would have up to {new.grpo.longest_row} tokens, more than "
            f"the {old.grpo.longest_row} that the model was checked for; {command}."
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values in tables as values by dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def create_open(session: Session, run: RunRow, wish: Wish, initial: Digest) -> str:
    """Create the run with the other's tokenizer and sets, and open it; its id.

    Raises NameTaken, WrongState or InvalidProblems.
    """
    created = runs.create(session, wish.request)
    created.tokenizer = run.tokenizer
    for kind, stored in runs.sets_of(session, run).items():
        session.add(
            SetRow(run_id=created.id, kind=kind, digest=stored.digest, problems=stored.problems)
        )
    session.flush()
    runs.check_complete(session, created)
    runs.open_run(session, created, initial)
    return created.id
