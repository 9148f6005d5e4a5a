"""The demo's problem files: one private JSONL for each client, a public and a test set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.data.tasks import Record
from pubswap_client.demo.tasks import demo_problems
from pubswap_protocol.problems import Problem, write_problems

PRIVATE_SIZE = 400
PUBLIC_SIZE = 240
TEST_SIZE = 640
ALPHA = 0.3


@dataclass(frozen=True)
class DemoData:
    """Where the demo's files are; `private` is by client name."""

    private: dict[str, Path]
    public: Path
    test: Path


def write_data(folder: Path, clients: Sequence[str], seed: int) -> DemoData:
    """Draw and write the sets: topics Dirichlet(0.3) over the clients, equal sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = demo_problems(seed, len(clients), PRIVATE_SIZE, PUBLIC_SIZE, TEST_SIZE, ALPHA)
    return DemoData(
        private={
            name: _write(folder / f"{name}.jsonl", records)
            for name, records in zip(clients, drawn.private, strict=True)
        },
        public=_write(folder / "public.jsonl", drawn.public),
        test=_write(folder / "test.jsonl", drawn.test),
    )


def _write(path: Path, records: Iterable[Record]) -> Path:
    write_problems(path, [Problem(**record) for record in records])
    return path.resolve()
