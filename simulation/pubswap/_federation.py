"""A whole federation on this machine."""

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pubswap._records import Record, round_records
from pubswap_protocol.cli import explained
from pubswap_protocol.errors import InvalidSettings, LocalFault

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from pubswap_simulation.job import JobReport, RunSpec
    from pubswap_simulation.results import Result


class Federation:
    """A whole federation that has run on this machine; `Federation.simulate` runs one."""

    def __init__(self, folder: Path, result: "Result") -> None:
        self.folder = folder
        self._result = result

    def __repr__(self) -> str:
        scores = f"pass@1 {self.base:.3f} -> {self.final:.3f}, best {self.best:.3f}"
        return f"Federation({self._result.recipe!r}, {scores}, {str(self.folder)!r})"

    @classmethod
    def simulate(
        cls,
        recipe: Path | str,
        out: Path | str = "simulations",
        *,
        set: Mapping[str, bool | int | float | str] | None = None,
        seed: int | None = None,
        config: Path | str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        engine: str | None = None,
        threads: int | None = None,
        plugin: Path | str | None = None,
    ) -> Self:
        """Run a recipe's whole federation with a progress bar, and return when it is done.

        Does what `pubswap simulate` does: the real coordinator and the real daemons run in a
        process of their own, share one model and take turns. You can interrupt it at any time and
        call it again: it continues where it stopped and repeats nothing.

        `recipe` is a file, or a shipped recipe's name. `out` is the results store. `set` overrides
        values of the recipe by dotted key: `{"method.period": 4}`. `config` is a client.toml with
        settings for all members; `device`, `dtype`, `engine` and `threads` are four of them.
        `plugin` is a file with a strategy, rule or advantage of your own.

        Raises InvalidSettings or InvalidProblems for a recipe that cannot be run, and LocalFault,
        with the process's own message, if the process fails.
        """
        with explained():
            from pubswap_simulation.jobs import Planner, run_specs
            from pubswap_simulation.results import read_result

            store = Path(out)
            jobs = Planner(recipe, store, dict(set or {}), Path(plugin) if plugin else None).jobs(
                seed
            )
            if len(jobs) > 1:
                raise InvalidSettings(
                    "members = 'alone' is a simulation for each client, and this is for one; "
                    "`pubswap simulate --set members=alone` does them all."
                )
            options = {"device": device, "dtype": dtype, "engine": engine, "threads": threads}
            settings = Path(config) if config is not None else None
            [spec] = run_specs(jobs, store, settings, options, keep_work=False, keep_adapters=True)
            _carry_out(spec)
            return cls(spec.folder, read_result(spec.folder))

    @property
    def base(self) -> float:
        """pass@1 of the base model."""
        return self._result.base

    @property
    def final(self) -> float:
        """pass@1 of the last round's adapter."""
        return self._result.final

    @property
    def best(self) -> float:
        """pass@1 of the best round's adapter."""
        return self._result.best

    @property
    def seconds(self) -> float:
        """Duration of the simulation."""
        return self._result.seconds

    def metrics(self) -> list[Record]:
        """The rounds as records, from round 0 (the base model), with the keys of `Run.metrics`."""
        return round_records(self._result.run.rounds)

    def rewards(self) -> list[Record]:
        """The mean reward of own responses, a record for each client and local step 1, 2, ..."""
        return [
            {"client": client, "step": step, "reward": reward}
            for client, rewards in self._result.rewards.items()
            for step, reward in enumerate(rewards, start=1)
        ]

    def adapter(self, which: str = "final") -> Path:
        """The PEFT folder of the last round's adapter, or of the `best` round's.

        Raises InvalidSettings if it was not kept; `pubswap simulate` keeps none unless told to.
        """
        if which not in ("final", "best"):
            raise InvalidSettings(f"which: final or best, not {which!r}.")
        folder = self.folder / f"adapter-{which}"
        if not folder.is_dir():
            raise InvalidSettings(
                f"{folder} was not kept. Remove {self.folder} and simulate it again, or into "
                "another `out`."
            )
        return folder

    def peft(self, base_model: "PreTrainedModel", which: str = "final") -> "PeftModel":
        """The adapter on a loaded base model, which must be the recipe's."""
        with explained():
            from peft import PeftModel

            return PeftModel.from_pretrained(base_model, self.adapter(which))


def _carry_out(spec: "RunSpec") -> None:
    """Run the simulation unless it has a result. Raises LocalFault if it fails."""
    from tqdm.auto import tqdm

    from pubswap_simulation.processes import local_outcomes
    from pubswap_simulation.sweep import carry_out, other_rules, thread_limit
    from pubswap_simulation.worker import LOG

    if spec.done:
        if (note := other_rules(spec)) is not None:
            warnings.warn(f"This was already done, {note}.", stacklevel=3)
        return
    with tqdm(total=spec.job.steps, desc=spec.job.recipe, unit="step") as bar:

        def show(_: object, report: "JobReport") -> None:
            """Show the steps of all clients so far, including those of an earlier process."""
            if report.score is not None:
                bar.set_postfix({"pass@1": f"{report.score:.3f}"}, refresh=False)
            bar.n = report.steps
            bar.refresh()

        outcomes_of = partial(local_outcomes, [thread_limit(spec.options)], show)
        failed = carry_out([spec], outcomes_of, lambda spec, outcome: None)
    for failure in failed.values():
        raise LocalFault(
            f"The simulation failed: {failure} Its log is {spec.folder / LOG}; the same call "
            "continues from where it stopped."
        )
