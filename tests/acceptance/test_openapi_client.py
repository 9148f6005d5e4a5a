"""A client written from the OpenAPI document alone: plain httpx, safetensors, hashlib."""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load, save

from pubswap_protocol.verifiers import verifier_version
from support.processes import Processes, create_run, serve


class Stranger:
    """Knows nothing but the document: operations by name, their methods and paths."""

    def __init__(self, stack: ExitStack, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60))
        document = self.http.get("/openapi.json").json()
        self.operations = {
            operation["operationId"]: (method.upper(), path)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }

    def call(self, operation: str, parameters: dict[str, Any], **body: Any) -> httpx.Response:
        """Call an operation by its name."""
        method, path = self.operations[operation]
        reply = self.http.request(method, path.format(**parameters), **body)
        assert reply.is_success, reply.text
        return reply


def take_part(stranger: Stranger, run: str, right: bool) -> None:
    """One round with one public step; `right` says whether the answers are."""
    view = stranger.call("show_run", {"run": run}).json()
    digests = ("config_digest", "tokenizer_digest", "weights_digest")
    verifier = verifier_version(view["settings"]["verifier"])
    hello = {name: view["model"][name] for name in digests} | {"verifier_version": verifier}
    stranger.call("hello", {"run": run}, json=hello)
    task = stranger.call("get_task", {"run": run}, params={"wait": 5}).json()
    assert task["kind"] == "train"
    names = {"run": run, "round": task["round"], "swap": 1}
    adapter = load(stranger.call("get_blob", {"run": run, "digest": task["adapter"]}).content)
    assert {n: list(t.shape) for n, t in adapter.items()} == view["model"]["layout"]["tensors"]

    prompts = stranger.call("get_swap", names).json()["prompts"]
    settings = view["settings"]["grpo"]
    count, length = settings["responses_per_prompt"], 3
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

    trained = {name: tensor + np.float32(1 + right) for name, tensor in adapter.items()}
    data = save(trained)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    announced = {"digest": digest, "size": len(data)}
    upload = stranger.call("open_upload", {"run": run}, json=announced).json()["upload"]
    place = {"run": run, "upload": upload}
    headers = {"Content-Range": f"0-{len(data) - 1}"}
    stranger.call("send_chunk", place, content=data, headers=headers)
    stranger.call("finish_upload", place, params={"digest": digest})
    update = {"adapter": digest, "metrics": {"examples": 10, "steps": 2}}
    assert stranger.call("submit_update", names, json=update).json()["digest"] == digest


def test_a_client_written_from_the_openapi_document_takes_part(tmp_path: Path) -> None:
    """Two strangers enrol, answer a public step, hand in adapters, and the run is finished."""
    with ExitStack() as stack, Processes(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api:
            run = create_run(coordinator, {"rounds": 1}).id
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
            for right, member in enumerate(members):
                take_part(member, run, bool(right))
            for member in members:
                names = {"run": run, "round": 1, "swap": 1}
                assert load(member.call("get_exchanged", names, params={"wait": 5}).content)
                done = member.call("get_task", {"run": run}, params={"wait": 20}).json()
                assert done["kind"] == "finished"
            before = load(operator.call("get_adapter", {"run": run, "which": "0"}).content)
            after = load(operator.call("get_adapter", {"run": run, "which": "final"}).content)
            for name, tensor in after.items():
                assert np.allclose(tensor, before[name] + 1.5)
            events = operator.call("list_events", {"run": run}).json()["events"]
            assert events[-1]["kind"] == "aggregated"
