"""A client that is given sampling seeds: what it sends, and what it reports about donors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.rollout.transformers_engine import (
    Prompts,
    SamplingParameters,
    TransformersEngine,
)
from pubswap_client.training.evidence import response_evidence
from pubswap_protocol.draws import response_seed
from pubswap_protocol.messages import DonorEvidence
from pubswap_protocol.tensors.responses import Response, ResponseRules, decode_responses
from support.client.one_client import PUBLIC, ROUNDS, World, kill_again_and_again

SEED = 77


def checked(world: Callable[..., World], *engine: Any) -> World:
    """A world whose coordinator gives seeds, and numbers two donors."""
    made = world(*engine)
    coordinator = made.coordinator
    coordinator.sampling_seed = SEED
    coordinator.peer = [
        [replace(one, seed=1000 + k, donor=5 + k % 2) for k, one in enumerate(group)]
        for group in coordinator.peer
    ]
    return made


def sent(one: World, public_step: int) -> list[list[Response]]:
    """Our responses to a public step of round 1, as the coordinator received them."""
    run = one.coordinator.run
    rules = ResponseRules.of(run.model, run.settings, PUBLIC)
    return decode_responses(one.coordinator.submitted[1, public_step], rules)


def reports(one: World) -> list[list[DonorEvidence]]:
    """The donor reports of all rounds' updates."""
    updates = one.coordinator.updates
    return [updates[number].metrics.donors for number in range(1, ROUNDS + 1)]


def test_a_client_says_its_seeds_and_reports_its_donors(world: Callable[..., World]) -> None:
    """Each round has one report of all donated responses by donor, which here were not sampled from
    the noise.
    """
    one = checked(world)
    one.live()
    for public_step in (1, 2):
        seeds = [[response.seed for response in group] for group in sent(one, public_step)]
        assert seeds == [[response_seed(SEED, p, k) for k in range(4)] for p in range(3)]
    for report in reports(one):
        # Two public steps of three prompts, with one response of each donor to each.
        assert [(found.number, found.responses) for found in report] == [(5, 6), (6, 6)]
        assert all(found.other_noise > 6 for found in report)


def test_a_report_covers_all_steps_of_a_round(world: Callable[..., World]) -> None:
    """Responses and evidence are summed over the round."""
    one, steps = checked(world), []
    trainer = one.trainer

    def noting(*given: Any) -> Any:
        made = trainer(*given)
        step = made.public_step

        def public_step(*args: Any, **kwargs: Any) -> Any:
            metrics = step(*args, **kwargs)
            steps.append(metrics.donors)
            return metrics

        made.public_step = public_step
        return made

    one.trainer = noting
    one.live()
    for number, report in enumerate(reports(one)):
        mine = steps[2 * number : 2 * number + 2]
        for found in report:
            each = [step[str(found.number)] for step in mine]
            count, evidence = (sum(values) for values in zip(*each, strict=True))
            assert (found.responses, found.other_noise) == (count, pytest.approx(evidence))


@pytest.mark.full
def test_a_client_that_is_killed_reports_the_same(world: Callable[..., World]) -> None:
    """Earlier evidence is in the checkpoint; nothing is counted twice."""
    straight, killed = checked(world), checked(world)
    straight.live()
    assert kill_again_and_again(killed) > 5
    assert reports(killed) == reports(straight)
    assert killed.coordinator.mismatches == 0


def test_without_a_seed_nothing_is_said_or_reported(world: Callable[..., World]) -> None:
    """As in a run without the sampling check."""
    one = world()
    one.live()
    assert {response.seed for group in sent(one, 1) for response in group} == {-1}
    assert reports(one) == [[]] * ROUNDS


class Other(TransformersEngine):
    """An engine that uses the seeds in another way."""

    def generate(
        self, prompts: Prompts, sampling: SamplingParameters, first: int = 0
    ) -> list[list[Response]]:
        return super().generate(prompts, replace(sampling, gumbel=False), first)


def test_an_engine_that_draws_otherwise_is_found_out_and_claims_nothing(
    world: Callable[..., World],
) -> None:
    """An unknown engine is tested once; its responses are then sent as unverified."""
    for engine, claims in ((TransformersEngine, True), (Other, False)):
        one = checked(world, engine)
        trainer = one.trainer

        def unknown(*given: Any, trainer: Any = trainer) -> Any:
            made = trainer(*given)
            made.max_mismatch = 1.0  # as for any engine but transformers
            return made

        one.trainer = unknown
        one.live()
        assert (sent(one, 1)[0][0].seed != -1) is claims


def batch_of(trainer: Any, problems: Any, groups: list[list[Response]]) -> Batch:
    """A batch of these responses with rewards of 0."""
    return collate(
        [
            Group(trainer.policy.encode(problem.prompt), group, [0.0] * 4)
            for problem, group in zip(problems, groups, strict=True)
        ],
    )


def test_no_evidence_is_found_against_own_responses(world: Callable[..., World]) -> None:
    """Evaluated by the policy that sampled them, which shows that engine and trainer count
    positions alike.
    """
    trainer = world().trainer()
    problems = world().coordinator.problems[:3]
    groups = trainer.public_rollout(2, problems, SEED)
    own, others = (
        response_evidence(trainer.policy, batch_of(trainer, problems, sent), 0.7, 1 << 16)
        for sent in (groups, [[replace(one, seed=one.seed + 1) for one in g] for g in groups])
    )
    assert float(own.max()) < 0 < float(others.min())
