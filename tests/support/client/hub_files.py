"""Small data sets with the files, columns and types they have on the hub."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Value

Row = Mapping[str, Any]
STRING = Value("string")
MATH_FEATURES = Features(dict.fromkeys(("problem", "level", "type", "solution"), STRING))
DEEPMATH_FEATURES = Features(
    {
        "question": STRING,
        "final_answer": STRING,
        "difficulty": Value("float64"),
        "topic": STRING,
        **{f"r1_solution_{number}": STRING for number in (1, 2, 3)},
    }
)
MEDMCQA_FEATURES = Features(
    {
        **dict.fromkeys(("id", "question", "opa", "opb", "opc", "opd"), STRING),
        "cop": ClassLabel(names=["a", "b", "c", "d"]),
        **dict.fromkeys(("choice_type", "exp", "subject_name", "topic_name"), STRING),
    }
)
MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
TOPICS = (
    "Mathematics -> Algebra -> Linear Algebra -> Determinants",
    "Mathematics -> Algebra -> Abstract Algebra -> Group Theory",
    "Mathematics -> Calculus -> Integral Calculus",
    "Mathematics -> Number Theory -> Congruences",
)
SUBJECTS = ("Anatomy", "Biochemistry", "Medicine", "Surgery")


def math_rows(subject: str, split: str, count: int) -> list[dict[str, Any]]:
    """Problems with boxed answers, some with braces inside."""
    offset = 1000 * MATH_SUBJECTS.index(subject) + 500 * (split == "test")
    return [
        {
            "problem": f"What is $\\frac{{{offset + n}}}{{7}}$ in the {subject} of {n}?",
            "level": f"Level {n % 5 + 1}",
            "type": subject.replace("_", " ").title().replace(" And ", " & "),
            "solution": f"First $x$. So it is $\\boxed{{\\frac{{{offset + n}}}{{7}}}}$.",
        }
        for n in range(count)
    ]


def write_math(folder: Path, train: int = 10, test: int = 6) -> Path:
    """EleutherAI/hendrycks_math: a folder for each subject, with two parquet files."""
    for subject in MATH_SUBJECTS:
        for split, count in (("train", train), ("test", test)):
            rows = math_rows(subject, split, count)
            path = folder / subject / f"{split}-00000-of-00001.parquet"
            write_parquet(path, rows, MATH_FEATURES)
    return folder


def deepmath_rows(count: int) -> list[dict[str, Any]]:
    """Problems with a topic below another."""
    return [
        {
            "question": f"Find the value of $x$ if $x = {n} + 1$.",
            "final_answer": f"{n + 1}",
            "difficulty": 5.0 + n % 4,
            "topic": TOPICS[n % len(TOPICS)],
            **{f"r1_solution_{number}": "Okay, so ... " * 20 for number in (1, 2, 3)},
        }
        for n in range(count)
    ]


def write_deepmath(folder: Path, count: int = 120, shards: int = 2) -> Path:
    """zwhe99/DeepMath-103K: one split in parquet shards below `data`."""
    rows = deepmath_rows(count)
    for shard in range(shards):
        path = folder / "data" / f"train-{shard:05}-of-{shards:05}.parquet"
        write_parquet(path, rows[shard::shards], DEEPMATH_FEATURES)
    return folder


def medqa_rows(count: int, split: str = "train") -> list[dict[str, Any]]:
    """Questions with a table of options, and no subject."""
    return [
        {
            "question": f"A {n}-year-old man of the {split} set has a cough. What is next?",
            "answer": f"Plan {n % 4}",
            "options": {letter: f"Plan {index}" for index, letter in enumerate("ABCD")},
            "meta_info": "step1" if n % 3 else "step2&3",
            "answer_idx": "ABCD"[n % 4],
            "metamap_phrases": ["man", "cough"],
        }
        for n in range(count)
    ]


def write_medqa(folder: Path, train: int = 40, test: int = 20) -> Path:
    """GBaker/MedQA-USMLE-4-options: two JSONL files."""
    for split, count in (("train", train), ("test", test)):
        write_jsonl(folder / f"phrases_no_exclude_{split}.jsonl", medqa_rows(count, split))
    return folder


def medmcqa_rows(count: int, split: str = "train") -> list[dict[str, Any]]:
    """Questions with four columns of options; every fifth is of the kind "multi"."""
    return [
        {
            "id": f"{split}-{n}",
            "question": f"Which nerve is number {n} of the {split} set?",
            **{f"op{letter}": f"Nerve {letter} {n}" for letter in "abcd"},
            "cop": -1 if split == "test" else n % 4,
            "choice_type": "multi" if n % 5 == 4 else "single",
            "exp": None if n % 3 else "Because.",
            "subject_name": SUBJECTS[n % len(SUBJECTS)],
            "topic_name": None,
        }
        for n in range(count)
    ]


def write_medmcqa(folder: Path, train: int = 80, validation: int = 20, test: int = 10) -> Path:
    """openlifescienceai/medmcqa: three parquet files; the test set has no answers."""
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        if count:
            path = folder / "data" / f"{split}-00000-of-00001.parquet"
            write_parquet(path, medmcqa_rows(count, split), MEDMCQA_FEATURES)
    return folder


def write_parquet(path: Path, rows: Sequence[Row], features: Features) -> Path:
    """Rows as a parquet file whose schema carries the hub's types."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list([dict(row) for row in rows], features=features).to_parquet(str(path))
    return path


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    """Rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
