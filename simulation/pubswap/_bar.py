"""The progress of a simulation as a bar, in a notebook or on a terminal."""

from typing import Self

from tqdm.auto import tqdm

from pubswap_simulation.job import RunSpec


class Bar:
    """A context manager that shows the local steps of all clients, and the last pass@1."""

    def __init__(self, spec: RunSpec) -> None:
        self._bar = tqdm(total=spec.job.steps, desc=spec.job.recipe, unit="step")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, spec: RunSpec, steps: int, score: float | None) -> None:
        """Show the steps made so far, of which an earlier process may have made some."""
        if score is not None:
            self._bar.set_postfix({"pass@1": f"{score:.3f}"}, refresh=False)
        self._bar.n = steps
        self._bar.refresh()

    def finish(self, spec: RunSpec, outcome: str) -> None:
        """Nothing more: the caller has the result, or an error."""
