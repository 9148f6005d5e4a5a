"""What the checks know: the doctor's options, and what earlier checks have found."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID

from pubswap_client.doctor.findings import Finding
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership
from pubswap_client.training.memory import Device
from pubswap_protocol.command_line.progress_bar import next_stage
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool


@dataclass
class Facts:
    """The options, and a field for each thing that later checks need; None until it is found."""

    settings: ClientSettings
    progress: Progress
    pool: VerifierPool
    run: RunView | None = None
    stored: StoredMembership | None = None
    model: tuple[Path, ModelCard] | None = None
    tokenizer: PromptTokenizer | None = None
    problems: list[Problem] | None = None
    device: Device | None = None
    findings: dict[str, Finding] = field(default_factory=dict)  # by the checks' names, in order

    def good(self, *names: str) -> bool:
        """Whether these checks were made, and none failed."""
        return all(self.findings[name].good for name in names)

    def stage(self, description: str, total: int | None = None) -> TaskID:
        """Show what is going on."""
        return next_stage(self.progress, description, total)
