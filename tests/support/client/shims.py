"""A program `pubswap` for scripts; its processes are forked from one that has the imports."""

import json
import socketserver
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    order = [sys.argv[1:], os.getcwd(), dict(os.environ)]
    connection.sendall(json.dumps(order).encode() + b"\\n")
    status, said, errors = json.loads(connection.makefile().read())
sys.stdout.write(said)
sys.stderr.write(errors)
sys.exit(status)
"""


@contextmanager
def pubswap_on_path(
    folder: Path, run: Callable[[list[str], str, dict[str, str]], tuple[int, str, str]]
) -> Iterator[None]:
    """Put the program into a folder; it calls `run` with arguments, folder and environment.

    `run` returns the exit status, and the output on stdout and stderr.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer: Any = run(*json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(answer).encode())

    address = str(folder / "socket")
    with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        program = folder / "pubswap"
        program.write_text(SHIM.format(python=sys.executable, socket=address))
        program.chmod(0o755)
        try:
            yield
        finally:
            server.shutdown()
