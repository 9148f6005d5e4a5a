"""Named values of settings: a class for each name, whose fields are that value's parameters.

In a run file, `rule = "median"` is a value with its default parameters, and
`rule = { name = "trimmed_mean", trim = 0.1 }` one with others.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from pubswap_protocol.bounds import Strict

NAME = "name"
PLUGIN = "pubswap_plugin_"
"""How the name of a module begins whose classes may be replaced; see `pubswap simulate`."""


_NEWER: dict[str, Any] = {"extra": "ignore", "context": {"extra": "ignore"}}

M = TypeVar("M", bound=BaseModel)


def read_newer(model: type[M], text: str | bytes) -> M:
    """A message in JSON, without the fields and parameters that a later version has added.

    Raises ValidationError for a value that is wrong.
    """
    return model.model_validate_json(text, **_NEWER)


class Registrable(Strict):
    """A value that settings name, such as a rule; it has no effect on anything but its setting."""

    name: ClassVar[str]
    one_word: ClassVar[bool] = False
    """Whether it is written as one word, with its parameter in it."""

    @model_serializer
    def _as_written(self) -> str | dict[str, Any]:
        """The name, or a table with it, if there are parameters."""
        values = {key: _dumped(getattr(self, key)) for key in type(self).model_fields}
        return {NAME: self.name, **values} if values else self.name

    def __str__(self) -> str:
        return self.name

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Its parameters that have defaults, as they are written."""
        fields = cls.model_fields.items()
        return {key: _dumped(field.default) for key, field in fields if not field.is_required()}

    @classmethod
    def summary(cls) -> str:
        """One line on what it is: the first of its docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]


V = TypeVar("V", bound=Registrable)


class Registry(Generic[V]):
    """All values of one setting, by name, in the order in which they are registered.

    As the annotation of a field it reads a name, or a table with a name and parameters.
    """

    def __init__(self, what: str, *, default: str) -> None:
        """`what` is the field's word for such a value; `default` is for a table without a name."""
        self.what, self.default = what, default
        self._classes: dict[str, type[V]] = {}

    def register(self, cls: type[V]) -> type[V]:
        """Add a class; raises ValueError if its name is taken by another one."""
        taken = self._classes.get(cls.name)
        if taken is not None and not taken.__module__.startswith(PLUGIN):
            raise ValueError(f"The {self.what} {cls.name!r} exists already; choose another name.")
        self._classes[cls.name] = cls
        return cls

    def __iter__(self) -> Iterator[type[V]]:
        return (self._classes[name] for name in self.names)

    @property
    def names(self) -> list[str]:
        """The default first, then the others by name."""
        return sorted(self._classes, key=lambda name: (name != self.default, name))

    def class_of(self, name: object) -> type[V] | None:
        """The class of a name, if there is one."""
        return self._classes.get(name) if isinstance(name, str) else None

    def read(self, given: object, newer: bool = False) -> V:
        """A value from its name, or from a table; raises ValidationError, naming the parameter.

        With `newer`, a parameter that it does not have is ignored.
        """
        if isinstance(given, Registrable):
            given = given.model_dump()
        parameters = dict(given) if isinstance(given, Mapping) else {NAME: given}
        name = parameters.pop(NAME, self.default)
        cls = self.class_of(name)
        if cls is None:
            raise _fault((), f"there is no {self.what} {name!r}; use one of {self._listed()}", name)
        for key in () if newer else sorted(parameters.keys() - cls.model_fields.keys(), key=str):
            owners = [other.name for other in self if key in other.model_fields]
            hint = f"; {' and '.join(map(repr, owners))} has it" if owners else ""
            takes = ", ".join(cls.model_fields) or "no parameters"
            raise _fault(
                (str(key),), f"{name!r} has no such parameter{hint} ({name}: {takes})", None
            )
        return cls.model_validate(parameters, **(_NEWER if newer else {}))

    def _listed(self) -> str:
        return ", ".join(map(repr, self.names))

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        def read(given: object, info: ValidationInfo) -> V:
            return self.read(given, newer=info.context == _NEWER["context"])

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dumped)
        )

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"oneOf": [*self._words(), *map(_table, self)]}

    def _words(self) -> list[dict[str, Any]]:
        """The JSON schemas of its values as a word."""
        return [{"type": "string", "enum": self.names}]


def _table(cls: type[Registrable]) -> dict[str, Any]:
    """The JSON schema of a value as a table."""
    whole = cls.model_json_schema()
    schema = _inlined(whole, whole.pop("$defs", {}))
    return {
        "type": "object",
        "title": cls.__name__,
        "description": cls.summary(),
        "properties": {NAME: {"const": cls.name}, **schema.get("properties", {})},
        "required": [NAME],
        "additionalProperties": False,
        **({"x-word": True} if cls.one_word else {}),
    }


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without references, because it becomes a part of another one."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in schema.items()}
    return [_inlined(each, definitions) for each in schema] if isinstance(schema, list) else schema


def _dumped(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):
        return [_dumped(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _dumped(each) for key, each in value.items()}
    return value


def _fault(where: tuple[str, ...], text: str, given: object) -> ValidationError:
    error = PydanticCustomError("value", "{text}", {"text": text})
    fault: InitErrorDetails = {"type": error, "loc": where, "input": given}
    return ValidationError.from_exception_data("value", [fault])
