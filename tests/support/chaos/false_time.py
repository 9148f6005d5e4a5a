"""A wall clock that tests can set: processes read from a file how far it is off."""

import importlib
import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

FILE = "TESTS_WALL_CLOCK"


class FalseTime:
    """The wall clock of processes started with `env`; monotonic clocks are not changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that a process needs from its start."""
        return {FILE: str(self._file)}

    def jump(self, seconds: int) -> None:
        """Set how far the clock is off from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)


def install() -> None:
    """Have this process's coordinator read the clock that the environment names, if any.

    This covers every module: `time.time` is replaced, and `datetime` wherever it is imported.
    """
    if FILE not in os.environ:
        return
    file, shown = Path(os.environ[FILE]), time.time

    def off() -> float:
        return float(file.read_text())

    class FalseDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=off())

    time.time = lambda: shown() + off()
    clock = importlib.import_module("pubswap_server.clock")
    importlib.import_module("pubswap_server.server")
    for name, module in list(sys.modules.items()):
        if name.startswith("pubswap_server") and getattr(module, "datetime", None) is datetime:
            module.datetime = FalseDatetime  # type: ignore[attr-defined]
    clock.process_clock.cache_clear()
