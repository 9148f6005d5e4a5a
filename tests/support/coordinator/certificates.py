"""Certificates of the tests' own CA, made by openssl."""

import hashlib
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pubswap_client.coordinator.tls import TlsFiles


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def sha256(self) -> str:
        """The certificate's fingerprint."""
        der = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        return hashlib.sha256(der).hexdigest()


class Authority:
    """A CA in a folder; skips the test if there is no openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl, which makes the certificates, is not installed")
        folder.mkdir()
        self.folder = folder
        self._issuer = Issued(folder / "ca.pem", folder / "ca.key")
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self._issuer.key, "-out", self.file, "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    @property
    def file(self) -> Path:
        """The CA's certificate."""
        return self._issuer.certificate

    def issue(self, name: str, file: str | None = None, address: str = "127.0.0.1") -> Issued:
        """A certificate in this name for an address, by default the loopback's."""
        issued = Issued(self.folder / f"{file or name}.pem", self.folder / f"{file or name}.key")
        request, extensions = self.folder / "request.pem", self.folder / "extensions.txt"
        extensions.write_text(f"subjectAltName=IP:{address},DNS:localhost\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", issued.key, "-out", request, "-subj", f"/CN={name}"),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._issuer.key),
            *("-CAcreateserial", "-days", "2", "-out", issued.certificate),
            *("-extfile", extensions),
        )
        return issued

    def files(self, shown: Issued | None = None) -> TlsFiles:
        """TLS files of a client that trusts this CA and may present a certificate."""
        if shown is None:
            return TlsFiles(ca_file=self.file)
        return TlsFiles(ca_file=self.file, certificate=shown.certificate, key=shown.key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
