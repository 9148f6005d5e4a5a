"""The wiring of `pubswap client doctor`: all checks in order, with their dependencies.

Changes nothing but the ledger: it asks the coordinator only for its version, the run and its public
problems, takes no lock, and keeps the trial step's adapter in memory.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from pubswap_client.consent.local_policy import allows_unconfined
from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.daemon.reporters import check_trackers
from pubswap_client.daemon.session import check_possible
from pubswap_client.data.drawing import sample
from pubswap_client.data.golds import Fault
from pubswap_client.data.holdout import split
from pubswap_client.distributed.launch import (
    launched_rank,
    load_policy,
    open_process_group,
    run_follower,
)
from pubswap_client.doctor.coordinator import check_coordinator, check_prompts, check_run
from pubswap_client.doctor.findings import (
    Checklist,
    Finding,
    Status,
    failure,
    of_error,
    ok,
    skipped,
    warning,
)
from pubswap_client.doctor.memory import check_device, check_engine, check_memory
from pubswap_client.doctor.model import check_end, check_model, check_round_trip, check_template
from pubswap_client.doctor.prediction import Prediction, predict
from pubswap_client.doctor.private_data import (
    Survey,
    check_answer_lengths,
    check_answers,
    check_count,
    check_file,
    check_listed,
    check_sandbox,
    check_texts,
    check_verifiers,
    survey,
)
from pubswap_client.doctor.state_folder import (
    check_daemon,
    check_disk,
    check_folder,
    check_membership,
    check_policy,
)
from pubswap_client.doctor.trial import check_trial, try_step
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.run_card import read_card
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.training.accountant import check_installed
from pubswap_client.training.memory import Device, estimate_memory, measure_device
from pubswap_protocol.bounds import escaped
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.messages import Role, RunView, SetKind
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool

SAMPLE = 1000  # problems, enough to show a fault that all have
_NO_GPU = "Check that nvidia-smi lists it and torch is a CUDA build, or set device = 'cpu'."


@dataclass
class Examination:
    """Performs all checks once. A failed check leaves None to later ones that need its result.

    Without `trial`, and for an evaluator, there is no trial step. With `carded`, a run known from
    its run card, there is no membership and no coordinator.
    """

    settings: ClientSettings
    progress: Progress
    trial: bool = True
    role: Role = Role.CLIENT
    carded: RunView | None = None
    findings: dict[str, Finding] = field(default_factory=dict)
    _stored: StoredMembership | None = None
    _model: tuple[Path, ModelCard] | None = None
    _tokenizer: PromptTokenizer | None = None
    _file: Survey | None = None
    _trainable: list[Problem] = field(default_factory=list)
    _prediction: Prediction | None = None

    def __post_init__(self) -> None:
        self._stage = partial(next_stage, self.progress)
        self._run = self.carded

    def examine(self) -> Checklist:
        self._check_membership()
        self._check_coordinator()
        self._check(
            "settings", _check_settings, self.settings, self._run, self.role, needs="the run"
        )
        self._check_model()
        if self.role is Role.EVALUATOR:
            self._check_device()
            return Checklist(self.findings, following="pubswap evaluate")
        self._check_data()
        with VerifierPool(unconfined=allows_unconfined(self.settings.state)) as pool:
            self._check_answers(pool)
            self._check_device()
            self._try(pool)
        return Checklist(self.findings, self._prediction)

    def _check(
        self,
        name: str,
        check: Callable[..., Any],
        *arguments: Any,
        needs: str = "",
        advice: str = "",
    ) -> Any:
        """Record a check's finding, or the error that ends it; the other checks go on.

        Skips the check if an argument is None, because an earlier check did not find what this one
        `needs`. Returns the check's result for later ones, or None.
        """
        if any(argument is None for argument in arguments):
            self._skip(needs, name)
            return None
        try:
            outcome = check(*arguments)
        except Exception as error:
            outcome = of_error(error, advice)
        self.findings[name], result = outcome if isinstance(outcome, tuple) else (outcome, None)
        return result

    def _skip(self, needed: str, *names: str) -> None:
        self.findings |= dict.fromkeys(names, skipped(needed))

    def _good(self, *names: str) -> bool:
        return all(self.findings[name].good for name in names)

    def _check_membership(self) -> None:
        if self.carded:
            self._skip("a membership, without --run", "state folder", "daemon", "membership")
            return
        state = self.settings.state
        self._check("state folder", check_folder, state)
        self._check("daemon", check_daemon, state)
        self._stored = self._check("membership", _membership, state, self.role)

    def _check_coordinator(self) -> None:
        state, stored = self.settings.state, self._stored
        self._stage("asking the coordinator")
        self._check("coordinator", check_coordinator, state, stored, needs="a membership")
        answers = stored if self._good("coordinator") else None
        needs = "a coordinator that answers"
        run = self._check("token and run", check_run, state, answers, needs=needs)
        self._run = run or self._run
        if self.role is Role.CLIENT:  # an evaluator has no policy, and keeps no checkpoint
            address, needs = stored and stored.coordinator, "the run there"
            self._check("policy", check_policy, self.settings, run, address, needs=needs)
            self._check("disk", check_disk, state, run and run.model.layout, needs=needs)

    def _check_model(self) -> None:
        run, kind = self._run, SetKind.TEST if self.role is Role.EVALUATOR else SetKind.PUBLIC
        self._stage("reading the model's files")
        self._model = self._check("model files", check_model, self.settings, run, needs="the run")
        self._tokenizer = self._check(
            "chat template", _template, self._model, run, needs="the run's own model"
        )

        def end(tokenizer: PromptTokenizer, run: RunView) -> Finding:
            return check_end(tokenizer, run.model, run.settings)

        def prompts(stored: StoredMembership, tokenizer: PromptTokenizer, run: RunView) -> Finding:
            return check_prompts(self.settings.state, stored, tokenizer.limit(run.settings), kind)

        self._check("end of sequence", end, self._tokenizer, run, needs="a tokenizer")
        if kind is SetKind.TEST or run is None or run.settings.exchange:
            # The operator's prompts, which this member answers.
            needs, both = "a membership and a tokenizer", (self._stored, self._tokenizer)
            self._check(f"{kind} prompts", prompts, *both, run, needs=needs)

    def _check_data(self) -> None:
        path = self.settings.data
        if path is None:
            advice = "Give their file: --data private.jsonl."
            self.findings["private data"] = failure("no private problems are given", advice)
        else:
            self._stage("reading the private problems")
            self._file = self._check("private data", _private_data, path)

        def count(file: Survey, run: RunView) -> Finding:
            private_settings = own_settings(self.settings, run.settings)
            return check_count(file, private_settings, self.settings.holdout)

        def lengths(
            file: Survey, tokenizer: PromptTokenizer, run: RunView
        ) -> tuple[Finding, list[Problem]]:
            self._stage("measuring prompts")
            limit = tokenizer.limit(run.settings)
            limit.check(file.problems, str(file.path))
            return ok(f"none over the limit of {limit.max_tokens} tokens"), list(file.problems)

        def round_trip(file: Survey, tokenizer: PromptTokenizer) -> Finding:
            return check_round_trip(tokenizer, sample(file.problems, SAMPLE, "doctor"))

        file, run, needs = self._file, self._run, "private data and the run"
        self._check("number of problems", count, file, run, needs=needs)
        tokenizer, needs = self._tokenizer, "private data and a tokenizer"
        fitting = self._check("prompt lengths", lengths, file, tokenizer, run, needs=needs)
        self._trainable = fitting or []
        self._check("round trip", round_trip, file, tokenizer, needs=needs)

    def _check_answers(self, pool: VerifierPool) -> None:
        def verifiers(file: Survey, run: RunView) -> tuple[Finding, list[Problem]]:
            return check_verifiers(file.problems, run.settings.verifier)

        def texts(usable: list[Problem], run: RunView) -> tuple[Finding, list[Fault]]:
            return check_texts(usable, run.settings.verifier)

        def lengths(usable: list[Problem], run: RunView, tokenizer: PromptTokenizer) -> Finding:
            return check_answer_lengths(usable, run.settings, tokenizer.response_length)

        def answers(
            file: Survey, usable: list[Problem], run: RunView
        ) -> tuple[Finding, list[Fault]]:
            chosen = sample(usable, SAMPLE, "doctor")
            task = self._stage("verifying the problems' own answers", len(chosen))
            advance = partial(self.progress.advance, task)
            default = run.settings.verifier
            return check_answers(chosen, len(file.problems), default, pool.score_many, advance)

        file, run, needs = self._file, self._run, "private data and the run"
        self._check("sandbox", check_sandbox)
        usable = self._check("verifiers", verifiers, file, run, needs=needs)
        broken = self._check("texts of answers", texts, usable, run, needs=needs)
        needs, own = "private data, the run and a tokenizer", self._tokenizer
        self._check("answer lengths", lengths, usable, run, own, needs=needs)
        needs = "private data and the run"
        unread = self._check("answers", answers, file, usable, run, needs=needs)
        faults = None if broken is None or unread is None else [*broken, *unread]
        self._check("unusable answers", check_listed, file, faults, needs=needs)

    def _check_device(self) -> None:
        """The device, its memory, and the engine on it."""
        settings, run = self.settings, self._run.settings if self._run else None
        device = self._check("device", _device, settings, advice=_NO_GPU)

        def memory(device: Device, run: RunSettings, model: tuple[Path, ModelCard]) -> Finding:
            folder, card = model
            evaluator = self.role is Role.EVALUATOR
            needs = estimate_memory(settings, run, card, folder, device, evaluator)
            return check_memory(settings, run, device, needs, evaluator)

        needs = "a device and the run's own model"
        self._check("memory", memory, device, run, self._model, needs=needs)
        self._check("rollout engine", check_engine, settings, run, needs="the run")

    def _try(self, pool: VerifierPool) -> None:
        """Run the checks that need the loaded model.

        The first failure ends them all, because the processes of a group can only end together.
        """
        names = ["packed path", "trial step", "prediction"] if self.trial else ["packed path"]
        run, model = self._run, self._model
        if run is None or model is None or not self._good("memory"):
            self._skip("the run, its own model, and memory for it", *names)
            return
        folder, _ = model
        try:
            with open_process_group(self.settings) as group:
                self._stage("loading the model")
                policy = load_policy(self.settings, folder, run.model, run.settings, group)
                self._stage("comparing packs with the model's own pass")
                path = check_packed_path(policy, self.settings.gradient_checkpointing)
                finding = warning(str(path), path.advice) if path.refused else ok(str(path))
                self.findings[names.pop(0)] = finding
                # A running daemon would lose memory to the trial, and the trial time to the daemon.
                idle = self.carded or self.findings["daemon"].status is Status.OK
                problems, _ = split(self._trainable, self.settings.holdout)
                if not (names and problems and idle and self._good("rollout engine")):
                    self._skip("the engine, private problems, and no other daemon", *names)
                    return
                trial = try_step(
                    settings=self.settings,
                    run=run.id,
                    folder=folder,
                    policy=policy,
                    process_group=group,
                    member=self._stored.membership.name if self._stored else "member",
                    problems=problems,
                    scorer=partial(pool.score_many, run.settings.verifier),
                    stage=self._stage,
                )
                self.findings[names.pop(0)] = check_trial(trial, run.settings)
                self._prediction = predict(trial, run.settings, run.model.layout, self.settings)
                self.findings[names.pop(0)] = ok(str(self._prediction))
        except Exception as error:
            self.findings[names[0]] = of_error(error)
            self._skip(f"a successful {names[0]}", *names[1:])


def _check_settings(settings: ClientSettings, run: RunView, role: Role) -> Finding:
    """Check our own settings against the run's, as a start does."""
    check_possible(run.settings, settings)
    if role is Role.CLIENT:
        check_installed(run.settings)
        check_trackers(settings.track)
    return ok(f"they fit the run; engine {settings.engine}")


