"""Make the base model and the problems of the small study, `deploy/recipes/small`.

A comparison of federated methods is informative only if topics conflict: what a client learns on
its own topics must hurt the others. Real data sets conflict in the form of response they require (a
letter for medicine, a boxed expression for mathematics). The study's problems are the demo's eight
topics (`pubswap_client.demo.tasks`), and each topic requires answers in one of three forms
(`FORMS`): "=12", "#12" or "~12". The prompt does not say which.

The base model is the demo's (see make_demo_model.py), trained a little further on the "pretraining"
half of the prompts. It works its steps, with some guesses and slips as there, and writes the answer
in a form drawn anew each time, the topic's own with probability RIGHT_FORM: a third, so that it
knows nothing about forms. pass@1 is a third of its skill, about 0.26, and pass@8 is 0.83. A client
with few topics soon learns their forms, and uses them for other topics too. Averaging clients that
have diverged undoes some of what each has learnt.

The problems are from the "demo" half, whose prompts the base model has never seen. Their verifier
is `exact`, because the form counts.
"""

import argparse
import json
import random
import time
from itertools import islice
from pathlib import Path

import make_demo_model as demo
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pubswap_client.demo.tasks import TOPICS, Record, unique_problems

FORMS = {
    "chain_sum": "={}",
    "decimal_chain_sum": "#{}",
    "gcd": "~{}",
    "leg_counting": "={}",
    "letter_counting": "#{}",
    "products": "~{}",
    "simple_equations": "={}",
    "spell_backward": "#{}",
}
"""The form that each topic requires of its answers."""

RIGHT_FORM = 1 / 3
MIX = demo.Mix(direct=0.1, wrong=0.6, sloppy=0.1)
PHRASE = "Answer: "


def formed(record: Record) -> Record:
    """The same problem, with its answer in its topic's form."""
    return {**record, "answer": FORMS[record["topic"]].format(record["answer"])}


def respond(record: Record, mix: demo.Mix, rng: random.Random) -> str:
    """Draw a response like the demo's base model, with its answer in the form of a random topic."""
    steps, phrase, answer = demo.respond(record, mix, rng).rpartition(PHRASE)
    required = FORMS[record["topic"]]
    others = sorted(set(FORMS.values()) - {required})
    form = required if rng.random() < RIGHT_FORM else rng.choice(others)
    return steps + phrase + form.format(answer)


def is_right(record: Record, response: str) -> bool:
    """Tell whether what follows the last "Answer: " is the answer in its topic's form."""
    answer: str = formed(record)["answer"]
    return response.rpartition(PHRASE)[2].strip() == answer


def write_problems(path: Path, size: int, seed: int) -> None:
    """Write `size` problems of each topic, taking topics in turn."""
    streams = [islice(unique_problems(topic, seed, "demo"), size) for topic in TOPICS]
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*streams, strict=True):
            for record in map(formed, row):
                fields = {key: record[key] for key in ("id", "prompt", "answer", "topic")}
                file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train the study's base model, starting from the demo's.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    root = Path(__file__).parents[1]
    start = root / "client" / "pubswap_client" / "demo" / "model"
    parser.add_argument("--start", type=Path, default=start, help="the demo's base model")
    default = root / "deploy" / "recipes" / "small"
    parser.add_argument("--output", type=Path, default=default, help="folder to write")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=64, help="examples in a batch")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--pool", type=int, default=3000, help="most problems of a topic")
    parser.add_argument("--problems", type=int, default=400, help="problems of each topic")
    parser.add_argument("--seed", type=int, default=30_000, help="for problems and draws")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a larger model")
    parser.add_argument("--test-size", type=int, default=64, help="problems of a topic to test on")
    return parser.parse_args()


def main() -> None:
    """Write the problems; train, save and measure the model."""
    args = arguments()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    write_problems(args.output / "problems.jsonl", args.problems, args.seed + 1)
    tokenizer = AutoTokenizer.from_pretrained(args.start)
    model = AutoModelForCausalLM.from_pretrained(args.start, dtype=torch.float32).to(args.device)
    rng = random.Random(args.seed)  # noqa: S311 - reproducible draws, not secrets
    records = [
        list(islice(unique_problems(topic, args.seed, "pretraining"), args.pool))
        for topic in TOPICS
    ]
    began = time.process_time()
    mixes = dict.fromkeys(TOPICS, MIX)
    data = demo.batches(records, mixes, tokenizer, args.batch, rng, respond)
    demo.train(model, data, args.steps, args.lr)
    print(f"trained in {time.process_time() - began:.0f} s of CPU")
    model.save_pretrained(args.output / "model")
    tokenizer.save_pretrained(args.output / "model")
    demo.report(model, tokenizer, args.test_size, args.seed + 1, is_right)


if __name__ == "__main__":
    main()
