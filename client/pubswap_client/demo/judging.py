"""A second reading of a demo's answers, by transformers, PEFT and a rule of three lines.

It shares no code with the sampling and the verifier of the run. A model that learnt to deceive the
verifier would show.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import score

SHOWN = 10  # responses of each topic
_BATCH = 32


@dataclass(frozen=True)
class JudgedAnswer:
    """One response of a model to a test problem."""

    model: str
    problem: Problem
    response: str
    verified: bool
    right: bool  # the second judge's word


def is_right(response: str, answer: str) -> bool:
    """The second judge: whether the response ends in this whole number, up to a full stop."""
    end = re.search(r"(?<![\d.,])-?\d+$", response.rstrip(" .*\n"))
    return end is not None and end[0] == answer


def judge_models(base: Path, out: Path, settings: RunSettings) -> list[JudgedAnswer]:
    """Judge a response of the base and one of the trained model to each test problem."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    torch.manual_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    problems = read_problems(out / "data" / "test.jsonl")
    prompts = [problem.question for problem in problems]

    def judged(name: str, model: Any) -> Iterator[JudgedAnswer]:
        for problem, text in zip(
            problems, _answers(model, tokenizer, prompts, settings), strict=True
        ):
            verified = settings.is_correct(score(settings.verifier, text, problem))
            yield JudgedAnswer(name, problem, text, verified, is_right(text, problem.answer))

    before = [*judged("base", model)]
    with warnings.catch_warnings():
        # PEFT asks transformers for an attribute by its older name.
        warnings.simplefilter("ignore", FutureWarning)
        trained = PeftModel.from_pretrained(model, str(out / "adapter"))
    return [*before, *judged("trained", trained)]


def _answers(
    model: Any, tokenizer: Any, prompts: Sequence[str], settings: RunSettings
) -> Iterator[str]:
    for first in range(0, len(prompts), _BATCH):
        chats = [[{"role": "user", "content": each}] for each in prompts[first : first + _BATCH]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        rows = model.generate(
            **inputs,
            do_sample=True,
            temperature=settings.grpo.temperature,
            top_k=0,
            max_new_tokens=settings.grpo.max_response_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        length = inputs["input_ids"].shape[1]
        yield from tokenizer.batch_decode(rows[:, length:], skip_special_tokens=True)


def print_judged(answers: Sequence[JudgedAnswer], console: Console) -> None:
    """Print the share that each judge finds right by topic, and some of the trained responses."""
    table = Table("topic", title="right answers by the verifier and by a second judge")
    for model in ("base", "trained"):
        table.add_column(f"{model}, verifier", justify="right")
        table.add_column(f"{model}, second", justify="right")
    topics = sorted({each.problem.topic for each in answers})
    for topic in topics:
        table.add_row(topic, *_shares([each for each in answers if each.problem.topic == topic]))
    table.add_section()
    table.add_row("all", *_shares(answers), style="bold")
    console.print(table)
    for topic in topics:
        console.print(f"{topic}: the answer, both judges, and the trained model's response")
        of = [each for each in answers if (each.model, each.problem.topic) == ("trained", topic)]
        for each in of[:SHOWN]:
            marks = "".join("✓" if found else "✗" for found in (each.verified, each.right))
            console.print(f"{each.problem.answer:>5} {marks} {each.response!r}", highlight=False)


def _shares(answers: Sequence[JudgedAnswer]) -> Iterator[str]:
    for model in ("base", "trained"):
        of = [each for each in answers if each.model == model]
        yield f"{sum(each.verified for each in of) / len(of):.2f}"
        yield f"{sum(each.right for each in of) / len(of):.2f}"
