"""From a recipe to jobs: one for each setting and seed; of `alone`, one for each client."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubswap_client.base_model import model_folder, prompt_limit
from pubswap_client.data.prepare import prepare
from pubswap_client.recipes.inheritance import key_and_text, value_of
from pubswap_client.recipes.recipe import Recipe, load_recipe
from pubswap_client.recipes.sweep import MEMBERS, Sweep
from pubswap_client.settings import load_settings
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.job import Job, patient
from pubswap_simulation.order import RunSpec
from pubswap_simulation.results import RUNS, Members, Value

DATA = "data"
POOLED = "pooled"

# Settings about several clients are nothing to one by itself: left at their defaults, so that a
# baseline is one run whatever a sweep varies of them.
_AMONG_MANY = ("swap", "fedprox", "aggregation")

Setting = dict[str, Value]


class Planner:
    """Makes the jobs of one recipe, and the splits that they need."""

    def __init__(self, source: Path | str, store: Path, given: Setting) -> None:
        """A recipe with values `given` beside it, by dotted key, for a results store."""
        self._source = source
        self._store = store
        self._given = given
        self._splits: dict[str, Path] = {}

    def one(self, seed: int | None) -> list[Job]:
        """The recipe as it is; with `alone` given, one for each client."""
        return list(self._jobs({}, seed))

    def sweep(self, seeds: Sequence[int], vary: Mapping[str, tuple[Value, ...]]) -> list[Job]:
        """All settings and seeds: the recipe's own, unless other seeds are given.

        Each of the recipe's settings is taken with each of the axes' values in `vary`. Seeds are
        outermost, so that a sweep that is cut short has compared what it has.
        """
        own = load_recipe(self._source, _without_members(self._given)).sweep
        more = list(Sweep(grid=(dict(vary),) if vary else ()).settings())
        settings = [setting | varied for setting in own.settings() for varied in more]
        # A recipe that names no seeds for its sweep has one of its own.
        its_own = own.seeds if "seeds" in own.model_fields_set else (None,)
        jobs: dict[str, Job] = {}
        for seed in seeds or its_own:
            for setting in settings:
                jobs |= {job.key(): job for job in self._jobs(setting, seed)}
        return list(jobs.values())

    def _jobs(self, setting: Setting, seed: int | None) -> Iterator[Job]:
        setting = self._given | setting
        values: dict[str, Any] = _without_members(setting)
        if seed is not None:
            values["seed"] = seed
        recipe = load_recipe(self._source, values)
        job = self._federated(recipe, {k: v for k, v in setting.items() if k != "seed"})
        members = setting.get(MEMBERS, "federated")
        if members == "federated":
            yield job
        elif members == "pooled":
            everything = tuple(path for paths in job.private.values() for path in paths)
            yield _by_itself(job, "pooled", None, {POOLED: everything})
        elif members == "alone":
            for name, paths in job.private.items():
                yield _by_itself(job, "alone", name, {name: paths})
        else:
            raise InvalidSettings(f"members: federated, alone or pooled, not {members!r}.")

    def _federated(self, recipe: Recipe, setting: Setting) -> Job:
        settings = recipe.run_settings
        files = recipe.data.files(settings.clients, self._prepared(recipe))
        if len(files.private) != settings.clients:
            raise InvalidSettings(
                f"data.private: {len(files.private)} files for {settings.clients} clients; a "
                "simulation needs one for each."
            )
        return Job(
            recipe=recipe.name,
            setting=setting,
            settings=patient(settings),
            model=recipe.model,
            public=files.public.resolve(),
            test=files.test.resolve(),
            private={
                f"client-{number}": (path.resolve(),)
                for number, path in enumerate(files.private, start=1)
            },
        )

    def _prepared(self, recipe: Recipe) -> Path | None:
        """The split that the recipe describes, in the store; made when it is first needed."""
        spec = recipe.data.prepare
        if spec is None:
            return None
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]
        if digest not in self._splits:
            folder, limit = self._store / DATA / digest, None
            if not folder.exists():
                model = model_folder(recipe.model.location, recipe.model.revision)
                limit = prompt_limit(model, recipe.run_settings)
            self._splits[digest] = prepare(spec, folder, limit)
        return self._splits[digest]


def _by_itself(
    job: Job, members: Members, client: str | None, private: dict[str, tuple[Path, ...]]
) -> Job:
    """A baseline with the same total steps: one client, and nobody to exchange with."""
    unused = {name: type(getattr(job.settings, name))() for name in _AMONG_MANY}
    settings = job.settings.model_copy(update={"clients": 1, "method": "fedavg", **unused})
    setting = {key: value for key, value in job.setting.items() if not _about_many(key)}
    update = {
        "setting": setting,
        "settings": settings,
        "private": private,
        "members": members,
        "client": client,
    }
    return job.model_copy(update=update)


def _about_many(key: str) -> bool:
    return key == "method" or key.split(".")[0] in _AMONG_MANY


def _without_members(setting: Setting) -> Setting:
    return {key: value for key, value in setting.items() if key != MEMBERS}


def parse_given(texts: Iterable[str]) -> dict[str, Value]:
    """KEY=VALUE, each key once. Raises InvalidSettings."""
    return {key: _plain(text) for key, text in map(key_and_text, texts)}


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """KEY=VALUE,VALUE,... Raises InvalidSettings."""
    return {key: tuple(map(_plain, text.split(","))) for key, text in map(key_and_text, texts)}


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """0-4, or 0,3,7, or both; nothing for None. Raises InvalidSettings."""
    seeds: list[int] = []
    for part in text.split(",") if text is not None else ():
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None:
            raise InvalidSettings(f"--seeds {text}: give them as 0-4, or 0,3,7.")
        first = int(found[1])
        seeds += range(first, int(found[2] or first) + 1)
    return tuple(dict.fromkeys(seeds))


def _plain(text: str) -> Value:
    """A number, a truth value or text: what an axis of a result can be."""
    value = value_of(text.strip())
    return value if isinstance(value, bool | int | float | str) else text.strip()


@dataclass(frozen=True)
class Wanted:
    """What `pubswap simulate` was given."""

    recipe: str
    store: Path
    given: tuple[str, ...]
    seed: int | None
    sweep: bool
    vary: tuple[str, ...]
    seeds: str | None
    config: Path | None
    options: Mapping[str, str | int | None]
    keep_work: bool
    keep_adapters: bool


def wanted_orders(wanted: Wanted) -> list[RunSpec]:
    """One order for each run. Raises InvalidSettings or InvalidProblems before any begins."""
    planner = Planner(wanted.recipe, wanted.store, parse_given(wanted.given))
    if not wanted.sweep:
        if wanted.vary or wanted.seeds is not None:
            raise InvalidSettings("--vary and --seeds are for --sweep; use --set and --seed.")
        jobs = planner.one(wanted.seed)
    else:
        seeds = parse_seeds(wanted.seeds) or (() if wanted.seed is None else (wanted.seed,))
        jobs = planner.sweep(seeds, parse_axes(wanted.vary))
    options = {key: value for key, value in wanted.options.items() if value is not None}
    load_settings(wanted.config, **options)  # refused now rather than by each run
    common = _common(jobs)
    return [
        RunSpec(
            job=job,
            title=job.title(without=common),
            folder=(wanted.store / RUNS / job.key()).resolve(),
            config=wanted.config,
            options=options,
            keep_work=wanted.keep_work,
            keep_adapters=wanted.keep_adapters,
        )
        for job in jobs
    ]


def _common(jobs: Sequence[Job]) -> set[str]:
    """The axes on which all jobs have the same value."""
    values: dict[str, set[str]] = {}
    for job in jobs:
        for key, value in job.setting.items():
            values.setdefault(key, set()).add(repr(value))
    return {key for key, found in values.items() if len(found) == 1}
