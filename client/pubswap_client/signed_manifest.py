"""The signed manifest of a folder: `SHA256SUMS`, and an Ed25519 signature of it by OpenSSH.

Both are common formats: `sha256sum -c` and `ssh-keygen -Y verify` check them without PubSwap.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import InvalidSettings

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"

_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\n]+)")
_LARGEST = 16 << 20


NAMESPACE = "pubswap-export"  # of signatures: one made for another purpose is invalid


def sign(folder: Path, names: Iterable[str], key: Path) -> None:
    """Write the manifest of these files, with paths relative to the folder, and sign it.

    Raises InvalidSettings if OpenSSH is missing, or the key cannot sign.
    """
    sums = write_sums(folder, names)
    signature = _checked_output(_ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], sums))
    (folder / SIGNATURE).write_bytes(signature)


def write_sums(folder: Path, names: Iterable[str]) -> bytes:
    """Write the manifest of these files, with paths relative to the folder; returns its bytes."""
    sums = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in sorted(names)).encode()
    (folder / SUMS).write_bytes(sums)
    return sums


def make_key(key: Path) -> str | None:
    """Make an Ed25519 key, with its public half beside it, unless it exists.

    Returns the fingerprint of a new one, as SHA256:…
    """
    if key.exists():
        return None
    key.parent.mkdir(parents=True, exist_ok=True)
    _checked_output(_ssh_keygen(["-q", "-t", "ed25519", "-N", "", "-C", "pubswap", "-f", str(key)]))
    return _checked_output(_ssh_keygen(["-lf", str(key)])).split()[1].decode()


def faults(folder: Path, public_key: Path | None) -> list[str]:
    """Compare a folder with its manifest: each changed, missing or added file.

    With a public key, also verify the manifest's signature. Links are not followed, so nothing
    outside the folder is read, whatever the manifest names.

    Raises OSError if the folder has no manifest, InvalidSettings if the key is not one public key.
    """
    for path in (folder / SUMS, folder / SIGNATURE):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return [f"not a regular file: {path.name}"]
    with (folder / SUMS).open("rb") as file:
        sums = file.read(_LARGEST + 1)
    key = None if public_key is None else _read_key(public_key)
    if key is not None and not (folder / SIGNATURE).is_file():
        return [f"missing: {SIGNATURE}"]
    if len(sums) > _LARGEST or (key and not _signed(folder, sums, key)):
        return [
            f"changed, signed with another key, or not signed as {NAMESPACE}: {SUMS} or "
            f"{SIGNATURE}; sign again what an earlier version signed"
        ]
    lines = sums.decode(errors="replace").splitlines()
    entries = [match for line in lines if (match := _LINE.fullmatch(line))]
    expected = {match[2]: match[1] for match in entries}
    present = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    } - {SUMS, SIGNATURE}
    changed = [
        name for name in expected.keys() & present if not _same(folder / name, expected[name])
    ]
    # Report a malformed line, because `sha256sum` would read it differently or skip it.
    odd = [f"changed: {SUMS}"] if len(expected) < len(lines) else []
    return sorted(
        odd
        + [f"changed: {name}" for name in changed]
        + [f"missing: {name}" for name in expected.keys() - present]
        + [f"added: {name}" for name in present - expected.keys()]
    )


def _same(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and sha256_of(path) == digest


def _read_key(path: Path) -> str:
    """The key of a *.pub file. Of several, a reader would not know which has signed."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if any(len(words) < 2 or words[0] != "ssh-ed25519" for words in lines or [[]]):
        raise InvalidSettings(f"{path} is not a public Ed25519 key: give the file *.pub.")
    if len(lines) > 1:
        raise InvalidSettings(
            f"{path} has {len(lines)} keys, and a folder is signed with one: give a file with that "
            "key alone."
        )
    return " ".join(lines[0][:2])


def _signed(folder: Path, sums: bytes, key: str) -> bool:
    with TemporaryDirectory() as temporary:
        signers = Path(temporary) / "signers"
        signers.write_text(f'signer namespaces="{NAMESPACE}" {key}\n', encoding="utf-8")
        line = ["-Y", "verify", "-f", str(signers), "-I", "signer", "-n", NAMESPACE]
        return _ssh_keygen([*line, "-s", str(folder / SIGNATURE)], sums).returncode == 0


def _ssh_keygen(arguments: list[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InvalidSettings(
            "Install OpenSSH (ssh-keygen, 8.2 or later), which makes and checks the signatures."
        )
    return subprocess.run([program, *arguments], input=data, capture_output=True)


def _checked_output(done: subprocess.CompletedProcess[bytes]) -> bytes:
    if done.returncode != 0:
        raise InvalidSettings(f"ssh-keygen: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
