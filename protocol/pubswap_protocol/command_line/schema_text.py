"""JSON schemas as text: types, bounds and units of settings and of message fields."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.methods.registry import NAME

Json = dict[str, Any]

_UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens", "gib": "GiB", "hours": "h"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def tables(model: type[BaseModel]) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """The tables of a settings class, the outermost first: dotted name ("" for the outermost),
    description, and fields."""
    schema = model.model_json_schema()
    pending = [("", schema)]
    while pending:
        path, table = pending.pop(0)
        fields = {}
        for name, field in table["properties"].items():
            inner = [part for part in choices(field, schema) if "properties" in part]
            if named := [part for part in inner if NAME in part["properties"]]:
                fields[name] = field | _named_field(field, named, schema)
                tables_of = [part for part in named if "x-word" not in part]
                pending += [(f"{path}.{name}".strip("."), _of_value(part)) for part in tables_of]
            elif inner:
                pending.append((f"{path}.{name}".strip("."), inner[0]))
            else:
                fields[name] = field | {"type_text": type_text(field, schema)}
        yield (path, table.get("description", ""), fields)


def _named_field(field: Json, named: Sequence[Json], schema: Json) -> Json:
    """A named value's field: its names as the type, and what each of them is."""
    names = next(part for part in field["oneOf"] if "enum" in part)
    default = field.get("default")
    each = [f"`{part['properties'][NAME]['const']}`: {part['description']}" for part in named]
    return {
        "type_text": type_text(names, schema),
        "default": default[NAME] if isinstance(default, dict) else default,
        "description": " ".join([field.get("description", ""), *each]),
    }


def _of_value(part: Json) -> Json:
    """The table of a named value's parameters, which say whose they are."""
    fields = {key: field for key, field in part["properties"].items() if key != NAME}
    whose = f" With `{part['properties'][NAME]['const']}`."
    return part | {
        "properties": {
            key: field | {"description": field.get("description", "") + whose}
            for key, field in fields.items()
        }
    }


def choices(field: Json, schema: Json) -> list[Json]:
    """The alternative schemas of a value, with references resolved."""
    if "$ref" in field:
        return [_at(schema, field["$ref"])]
    parts = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]
    return [choice for part in parts for choice in choices(part, schema)] or [field]


def _at(schema: Json, reference: str) -> Json:
    for key in reference.removeprefix("#/").split("/"):
        schema = schema[key]
    return schema


def type_text(field: Json, schema: Json) -> str:
    """A field's type with its bounds: integer ≥ 1, ≤ 64."""
    texts = [_choice_text(choice, schema) for choice in choices(field, schema)]
    return " or ".join(dict.fromkeys(text for text in texts if text != "null")) or "null"


def _choice_text(field: Json, schema: Json) -> str:
    if values := field.get("enum") or ([field["const"]] if "const" in field else []):
        return ", ".join(f"`{value}`" for value in values)
    kind = field.get("type", "any")
    if kind == "array" and field.get("items"):
        return f"list of {type_text(field['items'], schema)}"
    # Larger bounds only keep numbers from overflowing.
    named = {key: sign for key, sign in _BOUNDS.items() if abs(field.get(key, 1e9)) < 1e9}
    bounds = [f"{sign} {f'{field[key]:,}'.removesuffix('.0')}" for key, sign in named.items()]
    name = str(field.get("title", kind) if "properties" in field else kind)
    return f"{name} {', '.join(bounds)}".strip()


def default_text(field: Json) -> str:
    """A field's default, or "" if it has none or an empty one."""
    default = field.get("default")
    if default in (None, [], {}, ""):
        return ""
    return default if isinstance(default, str) else value_text(default).removesuffix(".0")


def unit(name: str) -> str:
    """A number's unit, from the end of its name: s, bytes, tokens, GiB, h or a rate."""
    *_, last = name.lower().split("_")
    if "_per_second" in name.lower():
        return "bytes/s" if "bytes" in name.lower() else "1/s"
    return _UNITS.get(last, "")


def plain(text: str) -> str:
    """Text as one line."""
    return " ".join(text.split())
