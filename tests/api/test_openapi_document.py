"""The OpenAPI document is complete, in the form that other tools expect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from pubswap_protocol.errors import PubSwapError, tree

DOCUMENT = json.loads((Path(__file__).parent / "openapi.json").read_text())
OPERATIONS = {
    operation["operationId"]: operation
    for methods in DOCUMENT["paths"].values()
    for operation in methods.values()
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
RANGES = {"Range", "If-Range", "If-None-Match"}


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from parts(entry)


def target(reference: str) -> Any:
    """Resolve a reference; raises KeyError if it is dangling."""
    found = DOCUMENT
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return found


def test_references_lead_somewhere_and_nothing_is_left_over() -> None:
    """Every $ref resolves, every component is used, and every operation id is unique."""
    used = {part["$ref"] for part in parts(DOCUMENT) if "$ref" in part}
    assert all(target(reference) for reference in used)
    components = DOCUMENT["components"]
    kinds = ("schemas", "responses")
    assert used == {f"#/components/{kind}/{name}" for kind in kinds for name in components[kind]}
    assert len(OPERATIONS) == sum(len(methods) for methods in DOCUMENT["paths"].values())


def test_tags_servers_and_arrays_are_declared() -> None:
    """OpenAPI linters refuse undeclared tags, missing servers and arrays without items."""
    assert DOCUMENT["servers"]
    assert DOCUMENT["info"]["contact"]
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert {tag for operation in OPERATIONS.values() for tag in operation["tags"]} == tags
    assert all("items" in part for part in parts(DOCUMENT) if part.get("type") == "array")


def test_schemas_are_json_schemas() -> None:
    """In draft 2020-12, as OpenAPI 3.1 requires."""
    assert DOCUMENT["openapi"].startswith("3.1")
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": DRAFT} | schema)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_refusal_is_problem_json_with_its_codes(name: str) -> None:
    """Each status is listed with a schema, its error codes, and which of them to retry."""
    errors = {error.code: error for error in tree(PubSwapError)}
    refusals = {k: v for k, v in OPERATIONS[name]["responses"].items() if int(k) >= 400}
    assert {"422", "500", "503"} <= set(refusals)
    for status, refusal in refusals.items():
        reply = target(refusal["$ref"])
        assert list(reply["content"]) == ["application/problem+json"]
        base, own = reply["content"]["application/problem+json"]["schema"]["allOf"]
        assert "code" in target(base["$ref"])["properties"]
        codes = own["properties"]["code"]["enum"]
        assert codes
        for code in codes:
            assert (errors[code].status == int(status)) or (status, code) == ("400", "invalid")
        assert reply["x-retryable"] == [code for code in codes if errors[code].retryable]
        assert ("Retry-After" in reply.get("headers", {})) == bool(reply["x-retryable"])


@pytest.mark.parametrize("name", ["get_blob", "get_adapter", "get_set"])
def test_downloads_say_how_a_part_is_asked_for(name: str) -> None:
    """Statuses 206, 304 and 416, with the headers of request and response."""
    operation = OPERATIONS[name]
    replies = operation["responses"]
    asked = {entry["name"] for entry in operation["parameters"] if entry["in"] == "header"}
    assert asked >= RANGES
    assert {"ETag", "Accept-Ranges", "Content-Range"} <= set(replies["206"]["headers"])
    assert "ETag" in replies["304"]["headers"]
    assert "Content-Range" in target(replies["416"]["$ref"])["headers"]


def test_what_is_not_json_is_not_called_json() -> None:
    """Metrics are text, and a response without a body has no content type."""
    assert list(OPERATIONS["metrics"]["responses"]["200"]["content"]) == ["text/plain"]
    for name in ("send_chunk", "heartbeat"):
        replies = OPERATIONS[name]["responses"]
        assert all("content" not in reply for key, reply in replies.items() if key < "400")
