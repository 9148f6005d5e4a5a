"""What the checks know: the doctor's options, and what earlier checks have found."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress, TaskID

from pubswap_client.data.golds import Fault
from pubswap_client.doctor.findings import Finding
from pubswap_client.doctor.prediction import Prediction
from pubswap_client.doctor.problem_file import ProblemFile
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership
from pubswap_client.training.memory import Device
from pubswap_protocol.command_line.progress_bar import next_stage
from pubswap_protocol.messages import Role, RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool


@dataclass
class Facts:
    """The options, and a field for each thing that later checks need; None until it is found."""

    settings: ClientSettings
    progress: Progress
    pool: VerifierPool
    role: Role = Role.CLIENT
    carded: bool = False  # the run is of a run card: no membership, and no coordinator
    run: RunView | None = None
    stored: StoredMembership | None = None
    model: tuple[Path, ModelCard] | None = None
    tokenizer: PromptTokenizer | None = None
    file: ProblemFile | None = None
    fitting: bool = False  # no prompt of the file is too long
    usable: list[Problem] | None = None  # those whose verifier exists
    broken: list[Fault] | None = None  # answers whose text no response can earn
    unread: list[Fault] | None = None  # answers that their verifier does not read
    device: Device | None = None
    prediction: Prediction | None = None
    findings: dict[str, Finding] = field(default_factory=dict)  # by the checks' names, in order

    def good(self, *names: str) -> bool:
        """Whether these checks were made, and none failed."""
        return all(self.findings[name].good for name in names)

    def stage(self, description: str, total: int | None = None) -> TaskID:
        """Show what is going on."""
        return next_stage(self.progress, description, total)
