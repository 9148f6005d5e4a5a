"""Generated requests, valid and invalid: every response is as documented, and none is a 5xx."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, SerializationContext
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pubswap_protocol import paths
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, Server, begun

DOCUMENT = json.loads((Path(__file__).parent / "openapi.json").read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()
}
DOCUMENTED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Cancelling would end the run, and an ended run refuses most requests for that reason alone.
ENDS = ("operator", "cancel_run")


@schemathesis.serializer(paths.TENSORS_TYPE, paths.JSONL_TYPE)
def as_it_is(context: SerializationContext, value: Any) -> bytes:
    """Serialise bytes unchanged, and anything else as its text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def scene(shared_server: Server) -> Iterator[Federation]:
    """A run in round 1, where most requests have something to act on."""
    server = Server(shared_server.url, shared_server.app, shared_server.data_dir)
    with server.closing:
        yield begun(server)


def known(fed: Federation) -> dict[str, list[Any]]:
    """Path values that exist, so that requests get further, and some odd ones."""
    numbers = [0, 1, 1, 1, 2, -1, 2**31, 2**63, 2**70]
    return {
        "run": [fed.run.id, fed.run.name],
        "member": ["nobody", "\x00", "\U0001f600"],
        "kind": ["public", "test"],
        "which": ["final", "best", "0", "1", "\u0663", "9" * 5000],
        "digest": [fed.view().rounds[0].adapter],
        "round": numbers,
        "public_step": numbers,
    }


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_request_makes_a_server_error(
    shared_server: Server, scene: Federation, name: str
) -> None:
    """For each role, every response conforms to the document."""
    tokens = {
        "evaluator": scene.tokens["judge"],
        "client": scene.tokens["a"],
        "operator": OPERATOR_TOKEN,
    }
    there = known(scene)

    @seed(20261121)
    @settings(
        max_examples=settings().max_examples // 10,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=requests(name), data=st.data())
    def tried(case: Any, data: st.DataObject) -> None:
        for key in case.path_parameters or {}:
            if key in there and data.draw(st.integers(0, 3)):
                case.path_parameters[key] = data.draw(st.sampled_from(there[key]))
        if isinstance(case.query, dict) and "wait" in case.query:
            # Long polls would only wait, and are tested elsewhere.
            case.query["wait"] = 0
        for role, token in tokens.items():
            if (role, name) == ENDS:
                continue
            headers = {"Authorization": f"Bearer {token}"}
            reply = case.call(base_url=shared_server.url, headers=headers)
            assert reply.status_code < 500, (role, reply.text)
            case.validate_response(reply, checks=DOCUMENTED)

    tried()


def requests(name: str) -> st.SearchStrategy[Any]:
    """An operation's requests: valid, and also invalid if it has any input."""
    operation = OPERATIONS[name]
    well = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    raw = operation.definition.raw
    if not raw.get("parameters") and "requestBody" not in raw:
        return well
    return st.one_of(well, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
