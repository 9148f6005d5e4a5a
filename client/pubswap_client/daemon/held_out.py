"""The organisation's own pass@1 on held-out private problems, for each global adapter."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pubswap_client.daemon.reporters import Reporter
from pubswap_client.state.history import HELD_OUT, HeldOutScore, append, read
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import Digest
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import Adapter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """A member's held-out problems, and its state folder, where the scores are kept.

    `verifier` is the verifier's version; with another one, everything is measured again.
    """

    state: Path
    run: str
    problems: Sequence[Problem]
    verifier: str

    def measure(
        self,
        trainer: LocalTrainer,
        reporter: Reporter,
        round_: int,
        digest: Digest,
        adapter: Adapter,
    ) -> float:
        """The global adapter's score after a round, measured unless it is known.

        Measuring leaves that adapter in the policy. Raises NotSaved.
        """
        path = self.state / HELD_OUT
        lines = (self.verifier, *(problem.model_dump_json() for problem in self.problems))
        problems = digest_of("\n".join(lines).encode())
        saved_scores = {score.key: score for score in read(path, self.run, HeldOutScore)}
        if saved := saved_scores.get((self.run, round_, digest, problems)):
            return saved.pass_at_1
        reporter.doing(f"measuring the global adapter on {len(self.problems)} held-out problems")
        began = time.monotonic()
        pass_at_1 = trainer.pass_at_1(adapter, self.problems)
        score = HeldOutScore(
            run=self.run,
            round=round_,
            adapter=digest,
            at=datetime.now(UTC),
            pass_at_1=pass_at_1,
            problems=len(self.problems),
            digest=problems,
            seconds=time.monotonic() - began,
        )
        append(path, score)
        log.info(
            "The global adapter after round %d: pass@1 %.3f on our %d held-out problems.",
            round_,
            pass_at_1,
            len(self.problems),
        )
        return pass_at_1
