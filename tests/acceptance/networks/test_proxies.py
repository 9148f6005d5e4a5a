"""Forward proxies between a member, in a network namespace, and the coordinator."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.coordinator.tls import PUBLIC, TlsFiles, public_authorities
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings, ProxyFault, Unreachable
from pubswap_protocol.messages import CreateInvite, TaskKind
from pubswap_protocol.paths import PROTOCOL_VERSION
from pubswap_protocol.tensors.adapter import encode_adapter
from support.chaos.proxy import FaultProxy
from support.coordinator.certificates import Authority
from support.coordinator.coordinator import (
    Federation,
    Server,
    create,
    good_hello,
    serving,
    settings_for,
)
from support.eventually import until
from support.networks.forward_proxies import PASSWORD, USER, Interceptor, squid, tinyproxy
from support.privacy import namespace

MISSING = namespace.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

T = TypeVar("T")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")


@dataclass
class Site:
    """A member's network, from which the coordinator and all proxies are reachable."""

    network: namespace.Network
    server: Server
    url: str

    def inside(self, call: Callable[[], T]) -> T:
        """The result of a call made in the member's network."""
        with ThreadPoolExecutor(
            1, initializer=namespace.enter, initargs=(self.network.name,)
        ) as thread:
            return thread.submit(call).result(120)

    def version(self, url: str | None = None, tls: TlsFiles = PUBLIC) -> str:
        """Ask the coordinator's version from the member's network, without retries."""

        def ask() -> str:
            with CoordinatorClient(url or self.url, None, ONCE, tls=tls) as api:
                return api.version().protocol

        return self.inside(ask)

    def asked(self) -> set[tuple[str, int]]:
        """The addresses that TCP packets went to."""
        return {(to, port) for kind, to, port in self.network.sent if kind == "TCP"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the machine's own proxies and CAs from the environment."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    public_authorities.cache_clear()
    yield
    public_authorities.cache_clear()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A coordinator on plain HTTP."""
    with (
        namespace.network() as network,
        serving(settings_for(tmp_path / "data")) as server,
        server.closing,
        FaultProxy(_port(server), host=network.host) as outside,
    ):
        yield Site(network, server, outside.url)


@dataclass
class SecureSite(Site):
    """A coordinator that serves TLS with a certificate of this CA."""

    authority: Authority


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureSite]:
    with namespace.network() as network:
        authority = Authority(tmp_path / "ca", "the operator's CA")
        issued = authority.issue("coordinator", address=network.host)
        files = {"tls_cert": issued.certificate, "tls_key": issued.key}
        settings = settings_for(tmp_path / "data")
        with (
            serving(settings) as server,
            server.closing,
            serving(settings.model_copy(update=files)) as tls,
            FaultProxy(_port(tls), host=network.host) as outside,
        ):
            url = outside.url.replace("http://", "https://")
            yield SecureSite(network, server, url, authority)


def _port(server: Server) -> int:
    port = httpx.URL(server.url).port
    assert port is not None
    return port


def opened(site: Site) -> Federation:
    """A run that a member can join."""
    fed = create(site.server, method="fedavg", clients=1, rounds=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    return fed


def takes_part(site: Site, fed: Federation, tls: TlsFiles = PUBLIC) -> None:
    """Have a member enrol, say hello, send an adapter and read it back."""
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="a")).invite
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))

    def member() -> None:
        with CoordinatorClient(site.url, None, ONCE, tls=tls) as api:
            token = api.enroll(invite).token
        with CoordinatorClient(site.url, token, ONCE, tls=tls) as api:
            api.check_version()
            api.hello(fed.run.id, good_hello(fed.run))
            assert api.task(fed.run.id, 0).kind is TaskKind.WAIT
            digest = api.put_blob(fed.run.id, data)
            assert api.blob(fed.run.id, digest) == data

    site.inside(member)


def address(proxy: str) -> tuple[str, int]:
    host, port = proxy.split(":")
    return host, int(port)


def test_a_member_takes_part_through_a_proxy_with_a_password(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every packet goes to the proxy; a wrong password is reported, but not shown."""
    with tinyproxy(tmp_path / "tinyproxy", site.network.host, password=True) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{USER}:{PASSWORD}@{proxy}")
        takes_part(site, opened(site))
        until(lambda: site.asked() == {address(proxy)})
        monkeypatch.setenv("HTTP_PROXY", f"http://{USER}:mistyped@{proxy}")
        with pytest.raises(ProxyFault) as refused:
            site.version()
    said = refused.value.detail
    assert f"through the proxy http://{proxy}" in said
    assert "401" in said or "407" in said
    assert "mistyped" not in said
    assert "user and password" in said


def test_tls_goes_through_a_tunnel(
    secure: SecureSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if HTTPS_PROXY has no scheme; a proxy that refuses the tunnel is named."""
    host = secure.network.host
    with squid(tmp_path / "squid", host) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        takes_part(secure, opened(secure), secure.authority.files())
        until(lambda: secure.asked() == {address(proxy)})
    with tinyproxy(tmp_path / "tinyproxy", host, password=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy}")
        with pytest.raises(ProxyFault, match=f"through the proxy http://{proxy}.*40[17]"):
            secure.version(tls=secure.authority.files())


def test_a_proxy_that_opens_tls_needs_its_ca(
    secure: SecureSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In SSL_CERT_FILE or in place of the coordinator's; without it, the message says so."""
    company = Authority(tmp_path / "company", "the company's CA")
    shown = company.issue("proxy", address=secure.network.host)
    trusted = secure.authority.files().context()
    with Interceptor(secure.network.host, shown, trusted) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        for tls in (PUBLIC, secure.authority.files()):
            with pytest.raises(Unreachable, match="SSL_CERT_FILE"):
                secure.version(tls=tls)
        takes_part(secure, opened(secure), company.files())
        assert b"POST /v1/enroll" in proxy.read
        monkeypatch.setenv("SSL_CERT_FILE", str(company.file))
        public_authorities.cache_clear()
        takes_part(secure, opened(secure))
        public_authorities.cache_clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
        with pytest.raises(InvalidSettings, match=r"SSL_CERT_FILE.*nowhere\.pem"):
            secure.version()


@pytest.mark.parametrize("kind", [tinyproxy, squid])
def test_a_long_poll_that_a_proxy_cuts_is_asked_again(
    kind: Callable[..., "contextlib.AbstractContextManager[str]"],
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a warning or a pause, until there is an answer."""
    fed = opened(site)
    token = fed.join("a")
    caplog.set_level(logging.INFO)
    with kind(tmp_path / "proxy", site.network.host, seconds=3) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        never = Backoff(tries=1)  # so that a cut would be raised if it counted as a failure

        def waits() -> TaskKind:
            with CoordinatorClient(site.url, token, never) as api:
                return api.task(fed.run.id, 25).kind

        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(site.inside, waits)
            until(lambda: "was cut after" in caplog.text or waiting.done())
            fed.start()
            assert waiting.result(20) is TaskKind.TRAIN
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_page_of_a_proxy_is_quoted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error that the coordinator is away quotes the proxy's page, and is retryable."""
    with squid(tmp_path / "squid", site.network.host) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        nobody = f"http://{site.network.host}:1"
        with pytest.raises(ProxyFault, match=r"503.*could not be retrieved.*not by") as no:
            site.version(nobody)
    assert no.value.retryable
    assert f"through the proxy http://{proxy}" in no.value.detail


def test_no_proxy_names_hosts_that_are_asked_directly(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even next to an IPv6 address, which httpx's own parsing of NO_PROXY cannot handle."""
    monkeypatch.setenv("HTTP_PROXY", f"http://{site.network.host}:1")
    with pytest.raises(Unreachable, match="through the proxy"):
        site.version()
    monkeypatch.setenv("NO_PROXY", f"[::1],*.example.org,{site.network.host}")
    assert site.version() == PROTOCOL_VERSION


@pytest.mark.parametrize("text", ["ftp://p:1", "http://", "http://user:pa/ss@p:1", "socks5://p:1"])
def test_a_mistyped_proxy_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any request, with the variable's name and without its password."""
    monkeypatch.setenv("HTTPS_PROXY", text)
    with pytest.raises(InvalidSettings, match=r"PROXY|socks") as refused:
        CoordinatorClient("https://coordinator.example.org", None, ONCE)
    assert "pa/ss" not in refused.value.detail
    # This machine itself is reached directly.
    with pytest.raises(Unreachable), CoordinatorClient("https://127.0.0.1:1", None, ONCE) as api:
        api.version()
