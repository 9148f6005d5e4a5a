"""`privacy-budget.json` in the state folder: the secret of a member's noise, and its spent budget.

The secret never leaves the folder. Noise and batches are functions of it, so a killed daemon
repeats exactly the same step. Anyone with the secret can subtract the noise.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from pubswap_client.training.accountant import Releases, delta_of, epsilon_of, releases_of_round
from pubswap_client.training.privacy import GroupClipping, PrivateDraws
from pubswap_protocol.draws import SecretDraws
from pubswap_protocol.errors import InvalidSettings, PrivacySpent, first_fault
from pubswap_protocol.files import write_whole
from pubswap_protocol.settings import RunSettings


class StoredPrivacy(BaseModel, extra="forbid", frozen=True):
    """The file. `runs` lists, by the run's id, the releases of each beginning of a round."""

    secret: str = Field(pattern=rf"^[0-9a-f]{{{2 * SecretDraws.SECRET_BYTES}}}$")
    runs: dict[str, list[Releases]] = {}


class PrivacyBudget:
    """A member's epsilon in one run. Each beginning of a round is paid for before its first step.

    A round begun again after a rollback counts as another beginning, with its own noise. A round
    resumed from a checkpoint does not.
    """

    def __init__(self, state: Path, run: str, settings: RunSettings, records: int) -> None:
        """Read the budget for `records` private prompts; create the file if there is none.

        Raises InvalidSettings if the file is damaged, or dp-accounting is not installed.
        """
        assert settings.privacy is not None
        self._path = state / "privacy-budget.json"
        self._run = run
        self._target = settings.privacy.epsilon
        self._delta = delta_of(records)
        self._round = releases_of_round(settings, records)
        self._stored = self._load()
        if self.spent:
            self._round = _as_before(self.spent[-1], self._round)
        self.draws = PrivateDraws(
            GroupClipping(settings.privacy.clip, settings.grpo.prompts_per_step),
            self.releases,
            SecretDraws(bytes.fromhex(self._stored.secret), run),
        )

    @property
    def spent(self) -> Sequence[Releases]:
        """The releases of the rounds begun so far, each counted in full."""
        return self._stored.runs.get(self._run, [])

    def releases(self, beginning: int) -> Releases:
        """What a beginning of a round was paid for; for one that is not paid yet, what it costs."""
        paid = self.spent[beginning - 1 : beginning] if beginning > 0 else ()
        return paid[0] if paid else self._round

    @property
    def epsilon(self) -> float:
        return epsilon_of(self.spent, self._delta)

    def next_beginning(self) -> int:
        """The number of the next beginning of a round: 1, 2, ... in the run.

        Raises PrivacySpent if the budget does not cover it.
        """
        next_epsilon = epsilon_of([*self.spent, self._round], self._delta)
        if self._target is not None and next_epsilon > self._target:
            raise PrivacySpent(
                f"One more round would take this member's epsilon from {self.epsilon:.3g} to "
                f"{next_epsilon:.3g}, above the run's privacy.epsilon = {self._target:g}. The "
                "member takes no further part in the run; its submissions so far still count. For "
                "more rounds, the operator must create a run with a larger privacy.epsilon."
            )
        return len(self.spent) + 1

    def pay(self, beginning: int) -> None:
        """Record durably that a round begins. Idempotent for the same `beginning`."""
        if beginning > len(self.spent) + 1:
            raise InvalidSettings(
                f"{self._path} records {len(self.spent)} rounds begun, but the progress folder "
                f"beside it has {beginning}, so their cost is unknown. Restore the file from a "
                "backup."
            )
        if beginning == len(self.spent) + 1:
            runs = self._stored.runs | {self._run: [*self.spent, self._round]}
            self._stored = self._stored.model_copy(update={"runs": runs})
            self._save(self._stored)

    def _load(self) -> StoredPrivacy:
        try:
            return StoredPrivacy.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            stored = StoredPrivacy(secret=secrets.token_hex(SecretDraws.SECRET_BYTES))
            self._save(stored)
            return stored
        except ValidationError as error:
            raise InvalidSettings(
                f"{self._path} is damaged, and with it the record of this member's spent privacy "
                f"budget. Restore the file from a backup. ({first_fault(error)})"
            ) from None

    def _save(self, stored: StoredPrivacy) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._path, f"{stored.model_dump_json(indent=2)}\n".encode())


def _as_before(before: Releases, now: Releases) -> Releases:
    """The earlier releases, if the two differ in their noise alone.

    A newer accountant may ask for less noise. A round under way has been paid for with the earlier
    noise, and one step repeated with both would reveal its gradient.
    """
    return before if replace(now, noise_multiplier=before.noise_multiplier) == before else now
