"""Which client certificate a proxy vouches for."""

from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.datastructures import Headers

from pubswap_protocol.errors import Unauthenticated
from pubswap_protocol.paths import CERTIFICATE_HEADER, PROXY_SECRET_HEADER
from pubswap_server.http.certificates import fingerprint, vouched_certificate
from support.coordinator.certificates import Authority

SHA256 = "0123456789abcdef" * 4


def test_a_fingerprint_is_read_from_what_proxies_send(tmp_path: Path) -> None:
    """Hexadecimal with or without colons, or the certificate itself, as PEM and percent-encoded."""
    issued = Authority(tmp_path / "ca", "ca").issue("hospital-a")
    colons = ":".join(SHA256[place : place + 2] for place in range(0, 64, 2)).upper()
    assert fingerprint(SHA256) == fingerprint(colons) == SHA256
    assert fingerprint(quote(issued.certificate.read_text())) == issued.sha256


@pytest.mark.parametrize("value", ["", "x", SHA256[:-1], SHA256 + "0", "-----BEGIN%20CERT", "%ff"])
def test_what_is_no_certificate_is_refused(value: str) -> None:
    """The reply is 401, never a 500."""
    with pytest.raises(Unauthenticated):
        fingerprint(value)


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({CERTIFICATE_HEADER: SHA256}, "s"),
        ({CERTIFICATE_HEADER: SHA256}, None),
        ({CERTIFICATE_HEADER: SHA256, PROXY_SECRET_HEADER: "t"}, "s"),
        ({CERTIFICATE_HEADER: SHA256, PROXY_SECRET_HEADER: ""}, ""),
        ({CERTIFICATE_HEADER: "", PROXY_SECRET_HEADER: ""}, None),
        ({PROXY_SECRET_HEADER: "t"}, "s"),
        ({PROXY_SECRET_HEADER: "s\xe9"}, "s"),
    ],
)
def test_a_header_without_the_right_secret_is_refused(
    headers: dict[str, str], secret: str | None
) -> None:
    """Even if the coordinator has no secret, or an empty one."""
    with pytest.raises(Unauthenticated):
        vouched_certificate(Headers(headers), secret)


def test_the_proxy_may_say_that_there_is_no_certificate() -> None:
    """With the secret and without the header, or with an empty one."""
    assert vouched_certificate(Headers({}), "s") is None
    assert vouched_certificate(Headers({PROXY_SECRET_HEADER: "s"}), "s") is None
    told = Headers({PROXY_SECRET_HEADER: "s", CERTIFICATE_HEADER: ""})
    assert vouched_certificate(told, "s") is None
    told = Headers({PROXY_SECRET_HEADER: "s", CERTIFICATE_HEADER: SHA256})
    assert vouched_certificate(told, "s") == SHA256
