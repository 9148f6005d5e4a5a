"""Options that several commands share."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

Command = Callable[..., None]


def sharing(shared: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command the options of `shared`, and its result as the first argument.

    The options' annotations must be types and not strings, because Typer reads them.
    """
    options = inspect.signature(shared).parameters

    def decorate(command: Command) -> Command:
        _, *command_options = inspect.signature(command).parameters.values()
        every = [*command_options, *options.values()]
        parameters = sorted(every, key=lambda each: each.default is not each.empty)

        @wraps(command)
        def with_shared(**arguments: Any) -> None:
            first = shared(**{name: arguments.pop(name) for name in options})
            command(first, **arguments)

        with_shared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_shared.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_shared

    return decorate