def _membership(state: Path, role: Role) -> tuple[Finding, StoredMembership]:
    stored = load_membership(state)
    return check_membership(stored, role), stored


def _template(model: tuple[Path, ModelCard], run: RunView) -> tuple[Finding, PromptTokenizer]:
    tokenizer = PromptTokenizer(model[0], run.model.prompt_date, run.model.vocabulary)
    tokenizer.check_prompts(run.model, run.settings)
    return check_template(tokenizer, run.settings), tokenizer


def _private_data(path: Path) -> tuple[Finding, Survey]:
    file = survey(path)
    return check_file(file), file


def _device(settings: ClientSettings) -> tuple[Finding, Device]:
    device = measure_device(settings)
    return check_device(settings, device), device


def run_doctor(
    settings: ClientSettings, trial: bool, as_json: bool, role: Role, card: Path | None
) -> bool:
    """Print the report; returns whether nothing failed. `card` is a run card's file."""
    if launched_rank() not in (None, 0):
        run_follower(settings)
        return True
    carded = read_card(card) if card else None
    with progress_bar() as progress:
        checklist = Examination(settings, progress, trial, role, carded).examine()
    if as_json:
        sys.stdout.write(escaped(checklist.json()) + "\n")
    else:
        Console().print(checklist.rendered())
    return checklist.healthy
