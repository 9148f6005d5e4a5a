"""Create a run from an existing one, with its base model and problem sets but other settings."""

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.keys import dotted_keys, fault_lines, flat, spelled
from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import CreateRun, Digest, RunState
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import given
from pubswap_server.database.tables import RunRow, SetRow
from pubswap_server.runs import runs

# Settings that the model's card depends on: the adapter's shapes, and what a prompt's tokens are.
OF_THE_MODEL = ("lora.rank", "lora.target_modules", "chat_template", "system_prompt", "few_shot")
# Keys of a run file that are ignored here, because the model and the problem sets stay.
IGNORED_KEYS = ("about", "data", "extends", "model", "sweep", "total_steps")


@dataclass(frozen=True)
class NewRun:
    """A run to create, and what a person should know first.

    `changed`: each setting that differs from the existing run's, with the old and the new value.
    `ignored`: keys of the file that have no effect.
    """

    request: CreateRun
    changed: dict[str, tuple[Any, Any]]
    ignored: tuple[str, ...]


def run_file(run: RunRow) -> str:
    """The run as a run file: the settings that differ from the defaults, and a new name if the
    run is not a draft.
    """
    values = spelled(flat(given(run.settings)))
    lines = [f"{key} = {value_text(value)}" for key, value in values.items()]
    name = run.name if run.state == RunState.CREATED else f"{run.name[:61]}-2"
    return "\n".join([f"name = {value_text(name)}", *lines, ""])


def read_new_run(run: RunRow, text: str) -> NewRun:
    """Parse and check a run file; this may take a while.

    Raises InvalidSettings with a line for each fault, worded as in `pubswap recipe check`, or
    for a key that can only be checked against the model's own files.
    """
    try:
        values = tomllib.loads(text)
        ignored = tuple(key for key in IGNORED_KEYS if values.pop(key, None) is not None)
        name = values.pop("name", None)
        encoded = json.dumps(values, default=str)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"The file is not TOML: {error}") from None
    if name is None:
        raise InvalidSettings('The file has no name; add a line such as: name = "second-try"')
    try:
        settings = RunSettings.model_validate_json(encoded)
        request = CreateRun(name=name, settings=settings, model=run.model)
    except ValidationError as error:
        faults = fault_lines(error.errors(), dotted_keys(RunSettings))
        raise InvalidSettings("\n".join(faults)) from None
    _check_model_fits(run.settings, settings)
    both = (run.settings, settings)
    current, proposed = (flat(each.model_dump(mode="json")) for each in both)
    pairs = {key: (current.get(key), proposed.get(key)) for key in [*current, *proposed]}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    return NewRun(request, changed, ignored)


def _check_model_fits(old: RunSettings, new: RunSettings) -> None:
    """Refuse changes that need the model's files, because only `pubswap run create` has them."""
    command = "use `pubswap run create` or `pubswap model card`, which read the model's files"
    before, after = (flat(each.model_dump(mode="json")) for each in (old, new))
    for key in (key for key in {**before, **after} if key.startswith(OF_THE_MODEL)):
        if before.get(key) != after.get(key):
            raise InvalidSettings(f"{key} cannot be changed here; {command}.")
    if new.grpo.longest_row > old.grpo.longest_row:
        raise InvalidSettings(
            f"A prompt and its response would have up to {new.grpo.longest_row} tokens, more than "
            f"the {old.grpo.longest_row} that the model was checked for; {command}."
        )


def create_open(
    session: Session, run: RunRow, new: NewRun, initial: Digest, key: str | None
) -> str:
    """Create the run with the existing run's tokenizer and sets, open it, and return its id.

    Only once for each key, because a button may be clicked twice. Raises NameTaken, WrongState,
    InvalidProblems, or IdempotencyMismatch if the key was used for another run.
    """
    created = runs.create(session, new.request, key)
    if created.state != RunState.CREATED:
        return created.id
    created.tokenizer = run.tokenizer
    for kind, stored in runs.sets_of(session, run).items():
        session.add(
            SetRow(run_id=created.id, kind=kind, digest=stored.digest, problems=stored.problems)
        )
    session.flush()
    runs.check_complete(session, created)
    runs.open_run(session, created, initial)
    return created.id
