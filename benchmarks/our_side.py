"""Our side: `collate` and `update` on frozen responses, and LocalTrainer's own whole step."""

from collections.abc import Sequence
from pathlib import Path

import torch
from timing import Clock, Outcome, Times
from torch import Tensor
from workload import EOS, AsTrl, Workload, frozen_groups, start_adapter, text

from pubswap_client.policy.groups import collate
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import (
    Prompts,
    SamplingParameters,
    TransformersEngine,
)
from pubswap_client.training.memory import TokenBudget, default_budget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response


class OurSide:
    """A policy with an optimizer that persists across updates, as in a round."""

    def __init__(self, folder: Path, settings: RunSettings, device: str) -> None:
        """Load the model in `folder`."""
        card = model_card(folder, settings.lora, "benchmark", None)
        self.settings = settings
        self.policy = Policy.load(folder, card, settings, device)  # type: ignore[arg-type]
        self.start = start_adapter(card.layout)
        # The client's default.
        budget = TokenBudget(default_budget(self.policy, checkpointing=False))
        self.updates = UpdateContext(self.policy, budget)
        self.clock = Clock(self.policy.device)
        self.reset()

    def reset(self) -> None:
        """Go back to the start adapter, with a new optimizer."""
        self.policy.load_adapter(self.start)
        factors = self.policy.trainable()
        grpo = self.settings.grpo
        self._round_start = [factor.detach().clone() for factor in factors]
        self._optimizer = torch.optim.AdamW(
            factors, lr=grpo.learning_rate, weight_decay=grpo.weight_decay
        )

    def update(self, workload: Workload) -> Outcome:
        """The update phase: `gradient_epochs` steps on known responses and rewards."""
        groups = frozen_groups(workload)
        started = self.clock()
        batch = collate(groups, AsTrl())
        metrics = update(self.updates, self._optimizer, batch, self._round_start)
        times = Times(rollout=0.0, update=self.clock() - started)
        return Outcome(times, metrics.loss, metrics.grad_norm, self.policy.adapter())

    def step(self, workload: Workload) -> Times:
        """A whole private step: a rollout of the workload's responses, rewards, update."""
        engine = _ForcedEngine(self.policy, workload, self.clock)
        problems = [
            Problem(id=str(index), prompt=text(prompt), answer="-")
            for index, prompt in enumerate(workload.prompts)
        ]

        def rewards(cases: Sequence[tuple[str, Problem]]) -> list[float]:
            rewards_left = {
                problem.id: iter(workload.rewards[int(problem.id)]) for problem in problems
            }
            return [next(rewards_left[problem.id]) for _, problem in cases]

        trainer = LocalTrainer(self.updates, engine, "benchmark", problems, rewards)
        trainer.begin_round(1, self.start)
        started = self.clock()
        trainer.private_step(1)
        total = self.clock() - started
        return Times(rollout=engine.seconds, update=total - engine.seconds)


class _ForcedEngine(TransformersEngine):
    """Samples as usual, but from logits that allow only the workload's next token."""

    def __init__(self, policy: Policy, workload: Workload, clock: Clock) -> None:
        super().__init__(policy)
        self.seconds = 0.0
        self._clock = clock
        self._forced = {
            tuple(prompt): group
            for prompt, group in zip(workload.prompts, workload.responses, strict=True)
        }
        self._table = torch.empty(0)
        self._column = 0

    def generate(
        self, prompts: Prompts, sampling: SamplingParameters, first: int = 0
    ) -> list[list[Response]]:
        started = self._clock()
        groups = super().generate(prompts, sampling, first)
        self.seconds += self._clock() - started
        tokens = [[response.tokens.tolist() for response in group] for group in groups]
        if tokens != [self._forced[tuple(prompt)] for prompt in prompts]:
            raise RuntimeError("The rollout did not sample the workload's responses.")
        return groups

    def _prefill(self, prompts, count, room):  # type: ignore[no-untyped-def]
        state, logits = super()._prefill(prompts, count, room)
        rows = [tokens for prompt in prompts for tokens in self._forced[tuple(prompt)]]
        self._table = forced_tokens(rows).to(logits.device)
        self._column = 0
        return state, force(logits, self._table[state.rows, 0])

    def _decode(self, state, tokens):  # type: ignore[no-untyped-def]
        # On a GPU, rows go on for a few tokens after all have ended.
        self._column = min(self._column + 1, self._table.shape[1] - 1)
        logits = super()._decode(state, tokens)
        return force(logits, self._table[state.rows, self._column])


def forced_tokens(rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows' tokens (B, T), padded with EOS."""
    table = torch.full((len(rows), max(map(len, rows))), EOS)
    for index, row in enumerate(rows):
        table[index, : len(row)] = torch.tensor(row)
    return table


def force(logits: Tensor, tokens: Tensor) -> Tensor:
    """Logits (B, V) that allow only `tokens` (B,)."""
    return logits.fill_(-torch.inf).scatter_(1, tokens[:, None], 0.0)
