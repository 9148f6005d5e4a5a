"""TLS: directly, and behind a real nginx that demands client certificates."""

import contextlib
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.demo.processes import free_port
from pubswap_client.operator.connecting import operator_token
from pubswap_client.state.membership import load_membership
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings, PubSwapError, Unreachable
from pubswap_protocol.messages import CreateInvite, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.certificates import Authority, Issued
from support.coordinator.coordinator import (
    Federation,
    Server,
    create,
    good_hello,
    serving,
    settings_for,
)
from support.coordinator.nginx import nginx
from support.coordinator.processes import Coordinator, create_run
from support.eventually import until
from support.forked import ForkedProcesses


@dataclass(frozen=True)
class Behind:
    """A coordinator, a proxy that demands certificates, and an organisation's certificate."""

    server: Server
    url: str
    authority: Authority
    a: Issued

    def client(self, token: str | None, shown: Issued | None) -> CoordinatorClient:
        """A client that uses the proxy with a certificate."""
        made = CoordinatorClient(self.url, token, ONCE, tls=self.authority.files(shown))
        return self.server.closing.enter_context(made)

    def http(self, token: str | None, shown: Issued | None) -> httpx.Client:
        """A bare HTTP client that does so."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = self.authority.files(shown).context()
        made = httpx.Client(base_url=self.url, headers=headers, verify=context, timeout=30)
        return self.server.closing.enter_context(made)

    def enrolled(self, fed: Federation, name: str, shown: Issued) -> str:
        """The token of a member that enrolled with a certificate."""
        invite = fed.operator.invite(fed.run.id, CreateInvite(name=name))
        token = self.client(None, shown).enroll(invite.invite).token
        self.client(token, shown).hello(fed.run.id, good_hello(fed.run))
        return token


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    """The coordinator, proxy and certificates, ready for use."""
    authority = Authority(tmp_path / "ca", "the operator's CA")
    served = authority.issue("localhost")
    tls = tmp_path / "tls"
    tls.mkdir()
    shutil.copy(served.certificate, tls / "server.pem")
    shutil.copy(served.key, tls / "server.key")
    shutil.copy(authority.file, tls / "members-ca.pem")
    edits = {
        "# ssl_client_certificate": "ssl_client_certificate",
        "# ssl_verify_client on;": "ssl_verify_client on;",
        "client_header_timeout 10s": "client_header_timeout 1s",
        "send_timeout 30s": "send_timeout 1s",
    }
    with serving(settings_for(tmp_path / "data")) as server, server.closing:
        upstream = server.url.removeprefix("http://")
        with nginx(tmp_path / "nginx", upstream, tls, edits) as url:
            yield Behind(server, url, authority, authority.issue("hospital-a"))


def opened(behind: Behind) -> Federation:
    """A run that members can join."""
    fed = create(behind.server, method="fedavg", clients=1, rounds=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    return fed


def test_a_run_goes_through_the_proxy(behind: Behind) -> None:
    """Enrolment, a long poll, an upload and a download, over TLS with a private CA."""
    fed = opened(behind)
    api = behind.client(behind.enrolled(fed, "a", behind.a), behind.a)
    fed.start()
    task = api.task(fed.run.id, 5)
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    digest = api.put_blob(fed.run.id, data)
    metrics = UpdateMetrics(examples=1, steps=2)
    api.submit_update(fed.run.id, task.round, SubmitUpdate(adapter=digest, metrics=metrics))
    fed.wait_for(1)
    assert api.blob(fed.run.id, digest) == data
    with pytest.raises(Unreachable):
        CoordinatorClient(behind.url, None, ONCE).version()


def test_a_proxy_may_demand_a_certificate(behind: Behind, tmp_path: Path) -> None:
    """The coordinator never sees a request with another CA's certificate, or with none."""
    stranger = Authority(tmp_path / "stranger", "somebody's CA").issue("hospital-a")
    fed = opened(behind)
    token = behind.enrolled(fed, "a", behind.a)
    path = paths.RUN.format(run=fed.run.id)
    assert behind.http(token, behind.a).get(path).status_code == 200
    for shown in (stranger, None):
        reply = behind.http(token, shown).get(path)
        assert reply.status_code == 400
        assert "nginx" in reply.text


