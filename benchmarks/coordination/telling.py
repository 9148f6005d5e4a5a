"""Progress on the terminal."""

from collections.abc import Callable

Tell = Callable[[str], None]
"""Shows what is being measured."""
