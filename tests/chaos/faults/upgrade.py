"""Thousands of connections of one peer that ask for another protocol, and are closed in time.

Each kind of upgrade, whole and cut, plain and over TLS. Lost is a connection that is open when its
deadline has passed, or that is given anything but answers in HTTP.
"""

import resource
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.processes import Processes, free_port
from pubswap_protocol import paths
from support.coordinator.certificates import Authority

SECONDS = 3.0  # for a head, and for a body's next byte
SLACK_SECONDS = 30.0
BATCH = 3000  # at once
_SOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
_HEAD = b" / HTTP/1.1\r\nHost: x\r\n"
UPGRADES = (
    b"GET" + _HEAD + _SOCKET + _KEY + b"\r\n",
    b"GET" + _HEAD + _SOCKET + _KEY,
    b"GET" + _HEAD + _SOCKET + _KEY + b"\r\n\x81\x05hello",
    b"POST" + _HEAD + _SOCKET + b"Content-Length: 1\r\n\r\nx",
    b"POST" + _HEAD + _SOCKET + b"Content-Length: 9\r\n\r\nx",
    b"POST" + _HEAD + _SOCKET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
    b"GET" + _HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Hold `count` plain connections, and half as many over TLS."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2 * count + 1000), most))
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder / "ca", "CA")
    issued = authority.issue("localhost")
    limits = {"PUBSWAP_IDLE_SECONDS": str(SECONDS)}
    files = ["--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)]
    held, slowest, after, lost = 0, 0.0, 0.0, list[str]()
    for name, number, more in (("plain", count, []), ("tls", count // 2, files)):
        port, context = free_port(), authority.files().context() if more else None
        address, scheme = ("127.0.0.1", port), "https" if more else "http"
        with (
            Processes(folder / name) as processes,
            CoordinatorClient(
                f"{scheme}://127.0.0.1:{port}", backoff=ONCE, tls=authority.files()
            ) as probe,
        ):
            options = ["serve", "--port", str(port), "--data-dir", str(folder / name / "data")]
            processes.start("coordinator", options + more, limits)
            wait_until_ready(probe, 60, processes.check)
            for begin in range(0, number, BATCH):
                sockets = [
                    _opened(address, context, n) for n in range(begin, min(number, begin + BATCH))
                ]
                began = time.monotonic()
                lost += [f"{name}: {wrong}" for raw in sockets if (wrong := _kept(raw, began))]
                slowest = max(slowest, time.monotonic() - began)
                held += len(sockets)
                progress(min(count, held))
            began = time.monotonic()
            _get(address, context)
            after = max(after, time.monotonic() - began)
    return {
        "tried": held,
        "lost": len(lost),
        "seconds_until_closed": slowest,
        "answer_after_seconds": after,
        "broken": lost[:20],
    }


def _opened(address: tuple[str, int], context: ssl.SSLContext | None, number: int) -> socket.socket:
    raw = socket.create_connection(address, timeout=30)
    if context is not None:
        raw = context.wrap_socket(raw, server_hostname=address[0])
    raw.sendall(UPGRADES[number % len(UPGRADES)])
    return raw


def _kept(raw: socket.socket, since: float) -> str | None:
    """What is wrong: it is open when its time is over, or was told something else than HTTP."""
    answer = b""
    with raw:
        try:
            while True:
                raw.settimeout(max(0.1, since + SECONDS + SLACK_SECONDS - time.monotonic()))
                if not (piece := raw.recv(65536)):
                    break
                answer += piece
        except TimeoutError:
            return "still open"
        except OSError:  # reset
            pass
    if not answer.startswith(b"HTTP/1.1 ") or answer.startswith(b"HTTP/1.1 101"):
        return f"answered {answer[:80]!r}"
    return None


def _get(address: tuple[str, int], context: ssl.SSLContext | None) -> None:
    """An honest request is answered."""
    raw = socket.create_connection(address, timeout=30)
    if context is not None:
        raw = context.wrap_socket(raw, server_hostname=address[0])
    with raw:
        raw.sendall(f"GET {paths.HEALTH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")
