"""What may be wrong on this side, as errors that say what to do next."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pubswap_protocol.bounds import NAME_FORM, NAME_PATTERN
from pubswap_protocol.cli import how_to_install
from pubswap_protocol.command_line.explaining import system_fault
from pubswap_protocol.errors import InvalidSettings, LocalFault


def valid_name(text: str) -> str:
    """A run's or a member's name. Raises InvalidSettings for what cannot be one."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise InvalidSettings(f"{text!r} is no name: a name is {NAME_FORM}.")
    return text


@contextmanager
def explained() -> Iterator[None]:
    """Raise a missing package, or what the operating system refuses, as a LocalFault."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        raise LocalFault(f"This needs the package {name!r}.{how_to_install(name)}") from error
    except OSError as error:
        raise LocalFault(system_fault(error)) from error
