"""mTLS at the proxy: the verified client certificate of a request.

TLS ends at the proxy, so the certificate arrives in a header, and anybody can write a header. It is
trusted only together with the secret that the proxy and the coordinator share.
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
    """A certificate's SHA-256 in hexadecimal, from the proxy's header.

    The header has the fingerprint itself, with or without colons (HAProxy, Envoy), or the
    certificate as percent-encoded PEM (nginx's `$ssl_client_escaped_cert`). Raises Unauthenticated
    if it has neither.
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

    Raises Unauthenticated if the header comes without the proxy's secret, because it is forged.
    """
    secret, value = headers.get(PROXY_SECRET_HEADER), headers.get(CERTIFICATE_HEADER)
    if secret is None and value is None:
        return None
    expected = (proxy_secret or "").encode()
    if not expected or not hmac.compare_digest((secret or "").encode(), expected):
        raise Unauthenticated(f"{CERTIFICATE_HEADER} is valid only with the proxy's secret.")
    # nginx sends the header empty when the client has shown no certificate.
    return fingerprint(value) if value else None
