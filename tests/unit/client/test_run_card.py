"""Run cards on disk."""

from pathlib import Path

import pytest

from pubswap_client.run_card import CARD, card_bytes, read_card
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import CreateRun
from pubswap_protocol.settings import RunSettings
from support.client.results import CARD as MODEL


def test_a_large_card_is_read_whole(tmp_path: Path) -> None:
    """Adapters with long names of many tensors make one of several MiB."""
    run = CreateRun(name="run", settings=RunSettings(), model=MODEL)
    (tmp_path / CARD).write_bytes(b" " * (5 << 20) + card_bytes(run))
    assert read_card(tmp_path / CARD).model == MODEL


def test_a_missing_card_is_an_invalid_setting(tmp_path: Path) -> None:
    """The message says what writes one."""
    with pytest.raises(InvalidSettings, match=r"run\.json. `pubswap client start` writes"):
        read_card(tmp_path / CARD)


def test_a_file_larger_than_any_card_is_refused_unread(tmp_path: Path) -> None:
    """It may come from somebody else; the file here is sparse."""
    path = tmp_path / CARD
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidSettings, match="more than 32 MiB; no run card has"):
        read_card(path)
