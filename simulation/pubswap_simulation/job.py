"""A job: one run to simulate, with everything that decides what comes out of it."""

import hashlib
import json
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pubswap_client.base_model import model_folder
from pubswap_client.operator.runfile import Prepared
from pubswap_client.recipes.sets import check_lengths
from pubswap_client.recipes.sources import DataFiles, ModelSource
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.messages import CreateRun, SetKind
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.settings import LoraSettings, RunSettings
from pubswap_simulation.results import Members, Value

_SLUG = 120  # characters of a key before its digest; file systems take 255


class Job(BaseModel):
    """One run: its settings, its model, its sets, and by client the private files it trains on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    setting: dict[str, Value] = {}
    settings: RunSettings
    model: ModelSource
    public: Path
    test: Path
    private: dict[str, tuple[Path, ...]]
    members: Members = "federated"
    client: str | None = None

    @property
    def steps(self) -> int:
        """Local steps of all clients and rounds."""
        return self.settings.rounds * self.settings.local_steps * len(self.private)

    @property
    def folder(self) -> Path:
        """The base model's folder."""
        return model_folder(self.model.location, self.model.revision)

    def title(self, without: Set[str] = frozenset()) -> str:
        """What it is, in a few words; axes `without` which it is known are left out."""
        who = [] if self.members == "federated" else [self.client or self.members]
        shown = [key for key in self.setting if key != "members" and key not in without]
        setting = [f"{key}={self.setting[key]}" for key in shown]
        return " ".join([*who, *setting, f"seed={self.settings.seed}"])

    def card(self) -> ModelCard:
        """The base model's card."""
        folder, model = self.folder, self.model
        modified = tuple(path.stat().st_mtime_ns for path in sorted(folder.glob("*.*")))
        terms = (self.settings.lora, model.source, model.revision, model.stop_token_ids)
        return _card_of(folder, *terms, modified)

    def key(self) -> str:
        """The name of the run's folder: readable, and another one for anything that differs."""
        card = self.card()
        facts: dict[str, object] = {
            # A setting that did not exist when a store was begun makes no other run at its default.
            "settings": self.settings.model_dump(mode="json", exclude_defaults=True),
            "setting": self.setting,
            "members": [self.members, self.client],
            "model": [card.config_digest, card.tokenizer_digest, card.weights_digest],
            "sets": [_digest(path) for path in (self.public, self.test)],
            "private": {name: [_digest(p) for p in paths] for name, paths in self.private.items()},
        }
        if self.model.stop_token_ids:
            facts["stops"] = list(self.model.stop_token_ids)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        words = re.sub(r"[^a-z0-9.]+", "-", f"{self.recipe} {self.title()}".lower()).strip("-")
        return f"{words[:_SLUG]}-{digest[:10]}"

    def prepared(self) -> Prepared:
        """What the operator sends. Raises InvalidSettings or InvalidProblems."""
        sets = {SetKind.PUBLIC: self.public, SetKind.TEST: self.test}
        private = tuple(path for paths in self.private.values() for path in paths)
        for path in sets.values():
            read_problems(path)
        check_lengths(self.folder, self.settings, DataFiles(self.public, self.test, private))
        try:
            create = CreateRun(name=self.recipe, settings=self.settings, model=self.card())
        except ValidationError as error:
            raise InvalidSettings(f"{self.recipe}: {first_fault(error)}") from None
        tokenizer = (self.folder / "tokenizer.json").read_bytes()
        return Prepared(create, tokenizer, {kind: path.read_bytes() for kind, path in sets.items()})

    def problems(self, client: str) -> list[Problem]:
        """A client's private problems. Raises InvalidProblems if an id occurs in two files."""
        found = list(self._problems(client))
        seen: set[str] = set()
        for problem in found:
            if problem.id in seen:
                raise InvalidProblems(
                    f"{client}: id {problem.id!r} occurs in two private files that are pooled; "
                    "give each problem an id of its own."
                )
            seen.add(problem.id)
        return found

    def _problems(self, client: str) -> Iterator[Problem]:
        for path in self.private[client]:
            yield from read_problems(path)


def patient(settings: RunSettings) -> RunSettings:
    """The settings for members that take turns: nobody is ever late, so everybody is waited for."""
    return settings.model_copy(
        update={
            "swap": settings.swap.model_copy(update={"quorum": settings.clients}),
            "aggregation": settings.aggregation.model_copy(update={"quorum": settings.clients}),
        }
    )


def _digest(path: Path) -> str:
    """Read once, for however many runs; again if the file has changed."""
    try:
        found = path.stat()
        return _digest_of(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise InvalidProblems(f"{path} cannot be read: {error.strerror}") from None


@cache
def _digest_of(path: Path, modified: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _card_of(
    folder: Path,
    lora: LoraSettings,
    source: str,
    revision: str | None,
    stops: tuple[int, ...],
    modified: tuple[int, ...],
) -> ModelCard:
    return model_card(folder, lora, source, revision, stops)
