"""Each step's figures for TensorBoard, Weights & Biases or trackio, through accelerate's trackers.

None is installed by default. What is sent to a tracker goes where the organisation has pointed
it, so that it is the organisation's choice alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker

from pubswap_client.reporting import StepReport
from pubswap_protocol.errors import InvalidSettings

Name = Literal["tensorboard", "wandb", "trackio"]


class Tracking:
    """A Reporter that passes every figure of a step on."""

    def __init__(self, trackers: Sequence[GeneralTracker]) -> None:
        self._trackers = trackers

    def doing(self, what: str) -> None:
        """Nothing to plot."""

    def step(self, report: StepReport) -> None:
        """All metrics under `train/`, by the step's number in the whole run."""
        values = {f"train/{name}": value for name, value in asdict(report.metrics).items()}
        values |= {
            "train/tokens_per_second": report.metrics.tokens_per_second,
            "train/public": float(report.public),
            "train/round": report.round,
        }
        for tracker in self._trackers:
            tracker.log(values, step=report.overall)


@contextmanager
def tracking(
    names: Sequence[Name], project: str, folder: Path, settings: dict[str, Any]
) -> Iterator[Tracking]:
    """Trackers for a run's `project`; TensorBoard's files go below `folder`.

    Raises InvalidSettings, with what to install, if a library is missing.
    """
    for name in names:
        if find_spec(name) is None:
            raise InvalidSettings(
                f"track names {name!r}, which is not installed: pip install {name}"
            )
    PartialState()  # accelerate's trackers ask it which process they are in
    trackers = [_tracker(name, project, folder) for name in names]
    for tracker in trackers:
        tracker.start()
        if tracker.name != "tensorboard":
            tracker.store_init_configuration(settings)
    try:
        yield Tracking(trackers)
    finally:
        for tracker in trackers:
            tracker.finish()


def _tracker(name: Name, project: str, folder: Path) -> GeneralTracker:
    if name == "tensorboard":
        return TensorBoardTracker(project, logging_dir=folder)
    return (WandBTracker if name == "wandb" else TrackioTracker)(project)
