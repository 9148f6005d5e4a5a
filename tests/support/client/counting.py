"""A server that records all requests and answers 404."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Counting(BaseHTTPRequestHandler):
    """Records each request, and answers 404."""

    protocol_version = "HTTP/1.1"
    came: list[tuple[str, str, bytes]]

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.came.append((self.command, self.path, body))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _take

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def counting() -> Iterator[str]:
    """Run the server and yield its address; `Counting.came` has the requests since."""
    Counting.came = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
