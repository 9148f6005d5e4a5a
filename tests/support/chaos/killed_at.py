"""A process that is killed when it calls a function."""

import importlib
import os
import signal


def install(module: str, function: str) -> None:
    """Have this process die at the function's call; `nowhere` is none."""
    if function != "nowhere":
        owner = importlib.import_module(module)
        setattr(owner, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
