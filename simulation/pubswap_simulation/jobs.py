"""From a recipe to its jobs: one for each setting and seed; for `alone`, one for each client."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pubswap_client.base_model import model_folder, prompt_limit
from pubswap_client.data.prepare import prepare
from pubswap_client.recipes.inheritance import key_and_text, value_of
from pubswap_client.recipes.recipe import Recipe, read_recipe
from pubswap_client.recipes.tables import MEMBERS, MEMBERSHIPS, Members, Sweep, Value
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.methods.method import FedAvg
from pubswap_protocol.settings import AggregationSettings
from pubswap_simulation.job import Job, RunSpec, wait_for_all
from pubswap_simulation.plugin import load_plugin
from pubswap_simulation.results import RUNS

DATA = "data"

# These settings mean nothing to a single client. Baselines keep their defaults, so that a sweep
# over them does not repeat a baseline.
_AMONG_MANY = ("method", "aggregation")

Setting = dict[str, Value]


class Planner:
    """Make the jobs of one recipe, and the data splits that they need."""

    def __init__(
        self, source: Path | str, store: Path, overrides: Setting, plugin: Path | None = None
    ) -> None:
        """Plan a recipe for a results store; `overrides` replace its values by dotted key.

        `plugin` is a file with a researcher's own named values, loaded here.
        """
        self._plugin = plugin and plugin.resolve()
        if self._plugin is not None:
            load_plugin(self._plugin)
        self._reading = read_recipe(source, _without_members(overrides))
        self._store = store
        self._overrides = overrides
        self._splits: dict[str, Path] = {}

    def jobs(self, seed: int | None) -> list[Job]:
        """The recipe as it is; with `alone` given, one job for each client."""
        return list(self._jobs({}, seed))

    def sweep(self, seeds: Sequence[int], vary: Mapping[str, tuple[Value, ...]]) -> list[Job]:
        """All settings and seeds: the recipe's own, unless other seeds are given.

        Each of the recipe's settings is combined with each combination of the values in `vary`.
        Seeds are the outer loop, so that a sweep that is cut short still compares its settings.
        """
        own_sweep = self._reading.sound().sweep
        varied = list(Sweep(grid=(dict(vary),) if vary else ()).settings())
        settings = [setting | more for setting in own_sweep.settings() for more in varied]
        # A recipe that names no seeds for its sweep uses its own one.
        recipe_seeds = own_sweep.seeds if "seeds" in own_sweep.model_fields_set else (None,)
        jobs: dict[str, Job] = {}
        for seed in seeds or recipe_seeds:
            for setting in settings:
                jobs |= {job.key(): job for job in self._jobs(setting, seed)}
        return list(jobs.values())

    def _jobs(self, setting: Setting, seed: int | None) -> Iterator[Job]:
        seeded: Setting = {} if seed is None else {"seed": seed}
        recipe = self._reading.varied(_without_members(setting) | seeded).sound()
        setting = self._overrides | setting
        job = self._federated(recipe, {k: v for k, v in setting.items() if k != "seed"})
        members = setting.get(MEMBERS, "federated")
        if members == "federated":
            yield job
        elif members == "pooled":
            everything = tuple(path for paths in job.private.values() for path in paths)
            yield _baseline(job, "pooled", None, {"pooled": everything})
        elif members == "alone":
            for name, paths in job.private.items():
                yield _baseline(job, "alone", name, {name: paths})
        elif members == "with-public":
            private = {name: (*paths, job.public) for name, paths in job.private.items()}
            yield job.model_copy(update={"members": members, "private": private})
        else:
            raise InvalidSettings(f"members: {', '.join(MEMBERSHIPS)}, not {members!r}.")

    def _federated(self, recipe: Recipe, setting: Setting) -> Job:
        settings = recipe.run_settings
        files = recipe.data.files(settings.clients, self._split(recipe))
        if len(files.private) != settings.clients:
            raise InvalidSettings(
                f"data.private: {len(files.private)} files for {settings.clients} clients; a "
                "simulation needs one for each."
            )
        return Job(
            recipe=recipe.name,
            setting=setting,
            settings=wait_for_all(settings),
            model=recipe.model,
            public=files.public.resolve(),
            test=files.test.resolve(),
            private={
                f"client-{number}": (path.resolve(),)
                for number, path in enumerate(files.private, start=1)
            },
            plugin=self._plugin,
        )

    def _split(self, recipe: Recipe) -> Path | None:
        """The recipe's data split in the store, prepared when it is first needed."""
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


def _baseline(
    job: Job, members: Members, client: str | None, private: dict[str, tuple[Path, ...]]
) -> Job:
    """The same total steps with one client, without exchanges."""
    settings = job.settings
    unused = {
        "method": FedAvg(),
        "aggregation": AggregationSettings(),
        "members": settings.members.model_copy(update={"minimum": None}),
    }
    update = {
        "setting": {
            key: value for key, value in job.setting.items() if key.split(".")[0] not in _AMONG_MANY
        },
        "settings": settings.model_copy(update={"clients": 1, **unused}),
        "private": private,
        "members": members,
        "client": client,
    }
    return job.model_copy(update=update)


def _without_members(setting: Setting) -> Setting:
    return {key: value for key, value in setting.items() if key != MEMBERS}


def parse_values(texts: Iterable[str]) -> dict[str, Value]:
    """KEY=VALUE, each key once. Raises InvalidSettings."""
    return {key: _scalar(text) for key, text in map(key_and_text, texts)}


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """KEY=VALUE,VALUE,... Raises InvalidSettings."""
    return {key: tuple(map(_scalar, text.split(","))) for key, text in map(key_and_text, texts)}


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """0-4, or 0,3,7, or both; nothing for None. Raises InvalidSettings."""
    seeds: list[int] = []
    for part in text.split(",") if text is not None else ():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise InvalidSettings(f"--seeds {text}: give them as 0-4, or 0,3,7.")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise InvalidSettings(
                f"--seeds {text}: {part.strip()} ends before it begins; give them as 0-4, or 0,3,7."
            )
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))


def _scalar(text: str) -> Value:
    """A number, a boolean or text: a result's value on an axis."""
    value = value_of(text.strip())
    return value if isinstance(value, bool | int | float | str) else text.strip()


def run_specs(
    jobs: Sequence[Job],
    store: Path,
    config: Path | None,
    options: Mapping[str, str | int | None],
    keep_work: bool,
    keep_adapters: bool,
) -> list[RunSpec]:
    """A spec for each job; titles leave out what all jobs share.

    Raises InvalidSettings or InvalidProblems before any run begins.
    """
    overrides = {key: value for key, value in options.items() if value is not None}
    client_settings = load_settings(config, **overrides)  # fail now rather than in each run
    for job in jobs:
        _check_client_settings(job, client_settings)
    settings = [{(key, repr(value)) for key, value in job.setting.items()} for job in jobs]
    common = {key for key, _ in set.intersection(*settings)}
    return [
        RunSpec(
            job=job,
            title=job.title(without=common),
            folder=(store / RUNS / job.key(client_settings)).resolve(),
            config=config,
            options=overrides,
            keep_work=keep_work,
            keep_adapters=keep_adapters,
        )
        for job in jobs
    ]


def _check_client_settings(job: Job, client_settings: ClientSettings) -> None:
    if client_settings.round_steps is not None:
        raise InvalidSettings(
            "A simulation's clients share one configuration and make all steps of a round: remove "
            "round_steps from it, and set the run's local_steps."
        )
