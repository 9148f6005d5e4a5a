"""A run in one TOML file: which model, which sets, and what differs from the paper's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pubswap_client.api import CoordinatorClient
from pubswap_client.models import model_folder
from pubswap_client.settings import first_error, read_toml
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import CreateRun, RunView, SetKind
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import read_problems
from pubswap_protocol.settings import RunSettings


class ModelSource(BaseModel):
    """`[model]`: a hub id with its revision, or a local folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    revision: str | None = None


class DataFiles(BaseModel):
    """`[data]`: the public set and the held-out test set, as JSONL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    public: Path
    test: Path


class RunFile(RunSettings):
    """The whole file: a name, `[model]`, `[data]`, and the run's settings at the top level."""

    name: str
    model: ModelSource
    data: DataFiles

    def settings(self) -> RunSettings:
        """The part of the file that every member sees."""
        return RunSettings(**{name: getattr(self, name) for name in RunSettings.model_fields})


@dataclass(frozen=True)
class Prepared:
    """A run file with its files found and read."""

    create: CreateRun
    tokenizer: bytes
    sets: dict[SetKind, bytes]


def load_run_file(path: Path, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """The file, validated; `overrides` maps dotted keys to values.

    Raises InvalidSettings with the key that is wrong.
    """
    values = read_toml(path)
    for key, value in (overrides or {}).items():
        target = values
        *tables, last = key.split(".")
        for table in tables:
            target = target.setdefault(table, {})
        target[last] = value
    try:
        return RunFile(**values)
    except ValidationError as error:
        raise InvalidSettings(f"{path}: {first_error(error)}") from None


def prepare(run_file: RunFile, base: Path) -> Prepared:
    """Read the model's card and the sets; relative paths are relative to `base`.

    Raises InvalidSettings or InvalidProblems before anything is sent.
    """
    local = base / run_file.model.source
    source = str(local) if local.is_dir() else run_file.model.source
    folder = model_folder(source, run_file.model.revision)
    settings = run_file.settings()
    card = model_card(folder, settings.lora, run_file.model.source, run_file.model.revision)
    sets = {}
    for kind, path in ((SetKind.PUBLIC, run_file.data.public), (SetKind.TEST, run_file.data.test)):
        read_problems(base / path)
        sets[kind] = (base / path).read_bytes()
    create = CreateRun(name=run_file.name, settings=settings, model=card)
    return Prepared(create, (folder / "tokenizer.json").read_bytes(), sets)


def create_and_open(api: CoordinatorClient, prepared: Prepared) -> RunView:
    """Create the run, send its tokenizer and sets, and open it for members."""
    run = api.create_run(prepared.create)
    api.put_tokenizer(run.id, prepared.tokenizer)
    for kind, data in prepared.sets.items():
        api.put_set(run.id, kind, data)
    return api.move_run(run.id, paths.RUN_OPEN)
