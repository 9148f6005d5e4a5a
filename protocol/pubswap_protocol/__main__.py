"""The `pubswap` command, and `python -m pubswap_protocol`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run a command; on Windows, say what to use instead before anything there fails to import."""
    if find_spec("fcntl") is None:
        sys.exit("error: PubSwap runs on Linux and macOS; on Windows use WSL 2.")
    from pubswap_protocol.cli import main as command

    command()


if __name__ == "__main__":
    main()
