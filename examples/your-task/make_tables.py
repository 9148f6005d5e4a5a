"""Write the two tables of docs/your-task.md: invented complaints, and questions with queries."""

import csv
import random
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
COMPLAINTS = {
    "card": ("My card was charged {} twice.", "{} was paid with my card; it was not me."),
    "transfer": ("My transfer of {} to Zürich never arrived.", "{} went to the wrong account."),
    "fee": ("You took {} as a fee. Nobody told me.", "A fee of {} for an app I do not use?"),
    "loan": (
        "You booked my loan payment of {} too late.",
        "I paid {} of my loan, it is not there.",
    ),
}
BRANCHES = ("Köln", "Linz", "Bern")
NAMES = ("Ann", "Bob", "Eve", "Max")
QUESTIONS = {
    "Who paid more than {n}?": "SELECT name FROM paid WHERE sum > {n}",
    "How many paid less than {n}?": "SELECT COUNT(*) FROM paid WHERE sum < {n}",
    "What did {name} pay?": "SELECT sum FROM paid WHERE name = '{name}'",
    "Who paid most?": "SELECT name FROM paid ORDER BY sum DESC LIMIT 1",
    "What did all pay together?": "SELECT SUM(sum) FROM paid",
}


def main() -> None:
    draw = random.Random(0)  # noqa: S311  invented tables
    complaints(draw)
    queries(draw)


def complaints(draw: random.Random) -> None:
    """As a spreadsheet in Central Europe saves it: semicolons, decimal commas, cp1252."""
    kinds = [(kind, text) for kind, texts in COMPLAINTS.items() for text in texts]
    rows = [(kind, text, branch) for (kind, text), branch in product(kinds, BRANCHES)] * 8
    draw.shuffle(rows)
    path = HERE / "complaints.csv"
    with path.open("w", encoding="cp1252", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["Complaint no", "Branch", "Text", "Category", "Amount"])
        for number, (kind, text, branch) in enumerate(rows, 1):
            amount = f"{draw.randint(100, 99_999) / 100:.2f}".replace(".", ",")
            table.writerow([f"C-{number:04}", branch, text.format(f"{amount} €"), kind, amount])


def queries(draw: random.Random) -> None:
    """Each row has a small database as the statements that make it."""
    with (HERE / "queries.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["question", "query", "database"])
        for question, query in [*QUESTIONS.items()] * 24:
            sums = draw.sample(range(10, 100), len(NAMES))
            asked = {"n": draw.choice(sorted(sums)[1:-1]), "name": draw.choice(NAMES)}
            values = ", ".join(
                f"('{name}', {paid})" for name, paid in zip(NAMES, sums, strict=True)
            )
            database = f"CREATE TABLE paid (name TEXT, sum INT); INSERT INTO paid VALUES {values};"  # noqa: S608
            table.writerow([question.format(**asked), query.format(**asked), database])


if __name__ == "__main__":
    main()
