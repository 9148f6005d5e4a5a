"""The wiring of `pubswap client doctor`: all checks in order, each with what it depends on.

Nothing is changed but the ledger: the coordinator is only asked for its version, the run and its
public problems, no lock is taken, and the trial step's adapter is in memory alone.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.distributed.launch import launched_rank, run_follower
from pubswap_client.doctor.coordinator import check_coordinator, check_prompts, check_run
from pubswap_client.doctor.findings import (
    Checklist,
    Finding,
    Status,
    failure,
    of_error,
    ok,
    skipped,
)
from pubswap_client.doctor.memory import check_device, check_engine, check_memory
from pubswap_client.doctor.model import (
    check_end,
    check_model,
    check_path,
    check_round_trip,
    check_template,
)
from pubswap_client.doctor.policy import check_policy
from pubswap_client.doctor.prediction import Prediction, predict
from pubswap_client.doctor.private_data import (
    Survey,
    check_answers,
    check_count,
    check_file,
    check_lengths,
    check_verifiers,
    sample,
    survey,
)
from pubswap_client.doctor.state_folder import (
    check_daemon,
    check_disk,
    check_folder,
    check_membership,
)
from pubswap_client.doctor.trial import check_trial, load_for_trial
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.run_card import read_card
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.training.memory import MemoryEstimate, estimate_memory, measure_device
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import Role, RunView, SetKind
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool

_NO_GPU = "See that nvidia-smi names it and that torch is a CUDA build, or set device = 'cpu'."


class Examination:
    """All checks once. What a check finds for later ones is None if it failed."""

    def __init__(
        self,
        settings: ClientSettings,
        progress: Progress,
        trial: bool = True,
        role: Role = Role.CLIENT,
        carded: RunView | None = None,
    ) -> None:
        """Without `trial`, no step is tried; for an evaluator, there is none.

        With a run that is known by its card, there is no membership and no coordinator.
        """
        self.settings = settings
        self.role = role
        self.findings: dict[str, Finding] = {}
        self._stage = partial(next_stage, progress)
        self._progress = progress
        self._with_trial = trial
        self._prediction: Prediction | None = None
        self._stored: StoredMembership | None = None
        self._by_card = carded is not None
        self._run = carded
        self._folder: Path | None = None
        self._card: ModelCard | None = None
        self._tokenizer: PromptTokenizer | None = None
        self._survey: Survey | None = None
        self._trainable: list[Problem] = []

    @property
    def rules(self) -> RunSettings:
        """The run's settings; the defaults if it is not known."""
        return self._run.settings if self._run else RunSettings()

    @property
    def _set(self) -> SetKind:
        """The operator's problems that this member answers."""
        return SetKind.TEST if self.role is Role.EVALUATOR else SetKind.PUBLIC

    def examine(self) -> Checklist:
        self._check_state()
        self._check_coordinator()
        self._check_model()
        if self.role is Role.EVALUATOR:
            self._check_device()
            self._check_engine()
            return Checklist(self.findings, following="pubswap evaluate")
        self._check_data()
        with VerifierPool(self.settings.verifier_workers, self.settings.verifier_seconds) as pool:
            self._check_answers(pool)
            self._check_device()
            self._check_engine()
            self._try(pool)
        return Checklist(self.findings, self._prediction)

    @contextmanager
    def _guarded(self, name: str, advice: str = "") -> Iterator[None]:
        """Make an error the failure of the check `name`; the other checks go on."""
        try:
            yield
        except Exception as error:
            self.findings[name] = of_error(error, advice)

    def _note(self, name: str, check: Callable[..., Finding], *arguments: Any) -> None:
        with self._guarded(name):
            self.findings[name] = check(*arguments)

    def _skip(self, needed: str, *names: str) -> None:
        self.findings |= dict.fromkeys(names, skipped(needed))

    def _good(self, *names: str) -> bool:
        return all(self.findings[name].good for name in names)

    def _check_state(self) -> None:
        if self._by_card:
            self._skip("a membership, without --run", "state folder", "daemon", "membership")
            return
        state = self.settings.state
        self._note("state folder", check_folder, state)
        self._note("daemon", check_daemon, state)
        with self._guarded("membership"):
            self._stored = load_membership(state)
            self.findings["membership"] = check_membership(self._stored, self.role)

    def _check_coordinator(self) -> None:
        run: RunView | None = None
        if self._stored is None:
            self._skip("a membership", "coordinator", "token and run")
        else:
            self._stage("asking the coordinator")
            self._note("coordinator", check_coordinator, self.settings.state, self._stored)
            if not self._good("coordinator"):
                self._skip("a coordinator that answers", "token and run")
            else:
                with self._guarded("token and run"):
                    self.findings["token and run"], run = check_run(
                        self.settings.state, self._stored
                    )
        self._run = run or self._run
        if self.role is Role.EVALUATOR:
            return  # it keeps no checkpoint
        if run is None or self._stored is None:
            self._skip("the run there", "policy", "disk")
        else:
            known = self.settings.state, run, self._stored.coordinator
            self._note("policy", check_policy, *known)
            self._note("disk", check_disk, self.settings.state, run.model.layout)

    def _check_model(self) -> None:
        self._stage("reading the model's files")
        with self._guarded("model files"):
            finding, self._folder, self._card = check_model(self.settings, self._run)
            self.findings["model files"] = finding
        if self._folder is None or self._card is None:
            needed = "the model's files"
            self._skip(needed, "chat template", "end of sequence", f"{self._set} prompts")
            return
        with self._guarded("chat template"):
            self._tokenizer = PromptTokenizer(self._folder)
            self.findings["chat template"] = check_template(self._tokenizer, self.rules)
        if self._tokenizer is None:
            self._skip("a tokenizer", "end of sequence")
        else:
            card = self._run.model if self._run else self._card
            self._note("end of sequence", check_end, self._tokenizer, card, self.rules)
        name = f"{self._set} prompts"
        if self._tokenizer is None or self._run is None or self._stored is None:
            self._skip("a tokenizer and the run", name)
        elif self._set is SetKind.TEST or self.rules.method == "pubswap":
            limit = self._tokenizer.limit(self.rules)
            self._note(name, check_prompts, self.settings.state, self._stored, limit, self._set)

    def _check_data(self) -> None:
        path, names = self.settings.data, ("number of problems", "prompt lengths", "round trip")
        if path is None:
            advice = "Say where: --data private.jsonl."
            self.findings["private data"] = failure("no private problems are named", advice)
        else:
            self._stage("reading the private problems")
            advice = f"Give a JSONL file in UTF-8 with --data, not {path}."
            with self._guarded("private data", advice):
                self._survey = survey(path)
                self.findings["private data"] = check_file(self._survey)
        if self._survey is None:
            self._skip("private data", *names)
            return
        known = self._run is not None
        holdout = self.settings.holdout
        count = partial(check_count, self._survey, known=known, holdout=holdout)
        self._note("number of problems", lambda: count(own_settings(self.settings, self.rules)))
        if self._tokenizer is None:
            self._skip("a tokenizer", "prompt lengths", "round trip")
            return
        encode = partial(self._tokenizer.encode_for, self.rules)
        task = self._stage("measuring prompts", len(self._survey.problems))
        numbered = zip(self._survey.lines, self._survey.problems, strict=True)
        followed = self._progress.track(numbered, len(self._survey.problems), task_id=task)
        with self._guarded("prompt lengths"):
            finding, self._trainable = check_lengths(
                self._survey, followed, encode, self.rules, known
            )
            self.findings["prompt lengths"] = finding
        self._note("round trip", check_round_trip, self._tokenizer, sample(self._survey.problems))

    def _check_answers(self, pool: VerifierPool) -> None:
        if self._survey is None:
            self._skip("private data", "verifiers", "answers")
            return
        problems, usable = self._survey.problems, list[Problem]()
        default = self._run.settings.verifier if self._run else None
        with self._guarded("verifiers"):
            self.findings["verifiers"], usable = check_verifiers(problems, default)
        chosen = sample(usable)
        task = self._stage("verifying the problems' own answers", len(chosen))
        advance = partial(self._progress.advance, task)
        self._note(
            "answers", check_answers, chosen, len(problems), default, pool.score_many, advance
        )

    def _check_device(self) -> None:
        device = None
        with self._guarded("device", _NO_GPU):
            device = measure_device(self.settings)
            self.findings["device"] = check_device(self.settings, device)
        if device is None or self._run is None or self._folder is None or self._card is None:
            self._skip("a device, the run and the model's files", "memory")
            return
        run, card, folder = self._run.settings, self._card, self._folder
        evaluator = self.role is Role.EVALUATOR

        def estimate(settings: ClientSettings) -> MemoryEstimate:
            return estimate_memory(settings, run, card, folder, device, evaluator)

        self._note("memory", check_memory, self.settings, run, device, estimate, evaluator)

    def _check_engine(self) -> None:
        run = self._run.settings if self._run else None
        self._note("rollout engine", check_engine, self.settings, run)

    def _try(self, pool: VerifierPool) -> None:
        """Check what needs the loaded model.

        The first stage that fails ends it: the processes of a group can only end together.
        """
        names = ["packed path", "trial step", "prediction"] if self._with_trial else ["packed path"]
        run, folder = self._run, self._folder
        if run is None or folder is None or not self._good("model files", "memory"):
            self._skip("the run, its own model, and memory for it", *names)
            return
        try:
            with load_for_trial(self.settings, run, folder, self._stage) as loaded:
                self.findings[names.pop(0)] = check_path(loaded.verdict)
                # A daemon at work would lose memory to the trial, and the trial time to the daemon.
                idle = self._by_card or self.findings["daemon"].status is Status.OK
                if (
                    names
                    and (self._stored or self._by_card)
                    and self._trainable
                    and idle
                    and self._good("rollout engine")
                ):
                    member = self._stored.membership.name if self._stored else "member"
                    score = partial(pool.score_many, run.settings.verifier)
                    trial = loaded.step(member, self._trainable, score, self._stage)
                    own = own_settings(self.settings, run.settings)
                    self.findings[names.pop(0)] = check_trial(trial, own)
                    self._prediction = predict(
                        *(trial, run.settings, run.model.layout, self.settings.holdout, own)
                    )
                    self.findings[names.pop(0)] = ok(str(self._prediction))
                else:
                    self._skip("the engine, private problems, and no other daemon", *names)
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
        sys.stdout.write(checklist.json() + "\n")
    else:
        Console().print(checklist.rendered())
    return checklist.healthy
