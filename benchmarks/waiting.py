"""How soon a thousand waiting clients learn of an event."""

import time
from collections.abc import Sequence
from pathlib import Path

from pubswap_client.coordinator.client import wait_until_ready
from pubswap_client.demo.processes import Processes, free_port
from pubswap_protocol import paths
from support.coordinator.coordinator import OPERATOR_TOKEN, Server, create
from support.coordinator.crowd import Crowd


def long_poll_seconds(count: int, folder: Path, options: Sequence[str] = ()) -> float:
    """Seconds from the operator's `start` until the last of `count` clients is answered.

    The coordinator is a `pubswap serve` of its own, with `options` and data in `folder`.
    """
    port = free_port()
    with Processes(folder / "logs") as processes:
        command = ["serve", "--port", str(port), "--data-dir", str(folder / "data"), *options]
        processes.start("coordinator", command, {"PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN})
        server = Server(f"http://127.0.0.1:{port}", None, folder)
        with server.closing:
            wait_until_ready(server.client(), 60, processes.check)
            fed = create(server, clients=1)
            fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
            for number in range(count):
                fed.join(f"client-{number}")
            with Crowd(server.url, fed.run.id, list(fed.tokens.values()), 25) as crowd:
                begin = time.monotonic()
                fed.start()
                answers = crowd.answers()
    assert {kind for _, kind in answers} == {"train"}
    assert len(answers) == count
    return max(at for at, _ in answers) - begin
