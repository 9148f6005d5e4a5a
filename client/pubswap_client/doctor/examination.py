"""The wiring of `pubswap client doctor`: all checks in order, each with what it depends on.

Nothing is changed but the ledger: the coordinator is only asked for its version, the run and its
public problems, no lock is taken, and the trial step's adapter is in memory alone.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress

from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.daemon.reporters import check_trackers
from pubswap_client.daemon.session import check_possible
from pubswap_client.data.drawing import sample
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
from pubswap_client.doctor.model import (
    check_end,
    check_model,
    check_round_trip,
    check_template,
)
from pubswap_client.doctor.prediction import Prediction, predict
from pubswap_client.doctor.private_data import (
    Survey,
    check_answers,
    check_count,
    check_file,
    check_lengths,
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
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.training.accountant import check_installed
from pubswap_client.training.memory import estimate_memory, measure_device
from pubswap_protocol.bounds import escaped
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import Role, RunView, SetKind
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool

T = TypeVar("T")

SAMPLE = 1000  # problems, of which a fault of all shows
_NO_GPU = "See that nvidia-smi names it and that torch is a CUDA build, or set device = 'cpu'."


class _Lacking(Exception):
    """What a check needs, and no other one has found."""


def _found(value: T | None, name: str) -> T:
    """The value; raises _Lacking, with its name, if it is not there."""
    if value is None:
        raise _Lacking(name)
    return value


@dataclass
class Examination:
    """All checks once. What a check finds for later ones is None if it failed.

    Without `trial`, no step is tried; for an evaluator, there is none. With a run that is `carded`,
    which is known by its card, there is no membership and no coordinator.
    """

    settings: ClientSettings
    progress: Progress
    trial: bool = True
    role: Role = Role.CLIENT
    carded: RunView | None = None
    findings: dict[str, Finding] = field(default_factory=dict, init=False)
    _prediction: Prediction | None = field(default=None, init=False)
    _stored: StoredMembership | None = field(default=None, init=False)
    _folder: Path | None = field(default=None, init=False)
    _card: ModelCard | None = field(default=None, init=False)
    _tokenizer: PromptTokenizer | None = field(default=None, init=False)
    _survey: Survey | None = field(default=None, init=False)
    _trainable: list[Problem] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._run = self.carded
        self._stage = partial(next_stage, self.progress)

    @property
    def rules(self) -> RunSettings:
        """The run's settings; the defaults if it is not known."""
        return self._run.settings if self._run else RunSettings()

    def examine(self) -> Checklist:
        self._check_membership()
        self._check_coordinator()
        self._check_settings()
        self._check_model()
        if self.role is Role.EVALUATOR:
            self._check_device()
            return Checklist(self.findings, following="pubswap evaluate")
        self._check_data()
        with VerifierPool(self.settings.verifier_workers, self.settings.verifier_seconds) as pool:
            self._check_answers(pool)
            self._check_device()
            self._try(pool)
        return Checklist(self.findings, self._prediction)

    @contextmanager
    def _checking(self, *names: str, advice: str = "") -> Iterator[None]:
        """Make an error the failure of the first check; skip all of them if something is lacking.

        The other checks go on.
        """
        try:
            yield
        except _Lacking as lacking:
            self._skip(str(lacking), *names)
        except Exception as error:
            self.findings[names[0]] = of_error(error, advice)

    def _note(self, name: str, check: Callable[..., Finding], *arguments: Any) -> None:
        with self._checking(name):
            self.findings[name] = check(*arguments)

    def _skip(self, needed: str, *names: str) -> None:
        self.findings |= dict.fromkeys(names, skipped(needed))

    def _good(self, *names: str) -> bool:
        return all(self.findings[name].good for name in names)

    def _check_membership(self) -> None:
        if self.carded:
            self._skip("a membership, without --run", "state folder", "daemon", "membership")
            return
        state = self.settings.state
        self._note("state folder", check_folder, state)
        self._note("daemon", check_daemon, state)
        with self._checking("membership"):
            self._stored = load_membership(state)
            self.findings["membership"] = check_membership(self._stored, self.role)

    def _check_coordinator(self) -> None:
        state = self.settings.state
        with self._checking("coordinator", "token and run"):
            stored = _found(self._stored, "a membership")
            self._stage("asking the coordinator")
            self._note("coordinator", check_coordinator, state, stored)
            with self._checking("token and run"):
                if not self._good("coordinator"):
                    raise _Lacking("a coordinator that answers")
                self.findings["token and run"], self._run = check_run(state, stored)
        if self.role is Role.EVALUATOR:
            return  # it keeps no checkpoint
        with self._checking("policy", "disk"):
            needed = "the run there"
            stored, run = _found(self._stored, needed), _found(self._run, needed)
            self._note("policy", check_policy, self.settings, run, stored.coordinator)
            self._note("disk", check_disk, state, run.model.layout)

    def _check_settings(self) -> None:
        """Check our own settings against the run's, as a start does."""
        with self._checking("settings"):
            if self._run is not None:
                check_possible(self.rules, self.settings, alone=self.settings.processes == 1)
            if self.role is Role.CLIENT:
                check_installed(self.rules)
                check_trackers(self.settings.track)

    def _check_model(self) -> None:
        kind = SetKind.TEST if self.role is Role.EVALUATOR else SetKind.PUBLIC
        prompts = f"{kind} prompts"  # the operator's, that this member answers
        self._stage("reading the model's files")
        with self._checking("model files"):
            finding, self._folder, self._card = check_model(self.settings, self._run)
            self.findings["model files"] = finding
        with self._checking("chat template", "end of sequence", prompts):
            folder = _found(self._folder, "the model's files")
            card = self._run.model if self._run else _found(self._card, "the model's files")
            with self._checking("chat template"):
                self._tokenizer = PromptTokenizer(folder)
                self.findings["chat template"] = check_template(self._tokenizer, self.rules)
            with self._checking("end of sequence"):
                tokenizer = _found(self._tokenizer, "a tokenizer")
                self.findings["end of sequence"] = check_end(tokenizer, card, self.rules)
            with self._checking(prompts):
                needed = "a tokenizer and the run"
                tokenizer, _ = _found(self._tokenizer, needed), _found(self._run, needed)
                stored = _found(self._stored, needed)
                if kind is SetKind.TEST or self.rules.method == "pubswap":
                    limit = tokenizer.limit(self.rules)
                    self.findings[prompts] = check_prompts(self.settings.state, stored, limit, kind)

    def _check_data(self) -> None:
        path, known = self.settings.data, self._run is not None
        with self._checking(
            "private data", advice=f"Give a JSONL file in UTF-8 with --data, not {path}."
        ):
            if path is None:
                advice = "Say where: --data private.jsonl."
                self.findings["private data"] = failure("no private problems are named", advice)
            else:
                self._stage("reading the private problems")
                self._survey = survey(path)
                self.findings["private data"] = check_file(self._survey)
        with self._checking("number of problems", "prompt lengths", "round trip"):
            file = _found(self._survey, "private data")
            with self._checking("number of problems"):
                own = own_settings(self.settings, self.rules)
                count = check_count(file, own, known, self.settings.holdout)
                self.findings["number of problems"] = count
            with self._checking("prompt lengths", "round trip"):
                tokenizer = _found(self._tokenizer, "a tokenizer")
                encode = partial(tokenizer.encode_for, self.rules)
                task = self._stage("measuring prompts", len(file.problems))
                numbered = zip(file.lines, file.problems, strict=True)
                followed = self.progress.track(numbered, len(file.problems), task_id=task)
                with self._checking("prompt lengths"):
                    finding, self._trainable = check_lengths(
                        file, followed, encode, self.rules, known
                    )
                    self.findings["prompt lengths"] = finding
                some = sample(file.problems, SAMPLE, "doctor")
                self._note("round trip", check_round_trip, tokenizer, some)

    def _check_answers(self, pool: VerifierPool) -> None:
        with self._checking("verifiers", "answers"):
            problems, usable = _found(self._survey, "private data").problems, list[Problem]()
            default = self._run.settings.verifier if self._run else None
            with self._checking("verifiers"):
                self.findings["verifiers"], usable = check_verifiers(problems, default)
            chosen = sample(usable, SAMPLE, "doctor")
            task = self._stage("verifying the problems' own answers", len(chosen))
            advance = partial(self.progress.advance, task)
            self._note(
                "answers", check_answers, chosen, len(problems), default, pool.score_many, advance
            )

    def _check_device(self) -> None:
        """The device, its memory, and the engine on it."""
        device, evaluator = None, self.role is Role.EVALUATOR
        with self._checking("device", advice=_NO_GPU):
            device = measure_device(self.settings)
            self.findings["device"] = check_device(self.settings, device)
        with self._checking("memory"):
            if device is None or self._run is None or self._folder is None or self._card is None:
                raise _Lacking("a device, the run and the model's files")
            run = self._run.settings
            estimate = partial(
                estimate_memory,
                run=run,
                card=self._card,
                folder=self._folder,
                device=device,
                evaluator=evaluator,
            )
            self.findings["memory"] = check_memory(self.settings, run, device, estimate, evaluator)
        self._note(
            "rollout engine", check_engine, self.settings, self._run.settings if self._run else None
        )

    def _try(self, pool: VerifierPool) -> None:
        """Check what needs the loaded model.

        The first stage that fails ends it: the processes of a group can only end together.
        """
        names = ["packed path", "trial step", "prediction"] if self.trial else ["packed path"]
        run, folder = self._run, self._folder
        if run is None or folder is None or not self._good("model files", "memory"):
            self._skip("the run, its own model, and memory for it", *names)
            return
        try:
            with open_process_group(self.settings) as group:
                self._stage("loading the model")
                policy = load_policy(self.settings, folder, run.model, run.settings, group)
                self._stage("comparing packs with the model's own pass")
                path = check_packed_path(policy)
                found = warning(str(path), path.advice) if path.refused else ok(str(path))
                self.findings[names.pop(0)] = found
                # A daemon at work would lose memory to the trial, and the trial time to the daemon.
                idle = self.carded or self.findings["daemon"].status is Status.OK
                problems, _ = split(self._trainable, self.settings.holdout)
                if not (names and problems and idle and self._good("rollout engine")):
                    self._skip("the engine, private problems, and no other daemon", *names)
                    return
                member = self._stored.membership.name if self._stored else "member"
                score = partial(pool.score_many, run.settings.verifier)
                trial = try_step(
                    *(self.settings, run.id, folder, policy, group),
                    *(member, problems, score, self._stage),
                )
                self.findings[names.pop(0)] = check_trial(trial, run.settings)
                self._prediction = predict(trial, run.settings, run.model.layout, self.settings)
                self.findings[names.pop(0)] = ok(str(self._prediction))
        except Exception as error:
            self.findings[names[0]] = of_error(error)
            self._skip(f"a successful {names[0]}", *names[1:])


def run_doctor(
    config: Path | None,
    options: Mapping[str, Any],
    trial: bool,
    as_json: bool,
    role: Role = Role.CLIENT,
    card: Path | None = None,
) -> bool:
    """Print the report; returns whether nothing failed. `card` is a run card's file."""
    try:
        settings = load_settings(config, **options)
    except InvalidSettings as error:
        advice = "Correct this key; nothing else can be checked before."
        return _print(Checklist({"settings": failure(error.detail, advice)}), as_json)
    if launched_rank() not in (None, 0):
        run_follower(settings)
        return True
    with progress_bar() as progress:
        examination = Examination(
            settings, progress, trial, role, read_card(card) if card else None
        )
        source = f"from {config} and the options" if config else "from the options"
        examination.findings["settings"] = ok(f"{source}; engine {settings.engine}")
        checklist = examination.examine()
    return _print(checklist, as_json)


def _print(checklist: Checklist, as_json: bool) -> bool:
    if as_json:
        sys.stdout.write(escaped(checklist.json()) + "\n")
    else:
        Console().print(checklist.rendered())
    return checklist.healthy
