"""The signed manifest of an exported folder, and every way in which the folder may differ."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from pubswap_client import signed_manifest
from pubswap_client.command_line import end_with
from pubswap_client.signed_manifest import SIGNATURE, SUMS, faults, make_key, sign
from pubswap_protocol.errors import InvalidSettings

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
NAMES = ("README.md", "adapter_model.safetensors")
NOT_SIGNED = (
    f"changed, signed with another key, or not signed as pubswap-export: {SUMS} or {SIGNATURE}; "
    "sign again what an earlier version signed"
)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(name.encode() * 100)
    make_key(tmp_path / "key")
    sign(folder, NAMES, tmp_path / "key")
    return folder


def test_a_new_key_s_fingerprint_is_told_once(tmp_path: Path) -> None:
    """As OpenSSH prints it; an existing key stays."""
    fingerprint = make_key(tmp_path / "new" / "key")
    assert make_key(tmp_path / "new" / "key") is None
    line = ["ssh-keygen", "-lf", str(tmp_path / "new" / "key.pub")]
    shown = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert fingerprint is not None and f" {fingerprint} " in shown


def test_an_unchanged_folder_is_valid_for_common_tools_too(signed: Path) -> None:
    """`sha256sum` and OpenSSH verify it without PubSwap."""
    public = signed.parent / "key.pub"
    assert faults(signed, public) == []
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=signed, check=True)
    signers = signed.parent / "signers"
    signers.write_text(f"operator {public.read_text()}")
    line = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "operator"]
    line += ["-n", "pubswap-export", "-s", str(signed / SIGNATURE)]
    subprocess.run(line, input=(signed / SUMS).read_bytes(), check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_bit_a_missing_and_an_added_file_are_named(signed: Path, name: str) -> None:
    public, path = signed.parent / "key.pub", signed / name
    original = path.read_bytes()
    for position in range(0, len(original), 97):
        path.write_bytes(
            original[:position] + bytes([original[position] ^ 1]) + original[position + 1 :]
        )
        assert faults(signed, public) == [f"changed: {name}"]
    path.unlink()
    (signed / "more").mkdir()
    (signed / "more" / "x").write_bytes(b"x")
    assert faults(signed, public) == ["added: more/x", f"missing: {name}"]
    path.symlink_to(signed.parent / "elsewhere")
    (signed.parent / "elsewhere").write_bytes(original)
    assert faults(signed, public) == ["added: more/x", f"changed: {name}"]


def test_a_forged_manifest_is_found(signed: Path) -> None:
    """Changed sums, another key's signature, a truncated signature, and none."""
    public = signed.parent / "key.pub"
    (signed / NAMES[0]).write_bytes(b"forged")
    make_key(signed.parent / "other")
    sign(signed, NAMES, signed.parent / "other")
    assert faults(signed, signed.parent / "other.pub") == []
    refused = [NOT_SIGNED]
    assert faults(signed, public) == refused
    sign(signed, NAMES, signed.parent / "key")
    sums, signature = (signed / SUMS).read_bytes(), (signed / SIGNATURE).read_bytes()
    (signed / SUMS).write_bytes(sums.replace(b"README.md", b"readme.md"))
    assert faults(signed, public) == refused
    (signed / SUMS).write_bytes(sums)
    (signed / SIGNATURE).write_bytes(signature[:-40])
    assert faults(signed, public) == refused
    (signed / SIGNATURE).unlink()
    assert faults(signed, public) == [f"missing: {SIGNATURE}"]


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    make_key(tmp_path / "data" / "key")
    before = (tmp_path / "data" / "key").read_bytes()
    make_key(tmp_path / "data" / "key")
    assert (tmp_path / "data" / "key").read_bytes() == before
    assert (tmp_path / "data" / "key").stat().st_mode & 0o077 == 0


