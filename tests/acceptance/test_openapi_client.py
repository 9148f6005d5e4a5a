"""A client written from the OpenAPI document alone: plain httpx, safetensors and digests."""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import load, save

from pubswap_client.demo.demos import MODEL
from support.coordinator.processes import create_run, serve
from support.forked import ForkedProcesses

Tensors = dict[str, np.ndarray[Any, Any]]


class Stranger:
    """A client that knows only the document: operations by name, with their methods and paths."""

    def __init__(self, stack: ExitStack, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60))
        self.document = self.http.get("/openapi.json").json()
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def call(self, operation: str, parameters: dict[str, Any], **body: Any) -> httpx.Response:
        """Call an operation by its name."""
        method, path, described = self.operations[operation]
        reply = self.http.request(method, path.format(**parameters), **body)
        assert str(reply.status_code) in described["responses"], reply.text
        return reply

    def codes(self, operation: str, status: int) -> list[str]:
        """The error codes of an operation's refusals with this status."""
        reference = self.operations[operation][2]["responses"][str(status)]["$ref"]
        name = reference.removeprefix("#/components/responses/")
        content = self.document["components"]["responses"][name]["content"]
        narrowed = content["application/problem+json"]["schema"]["allOf"][1]
        found: list[str] = narrowed["properties"]["code"]["enum"]
        return found


def fingerprints() -> dict[str, str]:
    """The base model's digests, from the files in its folder."""
    weights = [sha256(path.read_bytes()) for path in sorted(MODEL.glob("*.safetensors"))]
    return {
        "config_digest": "sha256:" + sha256((MODEL / "config.json").read_bytes()),
        "tokenizer_digest": "sha256:" + sha256((MODEL / "tokenizer.json").read_bytes()),
        "weights_digest": "sha256:" + sha256("\n".join(weights).encode()),
    }


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def in_parts(stranger: Stranger, names: dict[str, Any]) -> bytes:
    """Fetch a blob in two pieces, as after a cut connection, and check that nothing follows it."""
    first = stranger.call("get_blob", names, headers={"Range": "bytes=0-99"})
    assert first.status_code == 206
    size = int(first.headers["Content-Range"].rpartition("/")[2])
    rest = {"Range": "bytes=100-", "If-Range": first.headers["ETag"]}
    data = first.content + stranger.call("get_blob", names, headers=rest).content
    assert len(data) == size
    behind = stranger.call("get_blob", names, headers={"Range": f"bytes={size}-"})
    assert behind.status_code == 416
    assert behind.headers["Content-Range"] == f"bytes */{size}"
    assert behind.json()["code"] in stranger.codes("get_blob", 416)
    return data


def update_of(precision: str, adapter: Tensors, step: float) -> bytes:
    """The file of an update that adds `step` to every number."""
    if precision == "float32":
        return save({name: tensor + np.float32(step) for name, tensor in adapter.items()})
    upper = int(np.array(step, np.float32).view(np.uint32)) >> 16  # `step` is a bfloat16
    file, header, at = b"", {}, 0
    for name in sorted(adapter):
        shape = adapter[name].shape
        file += np.full(shape, upper, np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, len(file)]}
        at = len(file)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file


