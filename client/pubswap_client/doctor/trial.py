"""The checks on the loaded model: its path of the update, and a timed private step on the data.

The step starts from the run's first adapter, and its result is discarded.

The policy's adapter is replaced and trained, so nothing else may use the policy.
"""

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pubswap_client.daemon.factories import make_engine, make_trainer, open_privacy
from pubswap_client.daemon.own_settings import RoundLimits, own_settings, trained_problems
from pubswap_client.distributed.launch import load_policy, open_process_group
from pubswap_client.distributed.process_group import ProcessGroup
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, Outcome, of_error, ok, skipped, warning
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter

MAX_DRAWS = 20  # each is empty with a probability of at most 1 / e


def try_model(facts: Facts, trial: bool) -> None:
    """Add the findings that need the loaded model; without `trial`, only that of its path.

    The first failure ends them all, because the processes of a group can only end together.
    """
    names = ["packed path", "trial step"] if trial else ["packed path"]
    findings, settings, run = facts.findings, facts.settings, facts.run
    if run is None or facts.model is None or not facts.good("memory"):
        needed = skipped("the run, its own model, and memory for it")
        findings |= dict.fromkeys(names, needed)
        return
    folder, _ = facts.model
    try:
        with open_process_group(settings) as group:
            facts.stage("loading the model")
            policy = load_policy(settings, folder, run.model, run.settings, group)
            facts.stage("comparing packs with the model's own pass")
            path = check_packed_path(policy, settings.gradient_checkpointing)
            found = warning(str(path), path.advice) if path.refused else ok(str(path))
            findings[names.pop(0)] = found
            # A running daemon would lose memory to the trial, and the trial time to the daemon.
            idle = findings["daemon"].outcome is Outcome.OK
            able = facts.good("number of problems", "prompt lengths", "settings")
            replicas = findings.get("replicas")
            if not (names and idle and able and (replicas is None or replicas.good)):
                needed = skipped("private problems, sound settings, and no other daemon")
                findings |= dict.fromkeys(names, needed)
                return
            problems, _ = trained_problems(facts.problems or [], settings, run.settings)
            step = try_step(
                facts, policy, process_group=group, model=folder, problems=problems, run=run.id
            )
            findings[names.pop(0)] = check_trial(step, settings, run.settings)
    except Exception as error:
        failed, *others = names or ["trial step"]  # ending the processes may fail after all checks
        findings[failed] = of_error(error)
        findings |= dict.fromkeys(others, skipped(f"a successful {failed}"))


def try_step(
    facts: Facts,
    policy: Policy,
    *,
    process_group: ProcessGroup | None,
    model: Path,
    problems: Sequence[Problem],
    run: str,
) -> StepMetrics:
    """Time a private step on a policy that has passed its self-check; `run` is the run's id.

    Raises what training would raise.
    """
    settings, stage, stored = facts.settings, facts.stage, facts.stored
    private_settings = own_settings(settings, policy.settings)
    grpo = private_settings.grpo

    def score(cases: Sequence[tuple[str, Problem]]) -> list[float]:
        stage("trial step: verifying the responses")
        rewards = facts.pool.score_many(policy.settings.verifier, cases)
        stage(f"trial step: {'sampling again or ' if grpo.resample else ''}updating the adapter")
        return rewards

    sampling = f"sampling {grpo.prompts_per_step} x {grpo.responses_per_prompt} responses"
    announce = partial(stage, f"trial step: {sampling}")
    stage(f"starting the engine {chosen_engine(settings, policy.settings)}")
    with (
        _temporary_folders(settings) as settings,
        closing(make_engine(settings, policy, model, process_group)) as engine,
    ):
        privacy = open_privacy(settings.state, run, private_settings, len(problems))
        member = stored.membership.name if stored else "member"
        trainer = make_trainer(
            settings=settings,
            policy=policy,
            engine=engine,
            client=member,
            problems=problems,
            scorer=score,
            process_group=process_group,
            privacy=privacy,
        )
        return _timed(trainer, announce)


@contextmanager
def _temporary_folders(settings: ClientSettings) -> Iterator[ClientSettings]:
    """The settings with temporary folders for adapters, because a daemon may use the real ones."""
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="pubswap-doctor-"))
        changes: dict[str, Any] = {"state": Path(work)}
        if settings.vllm.adapter_dir is not None:
            shared = settings.vllm.adapter_dir / f"doctor-{uuid.uuid4().hex[:8]}"
            stack.callback(shutil.rmtree, shared, ignore_errors=True)
            changes["vllm"] = settings.vllm.model_copy(update={"adapter_dir": shared})
        yield settings.model_copy(update=changes)


def _timed(trainer: LocalTrainer, announce: Callable[[], object]) -> StepMetrics:
    """The metrics of a private step, announced before it begins.

    With differential privacy a draw may be empty and measure nothing; then it draws again.
    """
    policy = trainer.policy
    start = initial_adapter(policy.card.layout, policy.settings.seed)
    for beginning in range(MAX_DRAWS):
        announce()
        trainer.begin_round(1, start, beginning)
        trial = trainer.private_step(1)
        if trial.prompts_sampled:
            break
    return trial


_CUT_SHARE = 0.5


def check_trial(trial: StepMetrics, settings: ClientSettings, run: RunSettings) -> Finding:
    """Check that the responses of the step are something to learn from."""
    steps = RoundLimits.of(settings, run).steps or run.local_steps
    text = (
        f"{duration_text(trial.seconds)}: "
        f"sampling {duration_text(trial.sampling - trial.verifying)}, "
        f"verifying {duration_text(trial.verifying)}, "
        f"updating {duration_text(trial.seconds - trial.sampling)}; "
        f"responses of {trial.response_tokens:.0f} tokens, "
        f"{trial.tokens_per_second:.0f} tokens/s, mean reward {trial.reward:.2f}, "
        f"memory {size_text(trial.memory_bytes)}; {steps} such steps, as in a round, take "
        f"{duration_text(steps * trial.seconds)} without waiting for peers"
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