def test_a_signature_for_another_purpose_is_invalid(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same key and the same files."""
    with monkeypatch.context() as patched:
        patched.setattr(signed_manifest, "NAMESPACE", "pubswap-other")
        sign(signed, NAMES, signed.parent / "key")
    (fault,) = faults(signed, signed.parent / "key.pub")
    assert "not signed as pubswap-export" in fault and "sign again" in fault


@pytest.mark.parametrize("second", ["other", "key"])
def test_a_file_of_several_public_keys_is_refused(signed: Path, second: str) -> None:
    """The reader would not know which of them has signed; comments and empty lines do no harm."""
    public, both = signed.parent / "key.pub", signed.parent / "both.pub"
    make_key(signed.parent / "other")
    both.write_text(f"{public.read_text()}{(signed.parent / f'{second}.pub').read_text()}")
    with pytest.raises(InvalidSettings, match="2 keys"):
        faults(signed, both)
    both.write_text(f"\n{public.read_text().strip()} of the operator\n\n")
    assert faults(signed, both) == []
    both.write_text("\n")
    with pytest.raises(InvalidSettings, match="public Ed25519 key"):
        faults(signed, both)


def test_what_is_no_public_key_is_refused(signed: Path) -> None:
    with pytest.raises(InvalidSettings, match="public Ed25519 key"):
        faults(signed, signed.parent / "key")


def change(folder: Path) -> None:
    (folder / NAMES[0]).write_bytes(b"x" + (folder / NAMES[0]).read_bytes()[1:])


def cut(folder: Path) -> None:
    (folder / NAMES[1]).write_bytes((folder / NAMES[1]).read_bytes()[:-1])


def public_step(folder: Path) -> None:
    (folder / NAMES[0]).rename(folder / "third")
    (folder / NAMES[1]).rename(folder / NAMES[0])
    (folder / "third").rename(folder / NAMES[1])


def link_file(folder: Path) -> None:
    (folder / NAMES[0]).rename(folder.parent / "outside")
    (folder / NAMES[0]).symlink_to(folder.parent / "outside")


def link_folder(folder: Path) -> None:
    (folder.parent / "wheels").mkdir()
    (folder / "wheels").symlink_to(folder.parent / "wheels")


def link_manifest(folder: Path) -> None:
    (folder / SUMS).rename(folder.parent / SUMS)
    (folder / SUMS).symlink_to(folder.parent / SUMS)


def pipe(folder: Path) -> None:
    (folder / NAMES[0]).unlink()
    os.mkfifo(folder / NAMES[0])  # reading it would block forever


def pipe_for_manifest(folder: Path) -> None:
    (folder / SUMS).unlink()
    os.mkfifo(folder / SUMS)


def name_in_case(folder: Path) -> None:
    (folder / NAMES[0]).rename(folder / NAMES[0].lower())


MUTATIONS = {
    change: ["changed: README.md"],
    cut: ["changed: adapter_model.safetensors"],
    public_step: ["changed: README.md", "changed: adapter_model.safetensors"],
    link_file: ["changed: README.md"],
    link_folder: ["added: wheels"],
    link_manifest: ["not a regular file: SHA256SUMS"],
    pipe_for_manifest: ["not a regular file: SHA256SUMS"],
    pipe: ["changed: README.md"],
    name_in_case: ["added: readme.md", "missing: README.md"],
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.__name__))
def test_without_a_key_every_change_is_found_too(
    signed: Path, mutation: Callable[[Path], None]
) -> None:
    """Links are not followed."""
    assert faults(signed, None) == []
    mutation(signed)
    assert faults(signed, None) == MUTATIONS[mutation]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"{zero}  ../key\n", ["missing: ../key"]),
        (b"{zero}  /etc/passwd\n", ["missing: /etc/passwd"]),
        (b"{zero}  ./README.md\n", ["missing: ./README.md"]),
        (b"{zero}  README.md\n", ["changed: README.md", "changed: SHA256SUMS"]),
        (b"{zero} *README.md\n", ["changed: SHA256SUMS"]),
        (b"\\{zero}  more\\nless\n", ["changed: SHA256SUMS"]),
        (b"\xff\xfe\n", ["changed: SHA256SUMS"]),
        (b"x" * (17 << 20), [NOT_SIGNED]),
    ],
    ids=["above", "absolute", "dotted", "twice", "binary", "escaped", "no text", "endless"],
)
def test_unusual_lines_of_a_manifest_are_refused(
    signed: Path, line: bytes, found: list[str]
) -> None:
    """It cannot name files outside the folder, or lines that other tools read differently."""
    with (signed / SUMS).open("ab") as file:
        file.write(line.replace(b"{zero}", b"0" * 64))
    assert faults(signed, None) == found


def test_a_file_s_name_cannot_fake_terminal_output(
    signed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For instance that the folder is unchanged."""
    (signed / "\r\x1b[2Kall is whole").touch()
    with pytest.raises(typer.Exit):
        end_with(faults(signed, None))
    assert capsys.readouterr().err == "'added: \\r\\x1b[2Kall is whole'\n"
