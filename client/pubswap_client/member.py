"""The wiring of `pubswap client start` and `pubswap evaluate`: the only place where parts meet."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from pubswap_client.api import CoordinatorClient
from pubswap_client.daemon import Daemon
from pubswap_client.evaluator import Evaluator
from pubswap_client.membership import load_membership
from pubswap_client.models import model_folder
from pubswap_client.settings import ClientSettings
from pubswap_client.training.engines import make_engine
from pubswap_client.training.evaluate import pass_at_1
from pubswap_client.training.logprobs import default_rows
from pubswap_client.training.policy import Policy, set_threads
from pubswap_client.training.rollout import RolloutEngine
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.adapter import Adapter
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import Forbidden, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import Hello, Role, RunView, SetKind
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem, parse_problems, read_problems
from pubswap_protocol.verifiers import VerifierPool, verifier_version

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """A member that has said hello: its run, its policy, and its rollout engine."""

    api: CoordinatorClient
    name: str
    run: RunView
    policy: Policy
    engine: RolloutEngine
    score: Callable[[Sequence[tuple[str, Problem]]], list[float]]


def run_client(settings: ClientSettings) -> None:
    """Train for one organisation until the run ends."""
    if settings.data is None:
        raise InvalidSettings("Say where the private problems are: --data private.jsonl")
    problems = read_problems(settings.data)
    with _member(settings, Role.CLIENT) as member:
        if len(problems) < member.run.settings.grpo.prompts_per_step:
            raise InvalidProblems(
                f"{settings.data} holds {len(problems)} problems; a step takes "
                f"{member.run.settings.grpo.prompts_per_step} different ones."
            )
        trainer = LocalTrainer(
            policy=member.policy,
            engine=member.engine,
            settings=member.run.settings,
            client=member.name,
            problems=problems,
            scorer=member.score,
            rows=settings.rows or default_rows(member.run.settings, member.run.model),
        )
        Daemon(member.api, member.run, trainer, examples=len(problems)).work()


def run_evaluator(settings: ClientSettings) -> None:
    """Evaluate every round's adapter until the run ends."""
    with _member(settings, Role.EVALUATOR) as member:
        text = member.api.problem_set(member.run.id, SetKind.TEST)
        problems = list(parse_problems(text.splitlines(), "the test set"))

        def evaluate(adapter: Adapter) -> tuple[float, dict[str, float]]:
            member.policy.load_adapter(adapter)
            return pass_at_1(
                policy=member.policy,
                engine=member.engine,
                problems=problems,
                scorer=member.score,
                settings=member.run.settings,
                seed=seed_for(member.run.settings.seed, "evaluation"),
            )

        Evaluator(member.api, member.run, len(problems), evaluate).work()


@contextmanager
def _member(settings: ClientSettings, role: Role) -> Iterator[Member]:
    """Say hello with the right model, and load it."""
    stored = load_membership(settings.state)
    membership = stored.membership
    if membership.role is not role:
        raise Forbidden(
            f"{settings.state} is the membership of {membership.name}, whose role is "
            f"{membership.role}; this command needs the role {role}."
        )
    if settings.threads:
        set_threads(settings.threads)
    with (
        CoordinatorClient(stored.coordinator, membership.token) as api,
        VerifierPool(settings.verifier_workers, settings.verifier_seconds) as pool,
    ):
        api.check_version()
        run = api.run(membership.run)
        folder = model_folder(
            settings.model or run.model.source, settings.revision or run.model.revision
        )
        card = model_card(folder, run.settings.lora, str(folder), settings.revision)
        run.model.check_same(card)
        api.hello(
            run.id,
            Hello(
                config_digest=card.config_digest,
                tokenizer_digest=card.tokenizer_digest,
                weights_digest=card.weights_digest,
                verifier_version=verifier_version(run.settings.verifier),
            ),
        )
        policy = Policy.load(folder, run.model, run.settings, device=settings.device)
        log.info("%s joins run %s on %s.", membership.name, run.name, policy.device)
        with closing(make_engine(settings, policy, folder)) as engine:
            score = partial(pool.score_many, run.settings.verifier)
            yield Member(api, membership.name, run, policy, engine, score)
