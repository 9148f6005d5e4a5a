"""Time one private step on the real data, from the run's first adapter; the result is discarded.

The policy's adapter is replaced and trained, so nothing else may use the policy.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pubswap_client.daemon.factories import make_engine, make_trainer, open_privacy
from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.distributed.process_group import ProcessGroup
from pubswap_client.doctor.findings import Finding, ok, warning
from pubswap_client.doctor.prediction import TrialResult
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.rollout.transformers_engine import Prompts, RolloutEngine, SamplingParameters
from pubswap_client.settings import ClientSettings
from pubswap_client.training.trainer import LocalTrainer, Scorer
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter
from pubswap_protocol.tensors.responses import Response

MAX_DRAWS = 20  # each is empty with a probability of at most 1 / e

QUICK_SECONDS = 10.0

Stage = Callable[[str], object]


def try_step(
    settings: ClientSettings,
    run: str,
    folder: Path,
    policy: Policy,
    process_group: ProcessGroup | None,
    member: str,
    problems: Sequence[Problem],
    scorer: Scorer,
    stage: Stage,
) -> TrialResult:
    """Time a private step of the client `member`, on a policy that has passed its self-check.

    A quick step is repeated and the second one counts, because the first loads libraries. Raises
    what training would raise.
    """
    stage(f"starting the engine {chosen_engine(settings, policy.settings)}")
    with (
        _temporary_folders(settings) as settings,
        closing(make_engine(settings, policy, folder, process_group)) as engine,
    ):
        watched = _Watched(engine, scorer, stage, set(policy.card.eos_token_ids))
        private_settings = own_settings(settings, policy.settings)
        privacy = open_privacy(settings.state, run, private_settings, len(problems))
        trainer = make_trainer(
            settings, policy, watched, member, problems, watched.score, process_group, privacy
        )
        trial = watched.time(trainer, 1)
        return trial if trial.seconds > QUICK_SECONDS else watched.time(trainer, 2)


@contextmanager
def _temporary_folders(settings: ClientSettings) -> Iterator[ClientSettings]:
    """The settings with temporary folders for adapters, because a daemon may use the real ones.

    Does not wait for replicas that are down.
    """
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="pubswap-doctor-"))
        changes: dict[str, Any] = {"state": Path(work)}
        if settings.vllm.adapter_dir is not None:
            shared = settings.vllm.adapter_dir / f"doctor-{uuid.uuid4().hex[:8]}"
            stack.callback(shutil.rmtree, shared, ignore_errors=True)
            vllm = {"adapter_dir": shared, "connect_seconds": 0}
            changes["vllm"] = settings.vllm.model_copy(update=vllm)
        yield settings.model_copy(update=changes)


@dataclass
class _Watched(RolloutEngine):
    """An engine and a scorer that announce and time their work."""

    engine: RolloutEngine
    scorer: Scorer
    stage: Stage
    eos: set[int]
    rollout_seconds: float = 0.0
    reward_seconds: float = 0.0
    groups: list[list[Response]] = field(default_factory=list)

    def generate(self, prompts: Prompts, sampling: SamplingParameters) -> list[list[Response]]:
        self.stage(f"trial step: sampling {len(prompts)} x {sampling.count} responses")
        started = time.monotonic()
        groups = self.engine.generate(prompts, sampling)
        self.rollout_seconds += time.monotonic() - started
        self.groups += groups
        return groups

    def score(self, cases: Sequence[tuple[str, Problem]]) -> list[float]:
        self.stage("trial step: verifying the responses")
        started = time.monotonic()
        rewards = self.scorer(cases)
        self.reward_seconds += time.monotonic() - started
        self.stage("trial step: updating the adapter")
        return rewards

    def close(self) -> None:
        """Do nothing, because the engine's creator closes it."""

    def time(self, trainer: LocalTrainer, step: int) -> TrialResult:
        """Time a private step of the trainer, which uses this engine and scorer.

        With differential privacy a draw may be empty and measure nothing; then it draws again.
        """
        policy = trainer.policy
        start = initial_adapter(policy.card.layout, policy.settings.seed)
        for beginning in range(MAX_DRAWS):
            self.rollout_seconds, self.reward_seconds, self.groups = 0.0, 0.0, []
            trainer.begin_round(1, start, beginning)
            metrics = trainer.private_step(step)
            if self.groups:
                break
        flat = [response for group in self.groups for response in group]
        cut = sum(int(response.tokens[-1]) not in self.eos for response in flat)
        return TrialResult(
            rollout_seconds=self.rollout_seconds,
            reward_seconds=self.reward_seconds,
            update_seconds=metrics.seconds - self.rollout_seconds - self.reward_seconds,
            sampled=len(flat),
            trained=round(metrics.tokens / max(1, metrics.response_tokens)),
            response_tokens=metrics.response_tokens,
            cut_share=cut / max(1, len(flat)),
            reward=metrics.reward,
            memory_bytes=metrics.memory_bytes,
        )


_CUT_SHARE = 0.5


def check_trial(trial: TrialResult, run: RunSettings) -> Finding:
    """Check that the responses of the step are something to learn from."""
    tokens = trial.trained * trial.response_tokens
    text = (
        f"{duration_text(trial.seconds)}: sampling {duration_text(trial.rollout_seconds)}, "
        f"verifying {duration_text(trial.reward_seconds)}, updating "
        f"{duration_text(trial.update_seconds)}; responses of {trial.response_tokens:.0f} tokens, "
        f"{tokens / trial.seconds:.0f} tokens/s, mean reward {trial.reward:.2f}, "
        f"memory {size_text(trial.memory_bytes)}"
    )
    limit = run.grpo.max_response_tokens
    if trial.cut_share > _CUT_SHARE:
        return warning(
            f"{text}; {trial.cut_share:.0%} of them were cut off at {limit} tokens",
            "Cut responses are rarely right. Ask the operator for a larger "
            "grpo.max_response_tokens, and check that the prompts ask for short answers.",
        )
    if trial.reward == 0:
        return warning(
            f"{text}; none was right, so this step taught nothing",
            "One step says little. If others are the same, check that the prompts say how to give "
            "the answer, and use easier problems.",
        )
    if trial.reward == 1:
        return warning(
            f"{text}; all were right, so this step taught nothing",
            "One step says little. If others are the same, use harder problems.",
        )
    return ok(text)
