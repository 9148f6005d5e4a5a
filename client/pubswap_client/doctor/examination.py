"""The wiring of `pubswap client doctor`: all checks in order, each with what it depends on.

Nothing is changed: the coordinator is only asked for its version, the run and its public problems,
no lock is taken, and the trial step's adapter is in memory alone.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pubswap_client.distributed.launch import launched_rank
from pubswap_client.doctor import state_folder, template
from pubswap_client.doctor.findings import FIT, Record, Status, failure, of_error, ok
from pubswap_client.doctor.memory import (
    DEVICE,
    ENGINE,
    MEMORY,
    check_device,
    check_engine,
    check_memory,
)
from pubswap_client.doctor.prediction import (
    PACKED,
    PREDICTION,
    TRIAL,
    Prediction,
    check_trial,
    packed_finding,
    predict,
    prediction_finding,
)
from pubswap_client.doctor.private_data import (
    ANSWERS,
    COUNT,
    DATA,
    LENGTHS,
    VERIFIERS,
    Survey,
    check_answers,
    check_count,
    check_file,
    check_lengths,
    check_verifiers,
    chunks,
    sample,
    survey,
)
from pubswap_client.doctor.public_data import PUBLIC, check_public
from pubswap_client.doctor.report import Checklist
from pubswap_client.doctor.state_folder import COORDINATOR, RUN, ask_run, check_coordinator
from pubswap_client.doctor.template import MODEL, check_model
from pubswap_client.doctor.trial import TrialRun, rehearsal
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.progress_bar import Display
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.training.memory import MemoryEstimate, measure_device, needs
from pubswap_client.training.trainer import Scorer
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool

_NO_GPU = "See that nvidia-smi names it and that torch is a CUDA build, or set device = 'cpu'."


class Examination:
    """One examination. What a check found out for the next ones is None if it failed."""

    def __init__(self, settings: ClientSettings, display: Display, trial: bool = True) -> None:
        """Checks begin with `examine`; without `trial`, no step is tried."""
        self.settings = settings
        self.display = display
        self.record = Record()
        self.prediction: Prediction | None = None
        self._wants_trial = trial
        self._membership: StoredMembership | None = None
        self._run: RunView | None = None
        self._folder: Path | None = None
        self._card: ModelCard | None = None
        self._tokenizer: PromptTokenizer | None = None
        self._survey: Survey | None = None
        self._trainable: list[Problem] = []

    @property
    def rules(self) -> RunSettings:
        """The run's settings; the defaults if it is not known."""
        return self._run.settings if self._run else RunSettings()

    def examine(self) -> Checklist:
        """All checks."""
        self._state()
        self._coordinator()
        self._model()
        self._data()
        with VerifierPool(self.settings.verifier_workers, self.settings.verifier_seconds) as pool:
            self._answers(pool)
            self._device()
            self._engine()
            self._rehearse(pool)
        return Checklist(self.record.findings, self.prediction)

    def _state(self) -> None:
        state = self.settings.state
        self.record.note(state_folder.FOLDER, partial(state_folder.check_folder, state))
        self.record.note(state_folder.DAEMON, partial(state_folder.check_daemon, state))
        with self.record.guarded(state_folder.MEMBERSHIP):
            self._membership = load_membership(state)
            self.record.add(state_folder.check_membership(self._membership))

    def _coordinator(self) -> None:
        if self._membership is None:
            self.record.skip("a membership", COORDINATOR, RUN)
        else:
            self.display.tell("asking the coordinator")
            stored = self._membership
            self.record.note(COORDINATOR, partial(check_coordinator, stored))
            if not self.record.all(COORDINATOR, well=FIT):
                self.record.skip("a coordinator that answers", RUN)
            else:
                with self.record.guarded(RUN):
                    finding, self._run = ask_run(stored)
                    self.record.add(finding)
        if self._run is None:
            self.record.skip("the run's adapter layout", state_folder.DISK)
        else:
            self.record.note(
                state_folder.DISK,
                partial(state_folder.check_disk, self.settings.state, self._run.model.layout),
            )

    def _model(self) -> None:
        self.display.tell("reading the model's files")
        with self.record.guarded(MODEL):
            finding, self._folder, self._card = check_model(self.settings, self._run)
            self.record.add(finding)
        if self._folder is None or self._card is None:
            self.record.skip("the model's files", template.TEMPLATE, template.END, PUBLIC)
            return
        with self.record.guarded(template.TEMPLATE):
            self._tokenizer = PromptTokenizer(self._folder)
            self.record.add(template.check_template(self._tokenizer, self.rules))
        if self._tokenizer is None:
            self.record.skip("a tokenizer", template.END)
        else:
            card = self._run.model if self._run else self._card
            self.record.note(
                template.END, partial(template.check_end, self._tokenizer, card, self.rules)
            )

        stored = self._membership
        if self._tokenizer is None or self._run is None or stored is None:
            self.record.skip("a tokenizer and the run", PUBLIC)
        elif self.rules.method == "pubswap":
            limit = self._tokenizer.limit(self.rules)
            self.record.note(PUBLIC, partial(check_public, stored, limit))

    def _data(self) -> None:
        path = self.settings.data
        if path is None:
            self.record.add(
                failure(DATA, "no private problems are named", "Say where: --data private.jsonl.")
            )
        else:
            self.display.tell("reading the private problems")
            with self.record.guarded(DATA, f"Give a JSONL file in UTF-8 with --data, not {path}."):
                self._survey = survey(path)
                self.record.add(check_file(self._survey))
        if self._survey is None:
            self.record.skip("private data", COUNT, LENGTHS, template.ROUND_TRIP)
            return
        known = self._run is not None
        self.record.note(COUNT, partial(check_count, self._survey, self.rules, known))
        if self._tokenizer is None:
            self.record.skip("a tokenizer", LENGTHS, template.ROUND_TRIP)
        else:
            self._prompts(self._survey, self._tokenizer, known)

    def _prompts(self, found: Survey, tokenizer: PromptTokenizer, known: bool) -> None:
        rules = self.rules
        encode = partial(tokenizer.encode_for, rules)
        numbered = list(zip(found.lines, found.problems, strict=True))
        followed = self.display.track(numbered, "measuring prompts", len(numbered))
        with self.record.guarded(LENGTHS):
            finding, self._trainable = check_lengths(found, followed, encode, rules, known)
            self.record.add(finding)
        self.record.note(
            template.ROUND_TRIP,
            partial(template.check_round_trip, tokenizer, sample(found.problems)),
        )

    def _answers(self, pool: VerifierPool) -> None:
        if self._survey is None:
            self.record.skip("private data", VERIFIERS, ANSWERS)
            return
        problems = self._survey.problems
        default = self._run.settings.verifier if self._run else None
        usable: list[Problem] = []
        self.display.tell("verifying the problems' own answers")
        with self.record.guarded(VERIFIERS):
            finding, usable = check_verifiers(problems, default)
            self.record.add(finding)
        chosen = sample(usable)
        chunked = chunks(chosen)
        followed = self.display.track(chunked, "verifying the problems' own answers", len(chunked))
        self.record.note(
            ANSWERS,
            partial(check_answers, followed, len(problems), default, pool.score_many),
        )

    def _device(self) -> None:
        place = None
        with self.record.guarded(DEVICE, _NO_GPU):
            place = measure_device(self.settings)
            self.record.add(check_device(self.settings, place))
        if place is None or self._run is None or self._folder is None or self._card is None:
            self.record.skip("a device, the run and the model's files", MEMORY)
            return
        run, card, folder = self._run.settings, self._card, self._folder

        def estimate(settings: ClientSettings) -> MemoryEstimate:
            return needs(settings, run, card, folder, place)

        self.record.note(MEMORY, partial(check_memory, self.settings, run, place, estimate))

    def _engine(self) -> None:
        run = self._run.settings if self._run else None
        self.record.note(ENGINE, partial(check_engine, self.settings, run))

    def _rehearse(self, pool: VerifierPool) -> None:
        """What needs the loaded model. The first stage that fails ends it: the processes of a
        crew can only end together.
        """
        waiting = [PACKED, TRIAL, PREDICTION] if self._wants_trial else [PACKED]
        run, folder = self._run, self._folder
        if run is None or folder is None or not self.record.all(MODEL, MEMORY, well=FIT):
            self.record.skip("the run, its own model, and memory for it", *waiting)
            return
        try:
            with rehearsal(self.settings, run, folder, self.display.tell) as loaded:
                self.record.add(packed_finding(loaded.packed_difference))
                waiting.remove(PACKED)
                if waiting and self._ready_for_trial():
                    self._try(loaded, run, partial(pool.score_many, run.settings.verifier))
                elif waiting:
                    self.record.skip("the engine, private problems, and no other daemon", *waiting)
        except Exception as error:
            self.record.add(of_error(waiting[0], error))
            self.record.skip(f"a successful {waiting[0]}", *waiting[1:])

    def _ready_for_trial(self) -> bool:
        """A daemon at work would lose memory to the trial, and the trial time to the daemon."""
        return (
            bool(self._trainable)
            and self.record.all(ENGINE, well=FIT)
            and self.record.all(state_folder.DAEMON, well=(Status.OK,))
        )

    def _try(self, loaded: TrialRun, run: RunView, score: Scorer) -> None:
        assert self._membership is not None  # it was what the run was asked for with
        trial = loaded.step(
            self._membership.membership.name, self._trainable, score, self.display.tell
        )
        self.record.add(check_trial(trial, run.settings))
        self.prediction = predict(trial, run.settings, run.model.layout)
        self.record.add(prediction_finding(self.prediction))


SETTINGS = "settings"


def run_doctor(config: Path | None, options: Mapping[str, Any], trial: bool, as_json: bool) -> bool:
    """Print the report; returns whether nothing failed."""
    try:
        settings = load_settings(config, **options)
    except InvalidSettings as error:
        advice = "Correct this key; nothing else can be checked before."
        return _print(Checklist([failure(SETTINGS, error.detail, advice)]), as_json)
    if launched_rank() not in (None, 0):
        from pubswap_client.distributed.launch import run_follower

        run_follower(settings)
        return True
    return _print(_examined(settings, config, trial), as_json)


def _examined(settings: ClientSettings, config: Path | None, trial: bool) -> Checklist:
    with Display() as display:
        display.tell("starting")
        # torch takes seconds to import, which the display is to cover.
        pass

        examination = Examination(settings, display, trial)
        source = f"from {config} and the options" if config else "from the options"
        examination.record.add(ok(SETTINGS, f"{source}; engine {settings.engine}"))
        return examination.examine()


def _print(report: Checklist, as_json: bool) -> bool:
    if as_json:
        sys.stdout.write(report.json() + "\n")
    else:
        Console().print(report.rendered())
    return report.healthy
