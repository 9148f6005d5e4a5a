"""`python -m pubswap_protocol` is the `pubswap` command."""

from pubswap_protocol.cli import main

if __name__ == "__main__":
    main()
