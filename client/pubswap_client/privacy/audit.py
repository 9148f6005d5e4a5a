"""Wire `pubswap client privacy audit` together; it only reads from the coordinator."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pubswap_client.base_model import own_model
from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.daemon.own_settings import own_settings
from pubswap_client.distributed.launch import load_policy
from pubswap_client.operator.adapter_folder import which_adapter
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_client.privacy.attacks import Attacker, Likelihoods
from pubswap_client.privacy.problem_sets import checked, effective, of_run
from pubswap_client.privacy.report import AuditReport, audited
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.state.history import HISTORY, RoundFigures, read
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_client.training.memory import default_budget
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import WholeRun
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.tensors.adapter import decode_adapter
from pubswap_protocol.terms import check_required

Advance = Callable[[str, int, int], object]  # problems that are attacked, how many, of how many


def audit(
    settings: ClientSettings,
    members: Path | None,
    others: Path | None,
    round_: int | None,
    advance: Advance,
) -> AuditReport:
    """Audit a round's adapter, by default the last of a finished run.

    Members are the problems in a file, or the private ones that the run's schedule has drawn.
    Raises InvalidSettings, InvalidProblems or WrongState if they cannot be audited.
    """
    stored = load_membership(settings.state)
    run, number, adapter = _released(settings.state, stored, round_)
    if members is None:
        history = read(settings.state / HISTORY, run.id, RoundFigures)
        rounds = effective(history, run.rounds, number)
        if settings.data is None:
            raise InvalidSettings("Say what was trained on: --data private.jsonl, as for `start`.")
        client, private_settings = stored.membership.name, own_settings(settings, run.settings)
        sets = of_run(settings.data, others, private_settings, client, rounds, settings.holdout)
    elif others is None:
        raise InvalidSettings("--members needs --others, problems that were not trained on.")
    else:
        sets = read_problems(members), read_problems(others)
    inside, outside = checked(*sets)
    attacker = _attacker(settings, run)
    attacker.policy.load_adapter(decode_adapter(run.model.layout, adapter))
    return audited(
        run.name,
        number,
        digest_of(adapter),
        list(_followed(attacker, inside, "members", advance)),
        list(_followed(attacker, outside, "others", advance)),
    )


def _released(
    state: Path, stored: StoredMembership, round_: int | None
) -> tuple[WholeRun, int, bytes]:
    with member_client(state, stored, Backoff(tries=3)) as api:
        run = api.whole_run(stored.membership.run)
        check_required(run.requires)
        max_bytes = run.model.layout.file_bytes
        return run, *api.adapter_of_round(run.id, which_adapter(run, round_), max_bytes)


def _attacker(settings: ClientSettings, run: WholeRun) -> Attacker:
    """An attacker with the run's policy on one device, sampled by transformers."""
    folder, _ = own_model(settings, run)
    policy: Policy = load_policy(settings, folder, run.model, run.settings)
    check_packed_path(policy)
    plain = PromptTokenizer(folder).plain
    return Attacker(
        policy,
        TransformersEngine(policy, settings.rollout_rows),
        lambda answer: plain.encode(answer, add_special_tokens=False).ids,
        settings.micro_batch_tokens or default_budget(policy, checkpointing=False),
    )


def _followed(
    attacker: Attacker, problems: Sequence[Problem], purpose: str, advance: Advance
) -> Iterator[Likelihoods]:
    for done, likelihoods in enumerate(attacker.look(problems, purpose)):
        advance(purpose, done, len(problems))
        yield likelihoods
