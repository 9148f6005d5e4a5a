"""The fingerprint that binds a member to its certificate."""

import ssl
from hashlib import sha256
from pathlib import Path

import pytest

from pubswap_client.operator.members import _fingerprint
from pubswap_protocol.errors import InvalidSettings


@pytest.mark.parametrize("size", [30, 31, 32])
@pytest.mark.parametrize("above", [b"", b"z" * 31])
def test_the_fingerprint_is_the_first_certificate_s(
    size: int, above: bytes, tmp_path: Path
) -> None:
    """Whether the file contains the chain or only the member's own certificate."""
    path, own = tmp_path / "member.pem", b"y" * size
    chain = [ssl.DER_cert_to_PEM_cert(each) for each in (own, above) if each]
    path.write_text("".join(chain))
    assert _fingerprint(path) == sha256(own).hexdigest()


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    """For instance a key, or an empty file."""
    for text in ("", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"):
        (tmp_path / "member.pem").write_text(text)
        with pytest.raises(InvalidSettings, match="is not a PEM certificate"):
            _fingerprint(tmp_path / "member.pem")
