"""Real forward proxies: the system's tinyproxy and squid, and one that intercepts TLS."""

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from support.coordinator.certificates import Issued
from support.programs import installed, listening

USER, PASSWORD = "member", "s3cret"

TINYPROXY = """
Listen {host}
Port {port}
Timeout {seconds}
LogFile "{folder}/log"
PidFile "{folder}/pid"
MaxClients 50
{more}
"""
SQUID = """
http_port {host}:{port}
http_access allow all
cache deny all
read_timeout {seconds} seconds
pid_filename none
pinger_enable off
access_log none
cache_log /dev/null
shutdown_lifetime 0 seconds
{more}
"""


@contextlib.contextmanager
def tinyproxy(folder: Path, host: str, seconds: int = 60, password: bool = False) -> Iterator[str]:
    """Run it and yield its `host:port`; it cuts connections that are idle for `seconds`."""
    more = f"BasicAuth {USER} {PASSWORD}" if password else ""
    program = installed("tinyproxy", "tinyproxy")
    with _running(folder, host, TINYPROXY, seconds, more, [program, "-d", "-c"]) as address:
        yield address


@contextlib.contextmanager
def squid(folder: Path, host: str, seconds: int = 60) -> Iterator[str]:
    """Run it and yield its `host:port`; it replaces responses idle for `seconds` by a page."""
    program = installed("squid", "squid")
    # A name of its own for the shared memory, or it would share it with others.
    options = ["-N", "-d", "1", "-n", f"pubswap{os.getpid()}"]
    with _running(folder, host, SQUID, seconds, "", [program, *options, "-f"]) as address:
        yield address


@contextlib.contextmanager
def _running(
    folder: Path, host: str, configuration: str, seconds: int, more: str, command: list[str]
) -> Iterator[str]:
    folder.mkdir()
    with socket.create_server((host, 0)) as probe:
        port = probe.getsockname()[1]
    file = folder / "conf"
    values = {"host": host, "port": port, "seconds": seconds, "folder": folder, "more": more}
    file.write_text(configuration.format(**values))
    with listening([*command, str(file)], folder / "out", port, host):
        yield f"{host}:{port}"


class Interceptor:
    """A proxy that intercepts TLS, as companies' do: it presents a certificate of its own."""

    def __init__(self, host: str, shown: Issued, trusted: ssl.SSLContext) -> None:
        """`trusted` verifies the real servers."""
        self._towards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._towards.load_cert_chain(shown.certificate, shown.key)
        self._trusted = trusted
        for context in (self._towards, trusted):  # TLS 1.2 sends only data after the handshake
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.read = bytearray()  # what clients have sent, in the clear
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "Interceptor":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(client)
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            method, target, *_ = head.decode().split()
            assert method == "CONNECT"
            host, port = target.rsplit(":", 1)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            inner = stack.enter_context(self._towards.wrap_socket(client, server_side=True))
            raw = stack.enter_context(socket.create_connection((host, int(port))))
            outer = stack.enter_context(self._trusted.wrap_socket(raw, server_hostname=host))
            ends = {inner: outer, outer: inner}
            while True:
                ready = [end for end in ends if end.pending()] or select.select(ends, [], [])[0]
                for source in ready:
                    piece = source.recv(1 << 16)
                    if not piece:
                        return
                    if source is inner:
                        self.read += piece
                    ends[source].sendall(piece)
