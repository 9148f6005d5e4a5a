"""TLS to the coordinator: a private CA, and this side's client certificate."""

import os
import ssl
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, model_validator

from pubswap_protocol.errors import InvalidSettings


class TlsFiles(BaseModel, extra="forbid", frozen=True):
    """PEM files. Without any, public CAs are trusted, and no client certificate is presented."""

    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _a_certificate_has_a_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate and its key go together")
        return self

    def context(self) -> ssl.SSLContext:
        """The SSL context for httpx; raises InvalidSettings if a file cannot be used."""
        if self == PUBLIC:
            return public_authorities()
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(str(file) for file in self.model_dump().values() if file)
            raise InvalidSettings(f"The TLS files {named} cannot be used: {error}") from None
        return context


PUBLIC = TlsFiles()


@cache
def public_authorities() -> ssl.SSLContext:
    """httpx's default CAs, or those in SSL_CERT_FILE.

    Cached, because reading them takes longer than most requests.
    Raises InvalidSettings if that file cannot be used.
    """
    import httpx  # not needed by commands that only read the state folder

    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise InvalidSettings(
            f"SSL_CERT_FILE = {os.environ.get('SSL_CERT_FILE')} cannot be used: {error}"
        ) from None


def from_environment(ca_file: Path | None = None) -> TlsFiles:
    """An operator's files: PUBSWAP_CLIENT_CERT_FILE, PUBSWAP_CLIENT_KEY_FILE and PUBSWAP_CA_FILE.

    `ca_file` takes precedence over the last.
    """
    names = {
        "ca_file": "PUBSWAP_CA_FILE",
        "certificate": "PUBSWAP_CLIENT_CERT_FILE",
        "key": "PUBSWAP_CLIENT_KEY_FILE",
    }
    files = {key: Path(os.environ[name]) for key, name in names.items() if os.environ.get(name)}
    if ca_file is not None:
        files["ca_file"] = ca_file
    if ("certificate" in files) != ("key" in files):
        raise InvalidSettings("PUBSWAP_CLIENT_CERT_FILE and PUBSWAP_CLIENT_KEY_FILE go together.")
    return TlsFiles(**files)
