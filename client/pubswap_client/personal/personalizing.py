"""Train a private adapter on top of the shared one, without opening any connection.

The shared adapter's products are added to the base weights, and a new adapter, whose product begins
at zero, is trained on private problems by the run's private steps. Both are written as one, with
the run's scale alpha / r: B A + B' A' = [B B'] [A; A'].
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pubswap_client.base_model import own_model
from pubswap_client.consent.policy import allows_unconfined
from pubswap_client.daemon.factories import make_engine, make_trainer
from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.data.holdout import split
from pubswap_client.distributed.launch import load_policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.run_card import CARD, read_card
from pubswap_client.settings import ClientSettings
from pubswap_client.state.journal import Checkpoint, Journal, JournalOwner, RoundKey
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import load_membership
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidAdapter, InvalidProblems, InvalidSettings
from pubswap_protocol.files import require_vacant, whole_folder
from pubswap_protocol.messages import RunView
from pubswap_protocol.methods.method import FedAvg
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.settings import AggregationSettings, RunSettings
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterFile,
    AdapterLayout,
    encode_adapter,
    initial_adapter,
    is_a,
    modules,
    stack_layout,
)
from pubswap_protocol.tensors.peft_folder import WEIGHTS, PublishedAdapter, write_peft_folder
from pubswap_protocol.verifiers import VerifierPool

PROGRESS = "personal"  # in the state folder


@dataclass(frozen=True)
class Measured:
    """pass@1 on the organisation's held-out problems, with the same draws for both adapters."""

    problems: int
    shared: float
    personal: float


def personalize(
    settings: ClientSettings, shared: Path, steps: int, out: Path, say: Callable[[str], object]
) -> Measured:
    """Train `steps` steps, continuing after the last saved one, and write the PEFT folder.

    Raises InvalidSettings, InvalidProblems or InvalidAdapter, before anything is trained, if
    something is missing or not of the run.
    """
    require_vacant(out)
    # An engine with its own copy of the base model would not have the shared adapter in it.
    settings = settings.model_copy(update={"engine": "transformers", "rank": None})
    member = load_membership(settings.state).membership
    if not (shared / WEIGHTS).is_file():
        raise InvalidSettings(
            f"{shared} holds no adapter. `pubswap client adapter --out FOLDER` downloads the "
            "run's: give it with --adapter."
        )
    run = read_card(settings.state / CARD)  # written by the daemon
    rules = _private(own_settings(settings, run.settings), steps)
    problems, held_out = _problems(settings, rules)
    source = open_adapter(shared, run)
    folder, _ = own_model(settings, run, offline=True)
    terms = f"{rules.model_dump_json()}{run.model.model_dump_json()}"
    with (
        locked(settings.state),
        VerifierPool(unconfined=allows_unconfined(settings.state)) as pool,
    ):
        say("loading the model")
        policy = load_policy(settings, folder, run.model, rules)
        check_packed_path(policy, settings.gradient_checkpointing)
        with closing(make_engine(settings, policy, folder)) as engine:
            trainer = make_trainer(
                settings=settings,
                policy=policy,
                engine=engine,
                client=member.name,
                problems=problems,
                scorer=partial(pool.score_many, rules.verifier),
            )
            trainer.rebase([source])
            start = initial_adapter(run.model.layout, rules.seed)  # B = 0: the shared one alone
            say(f"measuring the shared adapter on {len(held_out)} held-out problems")
            shared_score = trainer.pass_at_1(start, held_out)
            owner = JournalOwner(member.run, member.name, digest_of(terms.encode()))
            journal = Journal(settings.state / PROGRESS, owner)
            personal = _trained(
                trainer, journal, source.digest(), start, run.settings.rounds + 1, say
            )
            say(f"measuring the personal adapter on {len(held_out)} held-out problems")
            personal_score = trainer.pass_at_1(personal, held_out)
    with whole_folder(out, mode=0o700) as making:
        layout, both = stacked(source, personal)
        write_peft_folder(
            making, encode_adapter(layout, both), rules.lora, run.model, run.model.source
        )
        (making / "README.md").write_text(_README.format(name=run.name), encoding="utf-8")
    return Measured(len(held_out), shared_score, personal_score)


_README = """\
# The adapter of {name} with this organisation's own on top

It was trained on private problems, and is not part of the run. It was sent to nobody, and no
differential privacy limits what it reveals about them: keep it within this organisation.
"""


def _trained(
    trainer: LocalTrainer,
    journal: Journal,
    shared: str,
    start: Adapter,
    round_: int,
    say: Callable[[str], object],
) -> Adapter:
    """The adapter after all steps, each saved before the next one.

    `round_` is the one after the run's last, so that no step of the run had the same draws.
    """
    trainer.begin_round(round_, start)
    saved, done = journal.checkpoint(), list[StepMetrics]()
    if saved is not None and saved.key.start == shared:
        trainer.restore(saved.snapshot)
        done = list(saved.steps)
    steps = trainer.settings.local_steps
    for step in range(len(done) + 1, steps + 1):
        done.append(trainer.private_step(step))
        journal.save(Checkpoint(RoundKey(round_, shared), tuple(done), trainer.snapshot()))
        say(f"step {step} of {steps}: reward {done[-1].reward:.3f}")
    return trainer.adapter()


def stacked(shared: AdapterFile, personal: Adapter) -> tuple[AdapterLayout, Adapter]:
    """The two as one adapter, whose ranks are the sums of theirs."""
    both = {
        name: np.concatenate([shared.tensor(name), personal[name]], axis=0 if is_a(name) else 1)
        for name in personal
    }
    ranks = {a: both[a].shape[0] for a, _ in modules(shared.layout)}
    return stack_layout(shared.layout, ranks), both


def _private(run: RunSettings, steps: int) -> RunSettings:
    """Settings without other members: only private steps, from which nothing is released."""
    alone = {"method": FedAvg(), "local_steps": steps}
    default = {"aggregation": AggregationSettings(), "privacy": None}
    return run.model_copy(update={**alone, **default})


def _problems(settings: ClientSettings, rules: RunSettings) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on, and the held-out ones, as in the run."""
    if settings.data is None:
        raise InvalidSettings("Say where the private problems are: --data private.jsonl")
    if not settings.holdout:
        raise InvalidSettings(
            "No problems are held out, so nothing would show whether the personal adapter is "
            "better. Set `holdout` in client.toml, as in the run."
        )
    problems, held_out = split(read_problems(settings.data), settings.holdout)
    if len(problems) < (least := rules.grpo.prompts_per_step):
        raise InvalidProblems(
            f"{settings.data} holds {len(problems)} problems besides {len(held_out)} held-out "
            f"ones; a step takes {least} different ones."
        )
    return problems, held_out


def open_adapter(folder: Path, run: RunView) -> PublishedAdapter:
    """Open and check a PEFT folder's adapter. Raises InvalidAdapter if it is not of the run."""
    try:
        file = PublishedAdapter(folder, run.model)
        file.check()
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{folder}: {error.detail} Is it from this run?") from None
    return file
