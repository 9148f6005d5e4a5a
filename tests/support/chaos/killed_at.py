"""A process that kills itself when it calls a given function."""

import importlib
import os
import signal


def install(module: str, function: str) -> None:
    """Have this process die when it calls the function; `nowhere` means never."""
    if function != "nowhere":
        owner = importlib.import_module(module)
        setattr(owner, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
