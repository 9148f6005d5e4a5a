"""How much the exchange can help, from the kept state of simulated runs (`simulate --keep-work`).

For each row of a store and each round, over all public prompts and clients, it prints how often a
client has no right response although a peer has one, the share of responses that keep replaces, the
share of groups with a learning signal before and after that, the advantage of a donated response,
and the log-probability of right responses under the policy that sampled them. For runs without
donations, it prints what keep would have done.
"""

import argparse
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from safetensors.numpy import load_file

from pubswap_simulation.reporting.page import grid
from pubswap_simulation.reporting.section import sections
from pubswap_simulation.results import RESULT, RUNS, read_result

Right = Sequence[Sequence[bool]]  # (P, K), for one client


@dataclass(frozen=True)
class Group:
    """One client's responses to one prompt, and what keep does with them."""

    right: int
    of_peers: int
    size: int

    @property
    def replaced(self) -> int:
        """Wrong responses replaced by peers' right ones, up to half of the group."""
        return min(max(0, self.size // 2 - self.right), self.of_peers)

    @property
    def has_signal(self) -> bool:
        """Whether some responses are right and some wrong, so that the group has a signal."""
        return 0 < self.right < self.size

    @property
    def rescued(self) -> bool:
        """Whether the group has a signal only because of the exchange."""
        return self.right == 0 and self.replaced > 0

    @property
    def advantage(self) -> float:
        """Advantage of a donated response, after the exchange."""
        right = self.right + self.replaced
        rewards = [1.0] * right + [0.0] * (self.size - right)
        return (1 - fmean(rewards)) / stdev(rewards)


def groups(by_client: Sequence[Right]) -> Iterator[Group]:
    """Every client's groups in one public step, prompt by prompt."""
    for answers in zip(*by_client, strict=True):
        counts = [sum(responses) for responses in answers]
        for right, responses in zip(counts, answers, strict=True):
            yield Group(right, sum(counts) - right, len(responses))


def steps(database: Path) -> Iterator[tuple[int, list[Right], list[Path]]]:
    """Each public step: its round, and all clients' verdicts and response files."""
    query = (
        "SELECT round, public_step, correct, digest FROM submissions "
        "ORDER BY round, public_step, member"
    )
    by_step: dict[tuple[int, int], list[tuple[Right, Path]]] = defaultdict(list)
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for number, public_step, correct, digest in connection.execute(query):
            name = digest.replace(":", "-")
            path = database.parent / "blobs" / name.partition("-")[2][:2] / name
            by_step[number, public_step].append((json.loads(correct), path))
    for (number, _), members in by_step.items():
        yield number, [right for right, _ in members], [path for _, path in members]


def likelihood(right: Right, path: Path) -> Iterator[float]:
    """Mean log-probability per token of each right response, under the policy that sampled it."""
    arrays = load_file(path)
    begin = 0
    flat = [one for group in right for one in group]
    for length, is_right in zip(arrays["lengths"].flatten(), flat, strict=True):
        if is_right:
            yield float(arrays["logprobs"][begin : begin + length].mean())
        begin += int(length)


def main() -> None:
    """Print the table of a store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    store: Path = parser.parse_args().store
    all_groups: dict[tuple[str, int], list[Group]] = defaultdict(list)
    logs: dict[tuple[str, int], list[float]] = defaultdict(list)
    for path in sorted((store / RUNS).glob(f"*/{RESULT}")):
        database = path.parent / "work" / "coordinator" / "pubswap.sqlite"
        if not database.exists():
            continue
        result = read_result(path.parent)
        [row] = sections([result])[0].rows
        for number, rights, files in steps(database):
            all_groups[row.label, number] += groups(rights)
            for right, file in zip(rights, files, strict=True):
                logs[row.label, number] += likelihood(right, file)
    heads = ["", "round", "groups", "right", "none right", "and a peer is", "replaced", "teach"]
    heads += ["teach after", "advantage of a donated", "log p of a right token"]
    rows = [
        _row(label, number, row_groups, logs[label, number])
        for (label, number), row_groups in sorted(all_groups.items())
    ]
    print(grid(heads, rows))


def _row(label: str, number: int, row_groups: Sequence[Group], logs: Sequence[float]) -> list[str]:
    def share(values: Sequence[float]) -> str:
        return f"{100 * fmean(values):.1f} %"

    advantages = [group.advantage for group in row_groups for _ in range(group.replaced)]
    return [
        label,
        str(number),
        str(len(row_groups)),
        share([group.right / group.size for group in row_groups]),
        share([group.right == 0 for group in row_groups]),
        share([group.rescued for group in row_groups]),
        share([group.replaced / group.size for group in row_groups]),
        share([group.has_signal for group in row_groups]),
        share([group.has_signal or group.rescued for group in row_groups]),
        f"{fmean(advantages):.2f}" if advantages else "",
        f"{fmean(logs):.3f}" if logs else "",
    ]


if __name__ == "__main__":
    main()
