"""One run of a coordinator."""

import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pubswap._records import Record, member_record, round_records
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol import paths
from pubswap_protocol.bounds import NAME_FORM, NAME_PATTERN
from pubswap_protocol.cli import explained
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import CreateInvite, Event, Role, RunState, WholeRun

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def valid_name(text: str) -> str:
    """Check the name of a run or a member. Raises InvalidSettings if it is not valid."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise InvalidSettings(f"{text!r} is not a valid name: a name is {NAME_FORM}.")
    return text


class Run:
    """A run of a coordinator, from `Coordinator.run`, `runs` or `create`.

    Nothing is cached: every property and method except `id` and `name` asks the coordinator.
    """

    def __init__(self, api: CoordinatorClient, id: str, name: str) -> None:
        self._api = api
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.id!r})"

    @property
    def state(self) -> RunState:
        """created, open, training, exchanging, aggregating, finished or cancelled."""
        return self._api.run(self.id).state

    def show(self) -> WholeRun:
        """Everything the coordinator reports about the run, as the message WholeRun.

        It has the run's `settings`, `model` and `rounds`, what it is `waiting_for`, its `latest`
        and its `best` pass@1, and more.
        """
        return self._api.whole_run(self.id)

    def events(self, *, follow: bool = True) -> Iterator[Event]:
        """The run's event log; each event has an `id`, a time `at`, a `kind` and `details`.

        Yields new events as they happen, through restarts of the coordinator, until the run ends.
        Without `follow`, ends after the events so far. Logs a warning while the coordinator does
        not answer.
        """
        from pubswap_client.operator.watching import events

        return events(self._api, self.id, follow, log.warning)

    def members(self) -> list[Record]:
        """The members as records: each one's progress, and the bytes it has sent and received."""
        return [member_record(member) for member in self._api.members(self.id).members]

    def metrics(self) -> list[Record]:
        """The rounds as records, from round 0 (the base model); unknown values are None.

        For example `pandas.DataFrame(run.metrics())`. The key of pass@1 on a topic is
        `pass@1 TOPIC`. Means are over the members' updates; up is what members send.
        """
        return round_records(list(self._api.rounds(self.id)))

    def start(self) -> None:
        """Begin round 1, as `pubswap run start` does. Raises WrongState."""
        self._move(paths.RUN_START)

    def pause(self) -> None:
        """Pause: members hold their responses and updates until the run is resumed."""
        self._move(paths.RUN_PAUSE)

    def resume(self) -> None:
        """Continue after a pause: members send what they have held."""
        self._move(paths.RUN_RESUME)

    def cancel(self) -> None:
        """End the run for good, without asking. The round under way is lost; adapters are kept."""
        self._move(paths.RUN_CANCEL)

    def _move(self, path: str) -> None:
        self._api.move_run(self.id, path)

    def invite(self, name: str, role: str = "client") -> str:
        """A one-time code for a member, valid for a week; `role` is client or evaluator.

        Send it to the organisation over a channel you trust. The organisation then runs `pubswap
        client enroll --coordinator URL --invite CODE`.
        """
        if role not in list(Role):
            raise InvalidSettings(f"role: client or evaluator, not {role!r}.")
        body = CreateInvite(name=valid_name(name), role=Role(role))
        return self._api.invite(self.id, body).invite

    def adapter(self, out: Path | str, round: int | None = None) -> Path:
        """Write a round's adapter as a PEFT folder with a model card; returns the folder.

        The default is a finished run's last round. The folder is written whole or not at all.
        Raises InvalidSettings if `out` exists already, WrongState if the run has no last round
        yet.
        """
        from pubswap_client.operator.adapter_folder import take_adapter, which_adapter

        folder = Path(out)
        with explained():
            run = self.show()
            take_adapter(self._api, run, which_adapter(run, round), folder)
        return folder

    def peft(self, base_model: "PreTrainedModel", round: int | None = None) -> "PeftModel":
        """A round's adapter, by default a finished run's last, on a loaded base model.

        `base_model` must be the run's. If its name is a hub id, load it by
        `AutoModelForCausalLM.from_pretrained(run.show().model.source)`. Raises WrongState as
        `adapter` does.
        """
        with explained(), tempfile.TemporaryDirectory() as folder:
            from peft import PeftModel

            return PeftModel.from_pretrained(base_model, self.adapter(f"{folder}/adapter", round))
