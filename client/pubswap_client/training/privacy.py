"""Clipping and noise of a differentially private step (Abadi et al., 2016, groups as examples).

A record is a private prompt. Its K responses are one group, and the group's advantages, and so its
gradient, depend on no other prompt. With groups i = 1..m drawn, g_i the gradient of group i's own
mean loss, and b the expected number of groups:

    g = (1 / b) (sum_i g_i min(1, C / |g_i|) + N(0, (sigma C)^2))

Everything after it (FedProx, the clipping of the whole gradient, AdamW, public steps) sees only g
and costs no more privacy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pubswap_client.training.accountant import Releases
from pubswap_protocol.draws import SecretDraws


@dataclass(frozen=True, slots=True)
class GroupClipping:
    """Bound on one group's contribution to a step's gradient."""

    clip: float  # C
    groups: int  # b

    @property
    def bound(self) -> float:
        """C / b: the largest norm of a group's part in the gradient."""
        return self.clip / self.groups

    def add(self, totals: Sequence[Tensor], part: Sequence[Tensor]) -> None:
        """Add a group's gradient, scaled down to the bound if it exceeds it, and clear it."""
        norm = torch.nn.utils.get_total_norm(part)
        scale = (self.bound / norm).clamp(max=1.0)
        for total, gradient in zip(totals, part, strict=True):
            total.add_(gradient * scale)
            gradient.zero_()


@dataclass(frozen=True, slots=True)
class StepNoise:
    """The noise of one private step, known only to the holder of the secret."""

    clipping: GroupClipping
    noise_multiplier: float  # sigma
    draws: SecretDraws  # the step's own

    def add_to(self, gradients: Sequence[Tensor], epoch: int) -> None:
        """Add N(0, (sigma C / b)^2) to each entry of an epoch's gradients, in place."""
        scale = self.noise_multiplier * self.clipping.bound
        for index, gradient in enumerate(gradients):
            noise = self.draws.normal(gradient.numel(), "noise", epoch, index)
            drawn = torch.from_numpy(noise.astype(np.float32)).view_as(gradient)
            gradient.add_(drawn.to(gradient.device), alpha=scale)


@dataclass(frozen=True, slots=True)
class PrivateDraws:
    """The random draws of private steps: their prompts and their noise.

    All come from the secret, never from the run's seed, because every member knows the seed. A step
    is named by its beginning of a round, counted in the whole run, and by more. `paid` gives what a
    beginning was paid for, so that its steps have that rate and noise, even if the private prompts
    are others since.
    """

    clipping: GroupClipping
    paid: Callable[[int], Releases]
    draws: SecretDraws

    def batch(self, records: int, beginning: int, *step: int) -> list[int]:
        """The records of a step: each with probability q, independently of the others."""
        drawn = self.draws.uniform(records, "batch", beginning, *step) < self.paid(beginning).rate
        return [int(index) for index in np.flatnonzero(drawn)]

    def rollout_seed(self, *step: int) -> int:
        """The seed of a step's responses, independent of which records are in the batch.

        A response's draws also depend on its prompt's place in the batch, so another record moves
        the later ones to other draws. Draws of all places are independent and equally distributed,
        so the sum of the other records' gradients has the same distribution with and without it.
        """
        return self.draws.seed("rollout", *step)

    def noise(self, beginning: int, *step: int) -> StepNoise:
        sigma = self.paid(beginning).noise_multiplier
        return StepNoise(self.clipping, sigma, self.draws.within("step", beginning, *step))