def test_metrics_stay_inside(behind: Behind) -> None:
    """The operator's token works through the proxy; /metrics is not available there."""
    fed = opened(behind)
    token = behind.server.app.state.services.settings.operator_token.get_secret_value()
    http = behind.http(token, behind.a)
    assert http.get(paths.RUN.format(run=fed.run.id)).status_code == 200
    assert http.get(paths.METRICS).status_code == 404
    assert http.get(paths.HEALTH).headers["strict-transport-security"]
    with behind.server.http() as direct:
        assert direct.get(paths.METRICS).status_code == 200


def test_a_slow_header_is_dropped_at_the_proxy(behind: Behind) -> None:
    """nginx closes the connection after its own deadline."""
    with connected(behind) as secure:
        secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        started = time.monotonic()
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            while secure.recv(4096):
                pass
        assert time.monotonic() - started < 5


def connected(behind: Behind, receive_buffer: int | None = None) -> ssl.SSLSocket:
    """A TLS connection to the proxy."""
    host, port = behind.url.removeprefix("https://").split(":")
    raw = socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(10)
    raw.connect((host, int(port)))
    context = behind.authority.files(behind.a).context()
    return context.wrap_socket(raw, server_hostname=host)


def test_a_large_head_is_refused_at_the_proxy(behind: Behind) -> None:
    """One large header, many, or a long path."""
    many = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 2000) for n in range(40))
    for path, headers in (
        (b"/healthz", b"X-One: " + b"y" * 40_000 + b"\r\n"),
        (b"/healthz", many),
        (b"/" + b"x" * 40_000, b""),
    ):
        with connected(behind) as secure:
            answer = b""
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                secure.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
                answer = secure.recv(4096)
            assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 414", b"")


def test_a_peer_that_never_reads_its_answer_is_dropped_at_the_proxy(behind: Behind) -> None:
    """So unread answers cannot pile up at the coordinator."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(behind, receive_buffer=4096) as secure:
        secure.settimeout(0.5)

        def dropped() -> bool:
            try:
                secure.sendall(request)
            except TimeoutError:
                return False
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                return True
            return False

        until(dropped)


def test_the_coordinator_serves_tls_itself(tmp_path: Path) -> None:
    """By `pubswap serve --tls-cert --tls-key`, and members keep the CA beside their token."""
    authority = Authority(tmp_path / "ca", "CA")
    issued = authority.issue("localhost")
    url = f"https://127.0.0.1:{free_port()}"
    options = ["--port", url.rsplit(":", 1)[-1], "--data-dir", str(tmp_path / "c")]
    options += ["--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)]
    tls = authority.files()
    with ForkedProcesses(tmp_path / "logs") as processes:
        processes.start("coordinator", ["serve", *options])
        with CoordinatorClient(url, backoff=Backoff(tries=1), tls=tls) as probe:
            wait_until_ready(probe, 60, processes.check)
        token = operator_token(tmp_path / "c" / "operator-token")
        with CoordinatorClient(url, token, ONCE, tls=tls) as api:
            run = create_run(Coordinator(processes, api, tmp_path), {"clients": 1})
            invite = api.invite(run.id, CreateInvite(name="a")).invite
        state = tmp_path / "a"
        enrolling = ["client", "enroll", "--coordinator", url, "--invite", invite]
        enrolling += ["--state", str(state), "--ca-file", str(authority.file)]
        processes.start("enroll", enrolling)
        deadline = time.monotonic() + 60
        while not (state / "membership.json").exists():
            processes.check()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        stored = load_membership(state)
        assert stored.tls == TlsFiles(ca_file=authority.file)
        with CoordinatorClient(url, stored.membership.token, ONCE, tls=stored.tls) as member:
            assert member.run(run.id).id == run.id
        with pytest.raises(Unreachable), CoordinatorClient(url, None, ONCE) as stranger:
            stranger.version()


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """Before any request."""
    with pytest.raises(InvalidSettings, match=r"nowhere\.pem"):
        TlsFiles(ca_file=tmp_path / "nowhere.pem").context()
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("x")
    with pytest.raises(PubSwapError, match=r"garbage\.pem"):
        TlsFiles(ca_file=garbage).context()
