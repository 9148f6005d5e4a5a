"""A real nginx with the configuration in `deploy/`."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pubswap_client.demo.processes import free_port
from support.programs import installed, listening

TEMPLATE = Path(__file__).parents[3] / "deploy" / "nginx" / "pubswap.conf.template"
# As much of the image's own nginx.conf around conf.d as matters here.
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
    """Fill in the template as envsubst does; nginx's own $variables stay."""
    return re.sub(r"\$\{(PUBSWAP_\w+)\}", lambda match: values[match[1]], template)


@contextlib.contextmanager
def nginx(folder: Path, upstream: str, tls: Path, edits: Mapping[str, str] = {}) -> Iterator[str]:
    """Run the proxy and yield its https address; `edits` replace text of the configuration."""
    program = installed("nginx", "nginx-light")
    folder.mkdir()
    port = free_port()
    values = {
        "PUBSWAP_UPSTREAM": upstream,
        "PUBSWAP_TLS_PORT": f"127.0.0.1:{port}",
        "PUBSWAP_TLS_DIR": str(tls),
    }
    configured = filled(TEMPLATE.read_text(), values)
    for before, after in edits.items():
        assert before in configured
        configured = configured.replace(before, after)
    (folder / "pubswap.conf").write_text(configured)
    main = folder / "nginx.conf"
    main.write_text(AROUND.format(folder=folder))
    with listening([program, "-p", str(folder), "-c", str(main)], folder / "out", port):
        yield f"https://127.0.0.1:{port}"
