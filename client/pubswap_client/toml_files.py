"""TOML files that people write."""

import tomllib
from pathlib import Path
from typing import Any

from pubswap_protocol.errors import InvalidSettings


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; raises InvalidSettings if it cannot be read."""
    try:
        # Editors of Windows begin a file with a byte-order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path} is not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{path} is not TOML: {error}") from None
