"""An audit's results, as JSON and in plain words. They contain no prompt, answer or id."""

import json
from collections.abc import Iterator, Sequence
from typing import Literal, Self

from pydantic import BaseModel, Field
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pubswap_client.privacy.attacks import ATTACKS, CONTROL, Attack, Likelihoods
from pubswap_client.privacy.separation import auc, auc_interval, chance_of, true_positives
from pubswap_protocol.messages import Digest

CONFIDENCE = 0.95  # that all intervals and counts hold at once
FALSE_ALARMS = 0.01
# Bonferroni correction, for an interval and a count of every attack and of the control.
LEVEL = (1 - CONFIDENCE) / (2 * (len(ATTACKS) + 1))

Verdict = Literal["told apart", "not told apart", "not comparable"]
Looks = Sequence[Likelihoods]


class AttackResult(BaseModel, frozen=True):
    attack: str
    words: str
    auc: float = Field(description="The share of (member, other) pairs that it gets right.")
    lower: float
    upper: float
    found: float = Field(description="The share of members that it finds at 1 % false alarms.")
    chance: float = Field(description="The probability that a random score finds as many.")

    @classmethod
    def of(cls, attack: Attack, members: Looks, others: Looks) -> Self:
        """An attack's result on the likelihoods of members (m,) and others (n,)."""
        inside, outside = attack.scores(members), attack.scores(others)
        area = auc(inside, outside)
        lower, upper = auc_interval(area, len(inside), len(outside), 1 - LEVEL)
        hits = true_positives(inside, outside, FALSE_ALARMS)
        return cls(
            attack=attack.name,
            words=attack.words,
            auc=area,
            lower=lower,
            upper=upper,
            found=hits / len(inside),
            chance=chance_of(hits, len(inside), len(outside), FALSE_ALARMS),
        )

    @property
    def tells(self) -> bool:
        """Whether it beats a coin toss, over all pairs or by finding a few members for sure."""
        return not self.lower <= 0.5 <= self.upper or self.chance < LEVEL

    @property
    def pairs(self) -> str:
        """The pairs of 100 that it gets right; an attack that is mostly wrong is inverted."""
        low, middle, high, how = self.lower, self.auc, self.upper, ""
        if middle < 0.5:
            low, middle, high, how = 1 - high, 1 - middle, 1 - low, ", inverted"
        return f"{100 * middle:.0f} of 100 pairs ({100 * low:.0f} to {100 * high:.0f}{how})"


class AuditReport(BaseModel, frozen=True):
    run: str
    round: int
    adapter: Digest
    members: int = Field(description="How many problems that the adapter was trained on.")
    others: int = Field(description="How many problems that it was not trained on.")
    outcomes: list[AttackResult]
    control: AttackResult = Field(description="The base model's, which was trained on neither.")

    @property
    def verdict(self) -> Verdict:
        if self.control.tells:
            return "not comparable"
        distinguishable = any(outcome.tells for outcome in self.outcomes)
        return "told apart" if distinguishable else "not told apart"

    @property
    def text(self) -> str:
        return " ".join(_sentences(self))

    @property
    def json_text(self) -> str:
        """The whole report, with the verdict as a word and as text."""
        verdict = {"verdict": self.verdict, "text": self.text}
        return json.dumps(self.model_dump(mode="json") | verdict, indent=2, ensure_ascii=False)

    def rendered(self) -> RenderableType:
        table = Table("attack on", "AUC", "interval", "found at 1 % false alarms")
        for result in (*self.outcomes, self.control):
            interval = f"{result.lower:.3f} to {result.upper:.3f}"
            table.add_row(
                result.attack, f"{result.auc:.3f}", interval, f"{100 * result.found:.1f} %"
            )
        head = (
            f"{self.run}, round {self.round}, {self.adapter}\n"
            f"{self.members} problems that it was trained on, {self.others} that it was not"
        )
        return Group(Text(head), table, Text(self.text))


def audited(run: str, round_: int, adapter: Digest, members: Looks, others: Looks) -> AuditReport:
    return AuditReport(
        run=run,
        round=round_,
        adapter=adapter,
        members=len(members),
        others=len(others),
        outcomes=[AttackResult.of(attack, members, others) for attack in ATTACKS],
        control=AttackResult.of(CONTROL, members, others),
    )


def _sentences(report: AuditReport) -> Iterator[str]:
    strongest = max(report.outcomes, key=lambda each: (each.tells, abs(each.auc - 0.5)))
    attacker = (
        f"an attacker who has adapter, base model and a problem with its answer, and "
        f"{strongest.words}, is right in {strongest.pairs}; 50 is a coin toss"
    )
    if report.verdict == "not comparable":
        yield "The two sets cannot be compared: the base model, which was trained on neither, is"
        yield f"right in {report.control.pairs} by how likely it makes the answer. They are of"
        yield "different kinds, or it knew some of them. Give others of the same kind as those that"
        yield "were trained on."
    elif report.verdict == "told apart":
        yield f"It shows which problems were trained on: {attacker}. With one false alarm in 100 it"
        yield f"finds {100 * strongest.found:.0f} of 100 that were trained on; a coin toss finds 1."
        yield "These attacks tell which problems were trained on, and extract no text."
    else:
        yield "On these problems no attack did better than chance."
        yield f"The strongest: {attacker}."
        yield "That is no proof. More problems, or a better attack, may find what these did not;"
        yield "only differential privacy bounds them all."
