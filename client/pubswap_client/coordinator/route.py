"""HTTP clients for a coordinator, direct or through the forward proxy in the environment."""

import ipaddress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from pubswap_client.coordinator.min_rate import MinRateTransport
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol.errors import InvalidSettings

LONG_POLL_SECONDS = 25.0  # most proxies cut a connection idle for 60 s, some for 30 s
# What httpx raises for a request: InvalidURL for a redirect to an invalid address, UnicodeError for
# a host name with a part that is empty or has more than 63 characters.
UNANSWERED = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


def parsed_url(url: str) -> httpx.URL:
    """Parse a coordinator's address; raises InvalidSettings if it is not one."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidSettings(f"{url!r} is not a coordinator's address: {error}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        scheme = "" if "://" in url else ": the scheme is missing, http:// or https://"
        raise InvalidSettings(
            f"{url!r} is not a coordinator's address, such as https://host:8470{scheme}."
        )
    if parsed.userinfo:
        raise InvalidSettings(
            "A coordinator's address has no user or password, because PubSwap sends its own token; "
            f"use {parsed.copy_with(userinfo=b'')}."
        )
    return parsed


def open_http(
    url: httpx.URL, tls: TlsFiles, proxy: httpx.Proxy | None, **options: Any
) -> httpx.Client:
    """A client for one coordinator, optionally through a proxy; `options` are httpx's own."""
    # Some proxies silently close connections that are not tunnelled.
    keepalive = 0 if proxy and url.scheme == "http" else 20
    context = options.pop("verify", None)
    try:
        transport = options.pop("transport", None) or MinRateTransport(
            context or tls.context(), proxy, keepalive
        )
        return httpx.Client(
            transport=transport,
            trust_env=False,  # `proxy_to` has read it
            # No cookie is needed, and a coordinator could set any number of them.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            **{"timeout": httpx.Timeout(LONG_POLL_SECONDS + 30, connect=10), **options},
        )
    except ImportError as error:  # for a SOCKS proxy
        raise InvalidSettings(str(error)) from None


def proxy_to(url: httpx.URL, tls: TlsFiles) -> httpx.Proxy | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, unless NO_PROXY names the host.

    None for this machine itself, which no proxy elsewhere could reach. Raises InvalidSettings if
    the address is not a proxy's. httpx does not read the environment, because it fails on an IPv6
    address in NO_PROXY and does not say which proxy it uses.
    """
    netloc = url.netloc.decode("ascii")
    if is_loopback(url.host) or proxy_bypass(netloc) or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address:
        return None
    try:
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
    except (ValueError, httpx.InvalidURL):
        # The error does not quote the address, which may contain a password.
        proxy = None
    if proxy is None or not proxy.url.host:
        raise InvalidSettings(
            f"{url.scheme.upper()}_PROXY or ALL_PROXY in the environment is not a proxy's address, "
            "such as http://user:password@proxy.example.org:3128 (in the password, write "
            "characters other than letters and digits as %XX)."
        )
    if proxy.url.scheme == "https":
        proxy.ssl_context = tls.context()
    return proxy


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
