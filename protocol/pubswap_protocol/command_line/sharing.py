"""Options that several commands share."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from pydantic import BaseModel

Command = Callable[..., None]


def option_of(settings: type[BaseModel], name: str, **how: Any) -> inspect.Parameter:
    """The option of a setting, with its type, help and default; None unless it is given.

    `how` is for typer.Option.
    """
    field = settings.model_fields[name]
    default = False if field.default is None else str(field.default)
    option = typer.Option(help=field.description, show_default=default, **how)
    kind = Annotated[field.annotation | None, option]  # type: ignore[name-defined]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, positional, default=None, annotation=kind)


def sharing(shared: Callable[..., Any], *more: inspect.Parameter) -> Callable[[Command], Command]:
    """Give a command the options of `shared` and `more`, and its result as the first argument.

    The options' annotations must be types and not strings, because Typer reads them. `shared` gets
    `more` as keywords.
    """
    own = inspect.signature(shared).parameters.values()
    named = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = {each.name: each for each in (*named, *more)}

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
