"""What a member's daemon, its rounds and their public steps all work with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.own_settings import Deadline, RoundLimits
from pubswap_client.daemon.reporters import Reporter
from pubswap_client.state.journal import Journal
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.messages import RunView
from pubswap_protocol.problems import Problem


@dataclass(frozen=True)
class MemberContext:
    """One member of one run; `public` is the approved public set."""

    api: CoordinatorClient
    run: RunView
    trainer: LocalTrainer
    journal: Journal
    reporter: Reporter
    privacy: PrivacyBudget | None = None
    held_out: HeldOut | None = None
    limits: RoundLimits = field(default_factory=RoundLimits)
    deadline: Deadline = field(default_factory=Deadline)
    public: Sequence[Problem] = ()