def answer(stranger: Stranger, run: str, right: bool) -> Tensors:
    """Say hello, and respond to the round's first public step; returns the start adapter.

    `right` says whether the responses are right.
    """
    view = stranger.call("show_run", {"run": run}).json()
    hello = fingerprints() | {"verifier_version": view["verifier_version"]}
    assert stranger.call("hello", {"run": run}, json=hello).status_code == 204
    task = stranger.call("get_task", {"run": run}, params={"wait": 5}).json()
    assert task["kind"] == "train"
    adapter = load(in_parts(stranger, {"run": run, "digest": task["adapter"]}))
    assert {n: list(t.shape) for n, t in adapter.items()} == view["model"]["layout"]["tensors"]

    settings = view["settings"]
    last = settings["local_steps"] // settings["method"]["period"]
    names = {"run": run, "round": task["round"], "public_step": 1}
    beyond = stranger.call("get_public_step", names | {"public_step": last + 1})
    assert beyond.json()["code"] in stranger.codes("get_public_step", 404)
    prompts = stranger.call("get_public_step", names).json()["prompts"]
    count, length = settings["grpo"]["responses_per_prompt"], 3
    total = len(prompts) * count * length
    tokens = np.full((len(prompts) * count, length), 5 + right, np.int32)
    tokens[:, -1] = view["model"]["eos_token_ids"][0]
    responses = save(
        {
            "prompts": np.array([p["index"] for p in prompts], np.int32),
            "lengths": np.full((len(prompts), count), length, np.int32),
            "tokens": tokens.reshape(-1),
            "logprobs": np.full(total, -1.0, np.float32),
            "donated": np.zeros((len(prompts), count), np.uint8),
        }
    )
    receipt = stranger.call("submit_responses", names, content=responses).json()
    assert receipt["status"] == "accepted"
    stranger.call("heartbeat", {"run": run}, json={"round": 1, "step": 2, "steps": 2})
    return adapter


def hand_in(stranger: Stranger, run: str, adapter: Tensors, step: float) -> None:
    """Get the exchange's groups, and hand in an update: the adapter moved by `step`."""
    settings = stranger.call("show_run", {"run": run}).json()["settings"]
    names = {"run": run, "round": 1, "public_step": 1}
    groups = load(stranger.call("get_exchanged", names, params={"wait": 20}).content)
    assert len(groups["prompts"]) == len(groups["donated"])

    data = update_of(settings["wire"]["precision"], adapter, step)
    digest = "blake3:" + blake3(data).hexdigest()
    announced = {"digest": digest, "size": len(data)}
    upload = stranger.call("open_upload", {"run": run}, json=announced).json()["upload"]
    place = {"run": run, "upload": upload}
    headers = {"Content-Range": f"0-{len(data) - 1}"}
    sent = stranger.call("send_chunk", place, content=data, headers=headers)
    assert sent.headers["Range"] == headers["Content-Range"]
    stranger.call("finish_upload", place, params={"digest": digest})
    update = {"adapter": digest, "metrics": {"examples": 10, "steps": 2}}
    assert stranger.call("submit_update", names, json=update).json()["digest"] == digest


PLAIN: dict[str, Any] = {"rounds": 1}
OTHER = PLAIN | {"wire": {"precision": "bfloat16"}}


@pytest.mark.parametrize("settings", [PLAIN, OTHER], ids=["plain", "bfloat16"])
def test_a_client_written_from_the_openapi_document_takes_part(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Two such clients enrol, respond to a public step and hand in adapters; the run finishes."""
    with ExitStack() as stack, ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api:
            run = create_run(coordinator, settings).id
            token = (tmp_path / "c" / "operator-token").read_text().strip()
            operator = Stranger(stack, coordinator.api.url, token)
            members = []
            for name in ("one", "two"):
                code = operator.call("create_invite", {"run": run}, json={"name": name}).json()
                enrolled = Stranger(stack, coordinator.api.url).call(
                    "enroll", {}, json={"invite": code["invite"]}
                )
                members.append(Stranger(stack, coordinator.api.url, enrolled.json()["token"]))
            operator.call("start_run", {"run": run})
            started = [answer(member, run, bool(right)) for right, member in enumerate(members)]
            for step, (member, adapter) in enumerate(zip(members, started, strict=True), start=1):
                hand_in(member, run, adapter, step)
            for member in members:
                done = member.call("get_task", {"run": run}, params={"wait": 20}).json()
                assert done["kind"] == "finished"
            before = load(operator.call("get_adapter", {"run": run, "which": "0"}).content)
            after = load(operator.call("get_adapter", {"run": run, "which": "final"}).content)
            for name, tensor in after.items():
                assert np.allclose(tensor, before[name] + 1.5)
            events = operator.call("list_events", {"run": run}).json()["events"]
            assert events[-1]["kind"] == "aggregated"
