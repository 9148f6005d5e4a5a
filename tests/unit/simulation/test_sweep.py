"""Which GPU each process of a sweep sees."""

import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.sweep import visible_devices


def test_processes_are_shared_out_over_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn: each process sees one GPU alone, and takes no CPU where that GPU is not there.

    Without devices nothing is changed.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [
        environment["CUDA_VISIBLE_DEVICES"]
        for environment in visible_devices(3, ["cuda:0", "cuda:1"])
    ]
    assert found == ["0", "1", "0"]
    assert visible_devices(1, ["cuda:3"])[0]["PUBSWAP_CLIENT_DEVICE"] == "cuda"
    on_cpu = {"CUDA_VISIBLE_DEVICES": "", "PUBSWAP_CLIENT_DEVICE": "cpu"}
    assert visible_devices(1, ["cpu"]) == [on_cpu]
    assert visible_devices(2, []) == [{}, {}]


def test_devices_are_counted_among_those_that_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch counts them, and one that is not allowed is refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert visible_devices(1, ["cuda:1"])[0]["CUDA_VISIBLE_DEVICES"] == "6"
    with pytest.raises(InvalidSettings, match="allows 4,6"):
        visible_devices(1, ["cuda:2"])


@pytest.mark.parametrize("name", ["gpu0", "cuda:x", "", "0"])
def test_what_is_no_device_is_refused(name: str) -> None:
    """With the form that there is."""
    with pytest.raises(InvalidSettings, match="cuda:0,cuda:1"):
        visible_devices(1, [name])
