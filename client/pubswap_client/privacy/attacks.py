"""Membership attacks on an adapter: what somebody who has it can compute of a problem.

Each is a score that is larger for a member, a problem that was trained on, if the attack works.
Thresholds on the loss are Yeom et al.'s (CSF 2018); the base model as a reference is Carlini et
al.'s (USENIX Security 2021). GRPO trains on no answer but on the model's own responses, and their
drift from the base model tells more ("Auditing Data Membership in Reinforcement Learning With
Verifiable Rewards", arXiv 2511.14045). So both are made on the answer and on responses.
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
    """Of one problem: mean log-probabilities of a token, in nats, at the run's temperature."""

    answer: float
    answer_base: float  # under the base model
    own: float  # of the released model's own responses
    own_base: float


@dataclass(frozen=True, slots=True)
class Attack:
    """A score, and what somebody does who uses it: "an attacker who …"."""

    name: str
    words: str
    score: Callable[[Likelihoods], float]

    def scores(self, found: Sequence[Likelihoods]) -> Scores:
        """The score of each problem; raises InvalidAdapter if one is no number."""
        scores = np.array([self.score(each) for each in found])
        if not np.isfinite(scores).all():
            raise InvalidAdapter("The adapter gives text a likelihood that is no number.")
        return scores


ATTACKS = (
    Attack("answer", "looks how likely the adapter makes the answer", lambda x: x.answer),
    Attack(
        "answer, against base",
        "looks how much likelier than for the base model the adapter makes the answer",
        lambda x: x.answer - x.answer_base,
    ),
    Attack("responses", "has it respond and looks how sure it is of its words", lambda x: x.own),
    Attack(
        "responses, against base",
        "has it respond and looks how much likelier these words are than for the base model",
        lambda x: x.own - x.own_base,
    ),
)

# Without the adapter there is nothing to find: it shows whether the sets differ of themselves.
CONTROL = Attack("base model alone", "has no adapter", lambda x: x.answer_base)


@dataclass(frozen=True)
class Attacker:
    """Holds what is released: the base model with the adapter, and an engine that samples of it."""

    policy: Policy
    engine: RolloutEngine
    encode_answer: Callable[[str], Sequence[int]]
    budget: int  # tokens computed at a time

    def look(self, problems: Sequence[Problem], purpose: str) -> Iterator[Likelihoods]:
        """What each problem gives; `purpose` sets its draws apart from those of other problems."""
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
            for (answer, *own), (answer_base, *own_base) in zip(released, base, strict=True):
                yield Likelihoods(answer, answer_base, fmean(own), fmean(own_base))

    def _answer(self, problem: Problem) -> Response:
        """The answer as a response; beyond what a response may have, it is cut."""
        # One that has no token of its own ends at once.
        tokens = self.encode_answer(problem.answer) or self.policy.card.eos_token_ids
        tokens = tokens[: self.policy.settings.grpo.max_response_tokens]
        return Response(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32))
