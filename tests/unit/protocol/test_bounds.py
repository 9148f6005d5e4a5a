"""Every number, string and list of a message has a bound."""

import importlib
import math
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import pubswap_protocol
import pubswap_server.http.routes
from pubswap_protocol.messages import Progress, UpdateMetrics
from pubswap_protocol.settings import RunSettings
from pubswap_server.app import create_app
from pubswap_server.settings import ServerSettings

NAMES = [
    module.name
    for package in (pubswap_protocol, pubswap_server.http.routes)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
]


def models(kind: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """All models of the wire protocol, in any module."""
    for name in NAMES:
        importlib.import_module(name)
    for found in kind.__subclasses__():
        if found.__module__ in NAMES:
            yield found
        yield from models(found)


MODELS = sorted(set(models()), key=lambda model: (model.__module__, model.__name__))


def leaves(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas within a JSON schema, with their paths."""
    if isinstance(schema, list):
        for part in schema:
            yield from leaves(part, path)
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield path, schema
        for key, part in schema.items():
            if key not in ("default", "enum", "required"):
                yield from leaves(part, f"{path}.{key}")


def resolved(schema: Any, schemas: dict[str, Any]) -> Any:
    """A schema with its references replaced by their targets."""
    if isinstance(schema, list):
        return [resolved(part, schemas) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    return {key: resolved(part, schemas) for key, part in schema.items()}


def unbounded_numbers(schema: Any, path: str) -> list[str]:
    """Paths of numbers without a minimum or without a maximum."""
    return [
        where
        for where, leaf in leaves(schema, path)
        if leaf["type"] in ("integer", "number")
        and not (
            {"minimum", "exclusiveMinimum"} & leaf.keys()
            and {"maximum", "exclusiveMaximum"} & leaf.keys()
        )
    ]


def is_bounded_text(leaf: dict[str, Any]) -> bool:
    """Whether a string has a maximum length, a set of values, a format, or a pattern of bounded
    length.
    """
    if {"maxLength", "enum", "const", "format"} & leaf.keys():
        return True
    pattern = re.sub(r"\[[^]]*\]", "x", leaf.get("pattern", "*"))
    return not re.search(r"[*+]|,\}", pattern)


def unbounded_sizes(schema: Any, path: str) -> list[str]:
    """Paths of strings, lists and mappings of unbounded size."""
    wrong = []
    for where, leaf in leaves(schema, path):
        if leaf["type"] == "string" and not is_bounded_text(leaf):
            wrong.append(where)
        if leaf["type"] == "array" and "maxItems" not in leaf:
            wrong.append(where)
        if leaf["type"] == "object" and "properties" not in leaf and "maxProperties" not in leaf:
            wrong.append(where)
    return wrong


def test_every_number_of_every_message_is_bounded() -> None:
    """In its schema, so that clients in other languages know the bounds too."""
    assert len(MODELS) > 40
    wrong = [
        place
        for model in MODELS
        for mode in ("validation", "serialization")
        for place in unbounded_numbers(model.model_json_schema(mode=mode), model.__name__)
    ]
    assert wrong == []


def test_every_parameter_and_body_is_bounded_in_numbers_and_length() -> None:
    """The OpenAPI document has a bound for everything that any caller may send."""
    document = create_app(ServerSettings()).openapi()
    schemas = document["components"]["schemas"]
    wrong = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sent = [parameter["schema"] for parameter in operation.get("parameters", [])]
            content = operation.get("requestBody", {}).get("content", {})
            sent += [content[kind]["schema"] for kind in content if kind.endswith("json")]
            whole = resolved(sent, schemas)
            wrong += unbounded_numbers(whole, f"{method} {path}")
            wrong += unbounded_sizes(whole, f"{method} {path}")
    assert wrong == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_no_model_takes_an_infinity(model: type[BaseModel]) -> None:
    """A float field refuses it, or turns it into null if a measurement may be missing."""
    for name, field in model.model_fields.items():
        if field.annotation is not float and "float" not in str(field.annotation):
            continue
        for wrong in (math.nan, math.inf, -math.inf):
            given = {"x": wrong} if "dict" in str(field.annotation) else wrong
            try:
                found = model.model_validate({name: given})
            except ValidationError as error:
                refused = name in {str(part["loc"][0]) for part in error.errors() if part["loc"]}
            else:
                refused = getattr(found, name) is None
            assert refused or "BeforeValidator" in str(field.metadata), (name, wrong)


@pytest.mark.parametrize("wrong", [10**320, 2**63, -1, True, 1.0, "1", None])
def test_a_count_is_an_integer_in_its_range(wrong: Any) -> None:
    """Booleans, floats and strings are refused."""
    with pytest.raises(ValidationError):
        UpdateMetrics.model_validate({"examples": wrong, "steps": 1})
    with pytest.raises(ValidationError):
        Progress.model_validate({"round": wrong, "step": 1, "steps": 1})
    with pytest.raises(ValidationError):
        RunSettings.model_validate({"rounds": wrong})


@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf, 3e38])
def test_a_member_whose_training_diverged_reports_no_number(diverged: float) -> None:
    """Its heartbeats and updates contain null, because JSON has no NaN."""
    assert Progress(round=1, step=1, steps=2, loss=diverged).loss is None
    assert UpdateMetrics(examples=1, steps=1, kl=diverged).kl is None
