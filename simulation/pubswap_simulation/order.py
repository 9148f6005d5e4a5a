"""An order: a job, the folder it is done in, and how."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from pubswap_client.settings import ClientSettings, load_settings
from pubswap_protocol.verifiers import VerifierPool
from pubswap_simulation.job import Job
from pubswap_simulation.results import RESULT, Result

if TYPE_CHECKING:
    from pubswap_simulation.simulation import Watcher


class RunSpec(BaseModel):
    """A job, and how to do it: what a process of a sweep is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Job
    title: str
    folder: Path
    config: Path | None = None
    options: dict[str, int | str] = {}
    keep_work: bool = False
    keep_adapters: bool = False

    @property
    def key(self) -> str:
        """By what it is known."""
        return self.folder.name

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return (self.folder / RESULT).exists()

    def machine(self) -> ClientSettings:
        """The settings that all members have in common. Raises InvalidSettings."""
        return load_settings(self.config, **self.options)

    def verifiers(self) -> VerifierPool:
        """A pool for all members; its processes take seconds to start."""
        machine = self.machine()
        return VerifierPool(machine.verifier_workers, machine.verifier_seconds)

    def carry_out(self, watch: "Watcher", verifiers: VerifierPool) -> Result:
        """The job's result, in this process."""
        from pubswap_simulation.simulation import simulate

        return simulate(
            self.job,
            self.folder,
            self.machine(),
            watch,
            verifiers,
            keep_work=self.keep_work,
            keep_adapters=self.keep_adapters,
        )
