"""The compose file for production: settings that exist, files that are there, two replicas."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pubswap_server.settings import ServerSettings, load_settings
from support.coordinator.certificates import Authority
from support.coordinator.nginx import TEMPLATE, nginx

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "docker-compose.production.yml"
REPLICAS = ("coordinator-1", "coordinator-2")
GIVEN = {
    "POSTGRES_PASSWORD": "a",
    "STORE_SECRET": "b",
    "PUBSWAP_OPERATOR_TOKEN": "c",
    "PUBSWAP_TLS_DIR": "/tls",
}


def compose() -> dict[str, Any]:
    """The file, with variables replaced as compose does."""

    def value(match: re.Match[str]) -> str:
        name, operator, rest = match.groups(default="")
        assert name in GIVEN or operator == ":-", f"{name} has no value"
        return GIVEN.get(name, rest)

    text = re.sub(r"\$\{(\w+)(:[-?])?([^}]*)\}", value, COMPOSE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def services() -> dict[str, Any]:
    """Its services."""
    found: dict[str, Any] = compose()["services"]
    return found


def test_replicas_are_alike_and_their_settings_can_be_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the cache, which each has of its own; a name that is no setting would be ignored."""
    first, second = (services()[name] for name in REPLICAS)
    assert first.pop("volumes") != second.pop("volumes")
    assert first == second
    environment = {name: text for name, text in first["environment"].items() if text is not None}
    for name in os.environ:
        if name.startswith("PUBSWAP_"):
            monkeypatch.delenv(name)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    named = {name for name in first["environment"] if name.startswith("PUBSWAP_")}
    assert named <= {f"PUBSWAP_{name}".upper() for name in ServerSettings.model_fields}
    settings = load_settings()
    assert settings.blob_url == "s3://pubswap"
    assert settings.database_url == "postgresql+psycopg://pubswap:a@db/pubswap"
    proxy = services()["proxy"]
    assert settings.trusted_proxies == proxy["networks"]["default"]["ipv4_address"]


def test_no_other_container_can_have_the_proxy_s_address() -> None:
    """It is of the network, and not of the range from which Docker gives out addresses."""
    (pool,) = compose()["networks"]["default"]["ipam"]["config"]
    address = ip_address(compose()["services"]["proxy"]["networks"]["default"]["ipv4_address"])
    assert address in ip_network(pool["subnet"])
    assert address not in ip_network(pool["ip_range"])


def test_what_is_mounted_is_there_and_what_is_scraped_is_served() -> None:
    """Files of the repository, the template's variables, and Prometheus' targets."""
    for service in services().values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    needed = set(re.findall(r"\$\{(PUBSWAP_\w+)\}", TEMPLATE.read_text()))
    assert needed <= services()["proxy"]["environment"].keys()
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (targets,) = prometheus["scrape_configs"][0]["static_configs"]
    assert targets["targets"] == [f"{name}:8470" for name in REPLICAS]


def composing() -> list[str]:
    """The compose command that this machine has."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker"):
        known = subprocess.run(["docker", "compose", "version"], capture_output=True)
        if known.returncode == 0:
            return ["docker", "compose"]
    pytest.skip("compose is not installed")


@pytest.mark.parametrize(
    "file", [COMPOSE, DEPLOY.parent / "docker-compose.yml"], ids=lambda p: p.name
)
def test_compose_takes_its_file(file: Path) -> None:
    """And refuses it without the secrets."""
    command = [*composing(), "-f", str(file), "config", "--quiet"]
    bare = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    done = subprocess.run(command, env=bare | GIVEN, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert done.returncode != 0
    assert "POSTGRES_PASSWORD" in done.stderr


@contextmanager
def replica(name: str) -> Iterator[str]:
    """The address of a server that says its name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def test_the_proxy_asks_both_replicas(tmp_path: Path) -> None:
    """A real nginx, with what the compose file gives it."""
    authority = Authority(tmp_path / "ca", "the operator's CA")
    served = authority.issue("localhost")
    tls = tmp_path / "tls"
    tls.mkdir()
    for file, name in ((served.certificate, "server.pem"), (served.key, "server.key")):
        shutil.copy(file, tls / name)
    upstream = services()["proxy"]["environment"]["PUBSWAP_UPSTREAM"]
    with ExitStack() as stack:
        for name in REPLICAS:
            assert f"{name}:8470" in upstream
            upstream = upstream.replace(f"{name}:8470", stack.enter_context(replica(name)))
        url = stack.enter_context(nginx(tmp_path / "nginx", upstream, tls))
        context = authority.files().context()
        with httpx.Client(base_url=url, verify=context) as http:
            assert {http.get("/").text for _ in range(4)} == set(REPLICAS)
