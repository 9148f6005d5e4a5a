"""What a client takes part in a round with."""

from dataclasses import dataclass

from pubswap_client.api import CoordinatorClient
from pubswap_client.progress import ProgressStore
from pubswap_client.reporting import Reporter
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.messages import Digest, RunView


@dataclass(frozen=True)
class Participation:
    """One client's part in round `number` (1, 2, ...), from the global adapter `start` on."""

    api: CoordinatorClient
    run: RunView
    trainer: LocalTrainer
    progress: ProgressStore
    reporter: Reporter
    number: int
    start: Digest
