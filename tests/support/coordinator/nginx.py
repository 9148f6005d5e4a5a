"""A real nginx with the configuration that `deploy/` ships."""

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port

TEMPLATE = Path(__file__).parents[3] / "deploy" / "nginx" / "pubswap.conf.template"
# What the image's own nginx.conf does around conf.d, as far as it matters here.
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/pubswap.conf;
}}
"""


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template as envsubst fills it in; nginx's own $variables stay."""
    return re.sub(r"\$\{(PUBSWAP_\w+)\}", lambda found: values[found[1]], template)


@contextlib.contextmanager
def nginx(
    folder: Path, upstream: str, tls: Path, secret: str, edits: Mapping[str, str] = {}
) -> Iterator[str]:
    """The proxy's https address; `edits` replace text of the configuration."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    folder.mkdir()
    port = free_port()
    values = {
        "PUBSWAP_UPSTREAM": upstream,
        "PUBSWAP_TLS_PORT": f"127.0.0.1:{port}",
        "PUBSWAP_TLS_DIR": str(tls),
        "PUBSWAP_PROXY_SECRET": secret,
    }
    configured = filled(TEMPLATE.read_text(), values)
    for before, after in edits.items():
        assert before in configured
        configured = configured.replace(before, after)
    (folder / "pubswap.conf").write_text(configured)
    main = folder / "nginx.conf"
    main.write_text(AROUND.format(folder=folder))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(main)])
    try:
        _wait(port, process, folder / "error.log")
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)
