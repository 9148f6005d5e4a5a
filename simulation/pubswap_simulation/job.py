"""A job: one run to simulate, everything that decides its result, and how to carry it out."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from pubswap_client.base_model import model_folder, tokenizer_of
from pubswap_client.recipes.runfile import Prepared, check_lengths, run_card
from pubswap_client.recipes.tables import DataFiles, Members, ModelSource, Value
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.messages import CreateRun, SetKind
from pubswap_protocol.methods.method import Method
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import given
from pubswap_simulation.plugin import load_plugin
from pubswap_simulation.results import RESULT

_SLUG = 120  # characters of a key before its digest; file systems take 255
# The members' own settings that change what is trained; the others say where and how fast.
_DECIDING = {"dtype", "holdout", "prompts_per_step", "rank", "responses_per_prompt"}
_card_of = cache(ModelSource.card)  # hashes all weights, once for a sweep's hundred jobs
_tokenizer_of = cache(tokenizer_of)


class Job(BaseModel, extra="forbid", frozen=True):
    """One run: its settings, its model, its sets, and each client's private files."""

    recipe: str
    setting: dict[str, Value] = {}
    settings: RunSettings
    model: ModelSource
    public: Path
    test: Path
    private: dict[str, tuple[Path, ...]]
    members: Members = "federated"
    client: str | None = None
    plugin: Path | None = None

    @property
    def steps(self) -> int:
        """Local steps of all clients and rounds."""
        return self.settings.rounds * self.settings.local_steps * len(self.private)

    @property
    def folder(self) -> Path:
        """The base model's folder."""
        return model_folder(self.model.location, self.model.revision)

    def title(self, without: Set[str] = frozenset()) -> str:
        """Members, setting and seed in a few words, leaving out the axes in `without`."""
        members = [] if self.members == "federated" else [self.client or self.members]
        # Sorted, because `--set` may name them in any order and a run has one folder.
        order = sorted(self.setting, key=lambda key: (key != "method", key))
        axes = [key for key in order if key != "members" and key not in without]
        setting = [f"{key}={self.setting[key]}" for key in axes]
        return " ".join([*members, *setting, f"seed={self.settings.seed}"])

    def card(self) -> ModelCard:
        """The run's card of the base model. Raises InvalidSettings if it cannot be used."""
        folder, run = self.folder, self.settings
        card = _card_of(self.model, folder, run.lora, run.grpo.longest_row)
        return run_card(card, _tokenizer_of(folder), run)

    def key(self, client_settings: ClientSettings | None = None) -> str:
        """The name of the run's folder: readable, and different for any two different runs.

        `client_settings`, shared by all members, count if they change what is trained.
        """
        card = self.card()
        facts: dict[str, object] = {
            # Without defaults, so that a setting added later does not rename a store's old runs.
            "settings": given(self.settings),
            "setting": self.setting,
            "members": [self.members, self.client],
            "model": [card.config_digest, card.tokenizer_digest, card.weights_digest],
            "sets": [_digest(path) for path in (self.public, self.test)],
            "private": {name: [_digest(p) for p in paths] for name, paths in self.private.items()},
        }
        if self.plugin is not None:
            facts["plugin"] = load_plugin(self.plugin)
        if self.model.stop_token_ids:
            facts["stops"] = list(self.model.stop_token_ids)
        if client_settings is not None and (
            deciding := client_settings.model_dump(include=_DECIDING, exclude_defaults=True)
        ):
            facts["own"] = deciding
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        words = re.sub(r"[^a-z0-9.]+", "-", f"{self.recipe} {self.title()}".lower()).strip("-")
        return f"{words[:_SLUG]}-{digest[:10]}"

    def prepared(self) -> Prepared:
        """The request that creates the run. Raises InvalidSettings or InvalidProblems."""
        sets = {SetKind.PUBLIC: self.public, SetKind.TEST: self.test}
        private = tuple(path for paths in self.private.values() for path in paths)
        for path in sets.values():
            read_problems(path)
        files = DataFiles(self.public, self.test, private)
        check_lengths(_tokenizer_of(self.folder), self.settings, files)
        try:
            settings = repeatable(self.settings)
            create = CreateRun(name=self.recipe, settings=settings, model=self.card())
        except ValidationError as error:
            raise InvalidSettings(f"{self.recipe}: {first_fault(error)}") from None
        tokenizer = (self.folder / "tokenizer.json").read_bytes()
        return Prepared(create, tokenizer, {kind: path.read_bytes() for kind, path in sets.items()})

    def problems(self, client: str) -> list[Problem]:
        """A client's private problems. Raises InvalidProblems if an id occurs in two files."""
        problems = {}
        for problem in (
            problem for path in self.private[client] for problem in read_problems(path)
        ):
            if problem.id in problems:
                raise InvalidProblems(
                    f"{client}: id {problem.id!r} occurs in two private files that are pooled; "
                    "give each problem an id of its own."
                )
            problems[problem.id] = problem
        return list(problems.values())

    def topics(self, client: str) -> dict[str, int]:
        """A client's number of problems by topic, without the public ones of `with-public`."""
        paths = [path for path in self.private[client] if path != self.public]
        problems = [problem for path in paths for problem in read_problems(path)]
        return dict(sorted(Counter(problem.topic for problem in problems).items()))


class RunSpec(BaseModel, extra="forbid", frozen=True):
    """A job, the folder of its result, and how to carry it out: the input of a sweep's process."""

    job: Job
    title: str
    folder: Path
    config: Path | None = None
    options: dict[str, int | str] = {}
    keep_work: bool = False
    keep_adapters: bool = False

    @classmethod
    def read(cls, text: str) -> Self:
        """A spec from its JSON, after its plugin, whose names its settings may have."""
        plugin = json.loads(text)["job"]["plugin"]
        if plugin is not None:
            load_plugin(Path(plugin))
        return cls.model_validate_json(text)

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return (self.folder / RESULT).exists()

    def client_settings(self) -> ClientSettings:
        """The settings that all members share. Raises InvalidSettings."""
        return load_settings(self.config, **self.options)


class JobReport(BaseModel, extra="forbid", frozen=True):
    """A run's progress; the last report of a failed run says why."""

    doing: str = ""  # what comes before training, or between its steps
    steps: int = 0  # local steps made so far, over all clients
    reward: float | None = None  # mean over the clients' last steps
    score: float | None = None  # the last pass@1
    failed: str | None = None


def wait_for_all(settings: RunSettings) -> RunSettings:
    """The settings with every quorum at all clients: as members take turns, nobody is late."""
    return settings.model_copy(
        update={
            **_with(settings, quorum=settings.clients),
            "aggregation": settings.aggregation.model_copy(update={"quorum": settings.clients}),
        }
    )


def repeatable(settings: RunSettings) -> RunSettings:
    """The settings without the sampling check, whose draws are different in every run."""
    return settings.model_copy(update=_with(settings, sampling_check="off"))


def _with(settings: RunSettings, **values: object) -> dict[str, Method]:
    """The method with other parameters of the exchange, if it has one."""
    exchange = settings.exchange
    return {"method": exchange.model_copy(update=values)} if exchange else {}


def _digest(path: Path) -> str:
    try:
        return _digest_of(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InvalidProblems(f"{path} cannot be read: {error.strerror}") from None


@cache
def _digest_of(path: Path, modified: int) -> str:
    """Cached, so that a sweep reads each file once; `modified` makes it read a changed one."""
    return sha256_of(path)
