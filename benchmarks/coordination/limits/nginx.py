"""nginx as a file server, and curl as its client: PUT through WebDAV, static GET."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordination.programs import listens, running

from pubswap_client.demo.processes import free_port

CONFIG = """
{user}
daemon off;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    client_max_body_size 1g;
    client_body_temp_path {folder}/temporary;
    server {{
        listen 127.0.0.1:{port};
        location / {{ root {folder}/files; dav_methods PUT; }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """Serve `folder`/files, and yield the address."""
    port = free_port()
    for name in ("files", "temporary"):
        (folder / name).mkdir(parents=True)
    # Started by root, its workers would run as another user, who may not write here.
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(user=user, folder=folder, port=port))
    command = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(config)]
    with running(command, folder / "nginx.log", lambda: listens(port)):
        yield f"http://127.0.0.1:{port}"


def put(url: str, file: Path) -> float:
    """Seconds of an upload, as curl counts them, without its own start."""
    # An empty Expect, because curl would wait for 100 Continue.
    size = file.stat().st_size
    return _curl("size_upload", size, "-H", "Expect:", "-T", str(file), "-o", os.devnull, url)


def get(url: str, size: int, file: Path) -> float:
    """Seconds of a download of so many bytes to a file."""
    return _curl("size_download", size, "-o", str(file), url)


def _curl(counted: str, size: int, *arguments: str) -> float:
    command = ["curl", "-sS", "--fail", "-w", "%{json}", *arguments]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert report[counted] == size, f"curl moved {report[counted]} of {size} bytes"
    return float(report["time_total"])
