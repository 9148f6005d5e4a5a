"""`pubswap verifier test`: what a verifier pays, on problems of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pubswap_protocol.bounds import printable
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar

if TYPE_CHECKING:
    from rich.progress import Progress

    from pubswap_client.doctor.verifier import Case
    from pubswap_protocol.settings import RunSettings
    from pubswap_protocol.verifiers import VerifierPool
    from pubswap_protocol.verifiers.confined.worker import Scored
    from pubswap_protocol.verifiers.verifier import Verifier

verifier_commands = typer.Typer(help="Test verifiers.", no_args_is_help=True)

_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
_BAR = 40


@verifier_commands.callback()
def _group() -> None:
    """Keep `test` a command of a group, of which there may be more."""


@verifier_commands.command("test")
def test(
    verifier: Annotated[
        str,
        typer.Argument(
            help="A name, such as math or plugin:complaints, or a file (.toml) with `verifier` and "
            "perhaps `correct_at`, such as a run file."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Problems (JSONL).")],
    responses: Annotated[
        Path | None,
        typer.Option(help='Responses to score: JSONL with lines {"id": ..., "response": ...}.'),
    ] = None,
) -> None:
    """Check that a verifier pays right responses and no others, always the same, and in time.

    It scores each problem's reference answer, an empty response, and the answer of another problem,
    of at most 1,000 problems. Memory is not measured. For a verifier of an installed package it
    also prints the package's digest and the line for policy.toml.

    Exit status: 0 if no check fails, 1 otherwise.
    """
    from pubswap_client.doctor.findings import Checklist
    from pubswap_client.doctor.verifier import cases_of, findings, read_responses
    from pubswap_protocol.problems import read_problems
    from pubswap_protocol.verifiers import check_usable

    settings = _settings(verifier)
    problems = read_problems(data)
    answered = None if responses is None else read_responses(responses, problems)
    cases = cases_of(problems, settings.verifier)
    check_usable(settings.verifier)
    console = Console(markup=False, highlight=False)
    for line in _package_lines(settings.verifier):
        console.print(line, soft_wrap=True)
    with progress_bar() as progress:
        judge = partial(_judge, progress, settings.verifier)
        found = findings(cases, settings, judge)
        scored = None if answered is None else _scored(answered, judge)
    given = verifier.endswith(".toml")
    following = "pubswap run create" if given else "name it in the run file, as `verifier`"
    checklist = Checklist(found, following=f"{following}.")
    console.print(checklist.rendered())
    if answered is not None and scored is not None:
        for table in _tables(answered, scored, settings):
            console.print(table)
    if not checklist.healthy:
        raise typer.Exit(1)


def _settings(verifier: str) -> RunSettings:
    from pubswap_client.recipes.recipe import verifier_settings
    from pubswap_protocol.settings import RunSettings
    from pubswap_protocol.verifiers import verifier_of

    if verifier.endswith(".toml"):
        return verifier_settings(verifier)
    return RunSettings(verifier=verifier_of(verifier))


def _package_lines(verifier: Verifier) -> list[str]:
    """The installed packages of a verifier, and the line for the policy of a member."""
    from pubswap_protocol.verifiers.plugin import package_of
    from pubswap_protocol.verifiers.registry import packages

    lines, editable = [], False
    for name in verifier.plugins:
        package = package_of(name.partition(":")[2])
        lines.append(f"{name} is {package.name} {package.version}, digest {package.digest}")
        editable |= package.editable
    if editable:
        lines.append("It is installed from a working tree, which only simulations accept.")
    elif lines:
        lines.append(f"policy.toml: verifiers = {json.dumps(packages(verifier))}")
    return lines


def _judge(
    progress: Progress,
    verifier: Verifier,
    pool: VerifierPool,
    cases: Sequence[Case],
    description: str,
) -> list[Scored]:
    """The scores of the cases; of the first ones alone if too many are cut off."""
    from pubswap_client.doctor.verifier import given_up

    task = next_stage(progress, description, len(cases))
    scored: list[Scored] = []
    chunk = 16 * pool.workers if pool.workers > 1 else 1
    for start in range(0, len(cases), chunk):
        part = cases[start : start + chunk]
        scored += pool.judge_many(verifier, part)
        progress.advance(task, len(part))
        if given_up(scored):
            break
    return scored


def _scored(answered: Sequence[Case], judge: partial[list[Scored]]) -> list[Scored]:
    from pubswap_client.doctor.verifier import pool_of

    with pool_of() as pool:
        return judge(pool, answered, "Scoring the responses")


def _tables(
    answered: Sequence[Case], scored: Sequence[Scored], settings: RunSettings
) -> list[Table | Text]:
    """The score of each response, with those of its parts; how many have which; the mean."""
    parts = list(dict.fromkeys(name for each in scored for name in each.parts))
    each_one = Table(Column("id", overflow="fold"), "score", *parts)
    for (_, problem), each in zip(answered, scored, strict=False):
        cells = (f"{each.parts[name]:.3f}" if name in each.parts else "" for name in parts)
        each_one.add_row(Text(printable(problem.id)), f"{each.score:.3f}", *cells)
    counts = {"0": sum(each.score == 0 for each in scored)}
    for low, high in pairwise(_EDGES):
        inside = sum(max(low, 1e-12) <= each.score < high for each in scored)
        counts[f"{low:g} to {high:g}"] = inside
    counts["1"] = sum(each.score == 1 for each in scored)
    histogram = Table("score", Column("responses", justify="right"), "")
    for name, count in counts.items():
        histogram.add_row(name, str(count), "█" * -(-_BAR * count // len(scored)))
    correct = sum(settings.is_correct(each.score) for each in scored)
    mean = sum(each.score for each in scored) / len(scored)
    ending = "" if len(scored) == len(answered) else "; the others were not tried: these hung"
    summary = f"mean score {mean:.3f}, {correct} of {len(scored)} correct{ending}"
    return [each_one, histogram, Text(summary)]
