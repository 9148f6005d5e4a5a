"""The way to a coordinator: direct, or through the forward proxy that the environment names."""

import ipaddress
import ssl
from urllib.request import getproxies, proxy_bypass

import httpx

from pubswap_protocol.errors import InvalidSettings


def proxy_to(url: httpx.URL, context: ssl.SSLContext) -> httpx.Proxy | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, unless NO_PROXY names the host.

    None to this machine itself, which no proxy elsewhere could reach. Raises InvalidSettings for
    an address that is no proxy's. The environment is not left to httpx, which fails on an IPv6
    address in NO_PROXY and does not say which proxy it took.
    """
    netloc = url.netloc.decode("ascii")
    if _is_loopback(url.host) or proxy_bypass(netloc) or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address:
        return None
    try:
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
    except (ValueError, httpx.InvalidURL):
        # Not quoted, as there may be a password in it.
        proxy = None
    if proxy is None or not proxy.url.host:
        raise InvalidSettings(
            f"{url.scheme.upper()}_PROXY or ALL_PROXY in the environment is no proxy's address, "
            "such as http://user:password@proxy.example.org:3128 (a character of the password "
            "other than letters and digits as %XX)."
        )
    if proxy.url.scheme == "https":
        proxy.ssl_context = context
    return proxy


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
