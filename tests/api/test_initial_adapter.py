"""Runs that start from a given adapter, such as an earlier run's."""

import numpy as np
import pytest

from pubswap_protocol import paths
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DigestMismatch, InvalidAdapter, InvalidSettings, WrongState
from pubswap_protocol.messages import Rollback
from pubswap_protocol.model import model_card
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from pubswap_server.admin.verify import verify
from support.coordinator.coordinator import (
    MODEL,
    Federation,
    Server,
    create,
    merged,
    settings_for,
)

CARD = model_card(MODEL, merged({}).lora, "small", None)


def trained(seed: int) -> bytes:
    """An adapter that changes the model."""
    adapter = initial_adapter(CARD.layout, seed)
    return encode_adapter(CARD.layout, {name: a + np.float32(0.5) for name, a in adapter.items()})


def waiting(server: Server, data: bytes) -> Federation:
    """A run that is created and starts from this adapter, which has not been sent."""
    settings = {"rounds": 2, "clients": 1, "method": "fedavg"}
    return create(server, initial_adapter=digest_of(data), **settings)


def test_a_run_starts_from_the_adapter_that_was_sent(server: Server) -> None:
    """Round 0 has it to the bit: members get it, a rollback returns to it, and it is intact."""
    data = trained(1)
    fed = waiting(server, data)
    operator, run = fed.operator, fed.run.id
    assert "initial_adapter" in fed.run.requires  # an older client does not take part
    with pytest.raises(InvalidSettings, match="run create --initial-adapter"):
        operator.move_run(run, paths.RUN_OPEN)
    assert operator.put_initial_adapter(run, data).digest == digest_of(data)
    operator.move_run(run, paths.RUN_OPEN)
    fed.enroll("a")
    fed.start()
    assert bytes(fed.members["a"].blob(run, digest_of(data))) == data
    assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
    fed.wait_for(1)
    operator.roll_back(run, Rollback(to=0))
    assert [each.adapter for each in fed.view().rounds] == [digest_of(data), None]
    report = verify(settings_for(server.data_dir), progress_bar())
    assert report.healthy and not report.unchecked, report.text()


def test_only_the_announced_adapter_is_taken_and_only_before_the_run_opens(server: Server) -> None:
    """Another one, one of another layout or with an infinite number is refused."""
    data = trained(2)
    fed = waiting(server, data)
    operator, run = fed.operator, fed.run.id
    with pytest.raises(DigestMismatch):
        operator.put_initial_adapter(run, trained(3))
    infinite = np.frombuffer(data, np.uint8).copy()
    infinite[-4:] = np.frombuffer(np.float32(np.inf).tobytes(), np.uint8)
    for bad, match in ((infinite.tobytes(), "not finite"), (data[:-4], "bytes"), (b"x", "header")):
        with pytest.raises(InvalidAdapter, match=match):
            operator.put_initial_adapter(run, bad)
    with pytest.raises(InvalidSettings):
        operator.move_run(run, paths.RUN_OPEN)
    operator.put_initial_adapter(run, data)
    operator.put_initial_adapter(run, data)  # sent again, because the answer was lost
    operator.move_run(run, paths.RUN_OPEN)
    with pytest.raises(WrongState, match="before it is opened"):
        operator.put_initial_adapter(run, data)
    plain = create(server, rounds=2)
    with pytest.raises(DigestMismatch):  # this run starts from the base model
        plain.operator.put_initial_adapter(plain.run.id, data)
