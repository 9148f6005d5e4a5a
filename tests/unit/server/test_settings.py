"""The coordinator's settings: unknown and invalid ones, and the operator's token."""

import errno
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import make_url

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.server import http_options, listen
from pubswap_server.settings import (
    ServerSettings,
    load_settings,
    operator_token,
    unknown_variables,
)
from support.chaos.small_disk import missing, small_disk
from support.coordinator.certificates import Authority


@pytest.mark.parametrize("name", ["what?mode=memory", "100%41 #1", 'Köln\'s "data"'])
def test_the_database_is_in_the_data_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    """In a URL, ? begins a query and %41 is A: the database was made beside the folder."""
    if "?" in name and sqlalchemy.__version__.startswith("2.0."):
        pytest.skip("SQLAlchemy 2.0 writes ? into a URL as it is")
    url = make_url(ServerSettings(data_dir=tmp_path / name).sqlalchemy_url)
    assert url.database == str(tmp_path / name / "pubswap.sqlite")
    assert not url.query


def test_there_are_few_settings() -> None:
    """Values that nobody would set are constants."""
    assert len(ServerSettings.model_fields) <= 21


def test_a_variable_that_is_no_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, and the client's variables, are not."""
    for name in ("CHUNK_BYTES", "KEEP_ROUND", "KEEP_ROUNDS", "CLIENT_STATE", "COORDINATOR"):
        monkeypatch.setenv(f"PUBSWAP_{name}", "1")
    assert unknown_variables() == ["PUBSWAP_CHUNK_BYTES", "PUBSWAP_KEEP_ROUND"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("postgresql+psycopg://me:secret@host:port/db", "port is not a number"),
    ],
)
def test_a_database_s_address_that_names_none_is_refused(url: str, said: str) -> None:
    """With a message of our own, because SQLAlchemy's errors are about its arguments."""
    with pytest.raises(InvalidSettings, match=said):
        load_settings(database_url=url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("member_requests_per_second", "1e-320"),
        ("member_requests_per_second", "inf"),
        ("verifier_seconds", "inf"),
        ("verifier_seconds", "1e-7"),
        ("tick_seconds", "1e-320"),
        ("lease_seconds", "nan"),
        ("keep_rounds", str(10**20)),
        ("spare_bytes", str(2**63)),
    ],
)
def test_a_number_with_which_nothing_would_work_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name at the start, because it would break requests, verifiers and rounds later."""
    monkeypatch.setenv(f"PUBSWAP_{name}".upper(), value)
    with pytest.raises(InvalidSettings, match=f"{name}: Input should be"):
        load_settings()


@pytest.mark.parametrize("seconds", [0.001, 86_400])
def test_a_verifier_works_with_the_shortest_and_the_longest_time(seconds: float) -> None:
    """Timers and pipes can handle both times."""
    settings = load_settings(verifier_seconds=seconds)
    with VerifierPool(1, settings.verifier_seconds) as pool:
        problem = Problem(id="1", prompt="2 + 2 =", answer="4", verifier="math")
        scored = pool.score("math", ("4", problem))
    assert scored.score == 1.0 or seconds < 1


@pytest.mark.parametrize("host", ["köln..example", "a" * 70 + ".example", "[::1]"])
def test_an_address_that_cannot_be_listened_on_is_named(host: str) -> None:
    """Whatever the error of the look-up."""
    with pytest.raises(InvalidSettings) as told:
        listen(host, 0)
    assert f"Cannot listen on {host}:0: " in told.value.detail
    assert "--host" in told.value.detail


def test_a_machine_without_ipv6_is_told_which_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel refuses the socket already, before the address is bound."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(InvalidSettings) as told:
        listen("::1", 0)
    assert "Cannot listen on ::1:0: Address family not" in told.value.detail


@pytest.mark.parametrize(("name", "said"), [("", "There is no TLS file"), ("a", "as PEM: ")])
def test_files_that_are_no_certificate_are_named(tmp_path: Path, name: str, said: str) -> None:
    """A folder and a text, before the port is opened."""
    (tmp_path / "a").write_text("text")
    path = tmp_path / name
    with pytest.raises(InvalidSettings, match=said) as told:
        http_options(ServerSettings(tls_cert=path, tls_key=path))
    assert str(path) in told.value.detail


def test_a_key_of_another_user_is_not_called_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that only root may read, for a coordinator with a user of its own."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    (tmp_path / "a").write_text("text")
    with pytest.raises(InvalidSettings, match=r"This user may not read .*/a or .*/a\."):
        http_options(ServerSettings(tls_cert=tmp_path / "a", tls_key=tmp_path / "a"))


def test_an_encrypted_key_is_refused_without_asking(tmp_path: Path) -> None:
    """OpenSSL would wait for its pass phrase, which nobody types after a restart."""
    issued = Authority(tmp_path / "ca", "CA").issue("coordinator")
    key = tmp_path / "encrypted.key"
    encrypt = ("openssl", "pkey", "-in", issued.key, "-aes256", "-passout", "pass:word")
    subprocess.run([*encrypt, "-out", key], check=True, capture_output=True)
    http_options(ServerSettings(tls_cert=issued.certificate, tls_key=issued.key))
    with pytest.raises(InvalidSettings, match="is encrypted") as told:
        http_options(ServerSettings(tls_cert=issued.certificate, tls_key=key))
    assert str(key) in told.value.detail


def test_an_empty_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable of an environment file would open the port to every network."""
    monkeypatch.setenv("PUBSWAP_HOST", "")
    with pytest.raises(InvalidSettings) as told:
        load_settings()
    assert "host" in told.value.detail


def test_an_empty_operator_token_is_refused(tmp_path: Path) -> None:
    """From the environment or its file, because anyone could sign in with it."""
    for given in ("", " \n"):
        with pytest.raises(InvalidSettings, match="PUBSWAP_OPERATOR_TOKEN is empty"):
            operator_token(load_settings(data_dir=tmp_path, operator_token=given))
    assert operator_token(load_settings(data_dir=tmp_path, operator_token="secret\n")) == "secret"
    (tmp_path / "operator-token").write_text("\n")
    with pytest.raises(InvalidSettings, match="operator-token is empty"):
        operator_token(load_settings(data_dir=tmp_path))
    (tmp_path / "operator-token").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSettings, match="operator-token is not text"):
        operator_token(load_settings(data_dir=tmp_path))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_full_disk_leaves_no_half_made_operator_token(tmp_path: Path) -> None:
    """A partial file is removed, and the next start can make one once there is space."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        settings = load_settings(data_dir=disk.folder)
        disk.fill()
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                operator_token(settings)
        assert not list(disk.folder.glob("operator-token*"))
        disk.make_room()
        token = operator_token(settings)
        assert token and operator_token(settings) == token
        assert [path.name for path in disk.folder.iterdir()] == ["operator-token"]


def test_a_removed_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, too, which otherwise ignores unknown names."""
    monkeypatch.setenv("PUBSWAP_IDLE_SECONDS", "60")
    with pytest.raises(InvalidSettings, match="PUBSWAP_IDLE_SECONDS: a constant of 30 s since"):
        load_settings()
