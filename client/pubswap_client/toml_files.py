"""Read TOML files written by people."""

import re
import tomllib
from pathlib import Path
from typing import Any

from pubswap_protocol.errors import InvalidSettings

# Each part of a dotted key nests a table in the one before it.
_ENDLESS_KEY = re.compile(r"^[^\n=.,]*(?:\.[^\n=.,]*){200,}[=\]]", re.MULTILINE)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; raises InvalidSettings if it cannot be read."""
    try:
        # Windows editors start a file with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
        if _ENDLESS_KEY.search(text):
            raise ValueError("a key has too many parts")
        return tomllib.loads(text)
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path} is not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{path} is not TOML: {error}") from None
