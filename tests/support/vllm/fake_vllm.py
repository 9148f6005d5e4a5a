"""A few of `vllm serve`'s endpoints over real HTTP, without a model: the tokens are made up."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BASE = "base"
EOS = 1


@dataclass
class FakeVllm:
    """Its behaviour, and the requests it got."""

    url: str = ""
    updating: bool = True
    raw: bool = False
    longest: int = 64
    slow: float = 0.0
    port: int = 0
    fail: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the JSON body (or text) for a request."""
        self.asked.append((path, body))
        time.sleep(self.slow)
        if self.fail.get(path):
            return self.fail[path].pop(0)
        if path == "/v1/models":
            return 200, {"data": [self._base(), *map(self._adapter, self.adapters)]}
        if path == "/v1/completions":
            return self._complete(body)
        if not self.updating:
            return 404, {"detail": "Not Found"}
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return _error(400, "already been loaded")
            self.adapters[body["lora_name"]] = body["lora_path"]
            return 200, "Success"
        if self.adapters.pop(body["lora_name"], None) is None:
            return _error(404, "cannot be found")
        return 200, "Success"

    def _base(self) -> dict[str, Any]:
        return {"id": BASE, "root": "/model", "parent": None, "max_model_len": self.longest}

    def _adapter(self, name: str) -> dict[str, Any]:
        return {"id": name, "root": self.adapters[name], "parent": BASE}

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] not in {BASE, *self.adapters}:
            return _error(404, f"The model `{body['model']}` does not exist.")
        scale = 1.0 if self.raw else 1 / body["temperature"]
        choice = {
            "token_ids": [5, 6, EOS],
            "logprobs": {
                "token_logprobs": [-0.5, -1.0, -0.25],
                "top_logprobs": [{"token_id:5": -0.5 * scale, "token_id:6": -2.5 * scale}] * 3,
            },
        } | self.change
        choices = [{"index": index} | choice for index in reversed(range(body.get("n", 1)))]
        return 200, {"model": body["model"], "choices": choices}


def _error(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "Error", "code": status}}


@contextmanager
def fake_vllm(**changes: Any) -> Iterator[FakeVllm]:
    """A server, by default on a free port, for the length of the block."""
    fake = FakeVllm(**changes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            status, reply = fake.answer(self.path, body)
            data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):  # the client may have timed out
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", fake.port), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
