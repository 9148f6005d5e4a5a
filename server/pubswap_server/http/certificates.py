"""mTLS at the proxy: the client certificate of a request, once it is verified.

TLS ends at the proxy, so that the certificate arrives as a header, which anybody can write. It is
trusted only beside the secret that the proxy and the coordinator share.
"""

import hashlib
import hmac
import re
import ssl
from urllib.parse import unquote

from starlette.datastructures import Headers

from pubswap_protocol.errors import Unauthenticated
from pubswap_protocol.paths import CERTIFICATE_HEADER, PROXY_SECRET_HEADER

_SHA256 = re.compile(r"(?:[0-9a-f]{2}:?){31}[0-9a-f]{2}", re.IGNORECASE)


def fingerprint(value: str) -> str:
    """SHA-256 of a certificate in hexadecimal, from what a proxy says of it.

    That is the fingerprint itself, with or without colons (HAProxy, Envoy), or the certificate as
    percent-encoded PEM (nginx's `$ssl_client_escaped_cert`). Raises Unauthenticated.
    """
    if _SHA256.fullmatch(value):
        return value.replace(":", "").lower()
    try:
        der = ssl.PEM_cert_to_DER_cert(unquote(value))
    except ValueError:
        raise Unauthenticated(
            f"{CERTIFICATE_HEADER} is neither a SHA-256 fingerprint nor a PEM certificate; see the "
            "proxy's configuration."
        ) from None
    return hashlib.sha256(der).hexdigest()


def vouched_certificate(headers: Headers, proxy_secret: str | None) -> str | None:
    """The fingerprint that the proxy vouches for; None if the request came without a certificate.

    Raises Unauthenticated if the header is there without the proxy's secret: somebody wrote it.
    """
    secret, value = headers.get(PROXY_SECRET_HEADER), headers.get(CERTIFICATE_HEADER)
    if secret is None and value is None:
        return None
    expected = (proxy_secret or "").encode()
    if not expected or not hmac.compare_digest((secret or "").encode(), expected):
        raise Unauthenticated(f"{CERTIFICATE_HEADER} is the proxy's to send, with its secret.")
    # nginx sends the header empty when the client has shown no certificate.
    return fingerprint(value) if value else None
