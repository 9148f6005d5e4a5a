"""Membership inference attacks on an adapter: scores that its holder can compute for a problem.

If an attack works, its score is higher for a member: a problem that was trained on. A threshold on
the loss is due to Yeom et al. (CSF 2018), the base model as a reference to Carlini et al. (USENIX
Security 2021). GRPO does not train on answers but on the model's own responses, and their drift
from the base model reveals more ("Auditing Data Membership in Reinforcement Learning With
Verifiable Rewards", arXiv 2511.14045). So both are applied to the answer and to responses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pubswap_client.policy.logprobs import mean_logprobs
from pubswap_client.policy.policy import Policy
from pubswap_client.privacy.separation import Scores
from pubswap_client.rollout.transformers_engine import RolloutEngine, SamplingParameters
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.responses import Response

RESPONSES = 4  # to each problem
_PART = 32  # problems sampled at a time


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """One problem's mean log-probabilities per token, in nats, at the run's temperature."""

    answer: float
    answer_base: float  # under the base model
    sampled: float  # of the released model's own responses
    sampled_base: float


@dataclass(frozen=True, slots=True)
class Attack:
    """A score, and the attacker's action, as in "an attacker who …"."""

    name: str
    words: str
    score: Callable[[Likelihoods], float]

    def scores(self, likelihoods: Sequence[Likelihoods]) -> Scores:
        """The score of each problem; raises InvalidAdapter if one is not finite."""
        scores = np.array([self.score(each) for each in likelihoods])
        if not np.isfinite(scores).all():
            raise InvalidAdapter("The adapter gives text a likelihood that is not finite.")
        return scores


ATTACKS = (
    Attack("answer", "checks how likely the adapter makes the answer", lambda x: x.answer),
    Attack(
        "answer, against base",
        "checks how much likelier the adapter makes the answer than the base model does",
        lambda x: x.answer - x.answer_base,
    ),
    Attack(
        "responses", "has it respond and checks how sure it is of its words", lambda x: x.sampled
    ),
    Attack(
        "responses, against base",
        "has it respond and checks how much likelier its words are than for the base model",
        lambda x: x.sampled - x.sampled_base,
    ),
)

# Without the adapter there is nothing to find, so this shows whether the sets differ by themselves.
CONTROL = Attack("base model alone", "has no adapter", lambda x: x.answer_base)


@dataclass(frozen=True)
class Attacker:
    """Has what is released: the base model with the adapter, and an engine that samples from it."""

    policy: Policy
    engine: RolloutEngine
    encode_answer: Callable[[str], Sequence[int]]
    budget: int  # tokens computed at a time

    def look(self, problems: Sequence[Problem], purpose: str) -> Iterator[Likelihoods]:
        """The likelihoods of each problem; `purpose` separates the draws of sets of problems."""
        grpo = self.policy.settings.grpo
        for first in range(0, len(problems), _PART):
            part = problems[first : first + _PART]
            prompts = [self.policy.encode(problem.prompt) for problem in part]
            groups = self.engine.generate(
                prompts,
                SamplingParameters(
                    count=RESPONSES,
                    max_tokens=grpo.max_response_tokens,
                    temperature=grpo.temperature,
                    seed=seed_for(self.policy.settings.seed, "privacy audit", purpose, first),
                ),
            )
            rows = [
                [self._answer(problem), *responses]
                for problem, responses in zip(part, groups, strict=True)
            ]
            released = mean_logprobs(self.policy, prompts, rows, self.budget)
            with self.policy.reference():
                base = mean_logprobs(self.policy, prompts, rows, self.budget)
            for (answer, *sampled), (answer_base, *sampled_base) in zip(
                released, base, strict=True
            ):
                yield Likelihoods(answer, answer_base, fmean(sampled), fmean(sampled_base))

    def _answer(self, problem: Problem) -> Response:
        """The answer as a response, truncated to the longest response."""
        # An answer without tokens becomes an end-of-sequence token.
        tokens = self.encode_answer(problem.answer) or self.policy.card.eos_token_ids
        tokens = tokens[: self.policy.settings.grpo.max_response_tokens]
        return Response(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32))
