"""`results.csv`: a line for each run and evaluation, from round 0 (the base model) to the last.

`pandas.read_csv` reads it. Columns are named as in `Run.metrics`. A share is from 0 to 1.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

from pubswap_client.recipes.tables import Value
from pubswap_protocol.messages import Evaluation, Role, RoundSummary, WholeRun
from pubswap_simulation.reporting.methods import Row
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

KINDS = ("adapters_up", "adapters_down", "responses_up", "responses_down")
DONATED = ("tokens", "probability", "clip_share")


def write_table(sections: Iterable[Section], path: Path) -> None:
    """Write the table; a column is empty for runs that do not have it."""
    records = list(table(sections))
    columns = dict.fromkeys(column for record in records for column in record)
    # What every run has comes first, then topics and settings by name.
    first = [column for column in columns if not column.startswith(("pass@1 ", "setting "))]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, [*first, *sorted(columns.keys() - first)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(records)


def table(sections: Iterable[Section]) -> Iterator[dict[str, Value | None]]:
    """The records of all runs that the report counts."""
    for section in sections:
        for row, result in section.runs:
            for summary in result.run.rounds:
                if summary.evaluation is not None:
                    record = _record(row, result, summary, summary.evaluation)
                    yield {"section": section.title, **record}


def _record(
    row: Row, result: Result, summary: RoundSummary, evaluation: Evaluation
) -> dict[str, Value | None]:
    """Bytes, of one client, and seconds are those until now: a part of the whole run's."""
    settings, number = result.run.settings, summary.round
    steps = slice((number - 1) * settings.local_steps, number * settings.local_steps)
    rewards = [reward for own in result.rewards.values() for reward in own[steps]] if number else []
    donated = next((one for one in result.donated if one.round == number), None)
    return {
        "row": row.label,
        "tau": settings.local_steps,
        "seed": result.seed,
        "client": result.client,
        "rounds": settings.rounds,
        "round": number,
        "step": number * settings.local_steps,
        "pass@1": evaluation.pass_at_1,
        "score": evaluation.score,  # of graded rewards
        "problems": evaluation.problems,
        "reward": fmean(rewards) if rewards else None,
        "drift_pairwise": drift_in(result, summary),
        "replaced_share": fmean(shares) if (shares := _replaced(summary)) else None,
        **{f"donated_{figure}": getattr(donated, figure, None) for figure in DONATED},
        **{kind: round(number * sent) for kind, sent in traffic(result.run).items()},
        "seconds": round(number / settings.rounds * result.seconds, 1),
        "verifier": result.run.verifier_version,
        "code": result.code,
        **{f"pass@1 {topic}": score for topic, score in evaluation.by_topic.items()},
        **{f"setting {axis}": value for axis, value in result.setting.items()},
    }


def drift_in(result: Result, summary: RoundSummary) -> float | None:
    """The drift between pairs of clients in a round; None for a single client."""
    several = result.run.settings.clients > 1
    return summary.drift.pairwise if summary.drift and several else None


def drift(result: Result) -> float | None:
    """The drift between pairs of clients, mean of the rounds."""
    found = [drift_in(result, summary) for summary in result.run.rounds]
    values = [value for value in found if value is not None]
    return fmean(values) if values else None


def _replaced(summary: RoundSummary) -> list[float]:
    return [share for step in summary.public_steps for share in step.replaced_share.values()]


def replaced(result: Result) -> float | None:
    """alpha, mean of public steps and clients; None without public steps."""
    shares = [share for summary in result.run.rounds for share in _replaced(summary)]
    return fmean(shares) if shares else None


def traffic(run: WholeRun) -> dict[str, float]:
    """Bytes of one client in one round by kind, mean over clients and rounds."""
    counted = [member.traffic for member in run.members if member.role is Role.CLIENT]
    turns = run.settings.clients * run.settings.rounds
    return {kind: sum(getattr(one, kind) for one in counted) / turns for kind in KINDS}
