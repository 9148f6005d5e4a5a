"""Make the demo's base model: a tokenizer and a small Qwen3, trained from scratch on a CPU.

RLVR raises pass@1 towards pass@k, so it needs a base model that often fails, but seldom eight times
in a row. This script makes such a model on purpose. It minimises the mean negative log-likelihood
-log p(response | prompt) over the "pretraining" half of the demo's prompts
(`pubswap_client.demo.tasks`), where each response is drawn anew from a mixture of three styles:

* direct (share d of the topic): the answer at once. With probability w it is a typical mistake
  (off by one, a changed sign, swapped letters), otherwise right.
* worked (1 - d)(1 - s): short steps, then the right answer.
* sloppy (1 - d) s: the same steps with a mistake in the last one, and its wrong answer.

So the expected pass@1 of a perfect student is about d(1 - w) + (1 - d)(1 - s), near 0.5. This small
model makes mistakes of its own and reaches about 0.3, while eight samples mostly contain a right
one. This leaves reinforcement learning something to find: work the steps rather than guess, and do
so carefully. Every response ends with "Answer: " and the answer, then the end-of-sequence token.

The first part of the training (`LESSON`) shows right answers only, nearly all of them worked. The
skill is learnt several times faster without the noise, and learning the mixture of styles after it
takes few steps.

The tokenizer has one token for each byte (so each digit and letter is a token, and any text can
be encoded) and one for each fixed phrase of the prompts and answers, which keeps them short.
"""

import argparse
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from pubswap_client.demo.tasks import TOPICS, Record, unique_problems
from pubswap_protocol.verifiers.reasoning import library

PAD, EOS = "<pad>", "<eos>"
MAX_LENGTH = 256
# Every response begins with one of two tokens. If steps began with their first digit instead, their
# share would be spread over many tokens, and sampling below temperature 1 would rarely choose them.
STEPS_MARK = "Steps: "
PHRASES = (
    STEPS_MARK,
    "\nAnswer: ",
    "Answer: ",
    "State the final answer to the following arithmetic problem: ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
    "Your task is to count how many legs there are in total when given a list of animals.\n\n"
    "Now, how many legs are there in total if you have ",
    'How many times does the letter "',
    '" appear in the text: "',
    "Solve the following multiplication: ",
    ". Give only the result as your final answer.",
    "Find the value of ",
    " in the equation: ",
    "Determine the value of ",
    " that satisfies: ",
    "Solve for ",
    "Spell this word backward (example: sun -> nus): ",
)


@dataclass(frozen=True)
class Mix:
    """The mixture of a topic's responses: the shares d, w and s of the module's docstring."""

    direct: float
    wrong: float
    sloppy: float


LESSON = Mix(0.1, 0.0, 0.0)
"""The mixture of the first part of the training: right answers only, nearly always worked."""

MIXES = {
    "chain_sum": Mix(0.40, 0.65, 0.25),
    "decimal_chain_sum": Mix(0.40, 0.60, 0.25),
    "gcd": Mix(0.40, 0.60, 0.20),
    "leg_counting": Mix(0.35, 0.65, 0.20),
    "letter_counting": Mix(0.50, 0.65, 0.30),
    "products": Mix(0.40, 0.65, 0.20),
    "simple_equations": Mix(0.35, 0.65, 0.20),
    "spell_backward": Mix(0.50, 0.75, 0.30),
}


def chain_sum_steps(record: Record) -> str:
    """Add from left to right: "4-1=3, 3-7=-4"."""
    first, *rest = record["metadata"]["expression"].split(" ")
    total, steps = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(sign + term)
        steps.append(f"{total}{sign}{term}={result}")
        total = result
    return ", ".join(steps)


def decimal_chain_sum_steps(record: Record) -> str:
    """Add the units, then the tenths, then both: "4+1=5, 8+7=15, 50+15=65"."""
    left, sign, right = record["metadata"]["expression"].split(" ")
    (a, b), (c, d) = left.split("."), right.split(".")
    units, tenths = int(a) + int(sign + c), int(b) + int(sign + d)
    whole = f"{units * 10}{tenths:+d}={units * 10 + tenths}"
    return f"{a}{sign}{c}={units}, {b}{sign}{d}={tenths}, {whole}"


def gcd_steps(record: Record) -> str:
    """Take remainders until none is left, as Euclid does: "56%38=18, 38%18=2, 18%2=0"."""
    small, large = sorted(record["metadata"]["numbers"])
    steps = []
    while small:
        steps.append(f"{large}%{small}={large % small}")
        large, small = small, large % small
    return ", ".join(steps)


def leg_counting_steps(record: Record) -> str:
    """Multiply for each animal, then add: "5*14=70, 2*0=0, 70+0=70"."""
    legs_of = import_module("reasoning_gym.arithmetic.leg_counting").ANIMALS
    legs = [(count, legs_of[name]) for name, count in record["metadata"]["animals"].items()]
    parts = [f"{count}*{each}={count * each}" for count, each in legs]
    total = "+".join(str(count * each) for count, each in legs)
    return ", ".join([*parts, f"{total}={record['answer']}"])


def letter_counting_steps(record: Record) -> str:
    """Count in each word, then add: "free 1, the 0, 1+0=1"."""
    letter = record["metadata"]["target_letter"]
    counts = [(word, word.lower().count(letter)) for word in record["metadata"]["span"]]
    total = "+".join(str(count) for _, count in counts)
    return ", ".join([*(f"{w} {c}" for w, c in counts), f"{total}={record['answer']}"])


def products_steps(record: Record) -> str:
    """Multiply from left to right: "4*3=12, 12*7=84"."""
    first, *rest = record["metadata"]["expression"].split(" * ")
    product, steps = int(first), []
    for factor in rest:
        steps.append(f"{product}*{factor}={product * int(factor)}")
        product *= int(factor)
    return ", ".join(steps)


def simple_equations_steps(record: Record) -> str:
    """Move the constant, then divide: "-8e=-51-5=-56, e=-56/-8=7"."""
    name = record["metadata"]["variable"]
    left, right = record["metadata"]["equation"].split(" = ")
    slope = constant = 0
    for sign, number, times in re.findall(rf"([-+]?)(\d*)\*?({name}?)", left.replace(" ", "")):
        if times:
            slope += int(f"{sign}{number or 1}")
        elif number:
            constant += int(f"{sign}{number}")
    moved = int(right) - constant
    return f"{slope}{name}={right}{-constant:+d}={moved}, {moved}/{slope}={record['answer']}"


def spell_backward_steps(record: Record) -> str:
    """Number the letters: "g1 l2 i3 n4 k5"."""
    return " ".join(f"{letter}{i}" for i, letter in enumerate(record["metadata"]["word"], 1))


STEPS: dict[str, Callable[[Record], str]] = {
    "chain_sum": chain_sum_steps,
    "decimal_chain_sum": decimal_chain_sum_steps,
    "gcd": gcd_steps,
    "leg_counting": leg_counting_steps,
    "letter_counting": letter_counting_steps,
    "products": products_steps,
    "simple_equations": simple_equations_steps,
    "spell_backward": spell_backward_steps,
}


def mistaken(answer: str, rng: random.Random) -> str:
    """Return a typical mistake for this answer: a near number, or letters in the wrong order."""
    if not re.fullmatch(r"-?[\d.]+", answer):
        i = rng.randrange(len(answer) - 1)
        swapped = answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]
        return swapped if swapped != answer else answer[1:]
    if "." in answer:
        return f"{float(answer) + rng.choice((-1, 1, -0.1, 0.1, -0.2, 0.2)):.1f}"
    number = int(answer)
    slips = [number - 1, number + 1, number - 2, number + 2]
    if abs(number) >= 10:
        slips += [number - 10, number + 10]
    return str(rng.choice([slip for slip in slips if number < 0 or slip >= 0]))


def respond(record: Record, mix: Mix, rng: random.Random) -> str:
    """Draw a response to this problem from a mixture of styles."""
    answer = record["answer"]
    if rng.random() < mix.direct:
        return f"Answer: {mistaken(answer, rng) if rng.random() < mix.wrong else answer}"
    steps = STEPS[record["topic"]](record)
    if rng.random() < mix.sloppy:
        wrong = mistaken(answer, rng)
        head, equals, tail = steps.rpartition("=")
        return f"{STEPS_MARK}{head}{equals}{wrong if tail == answer else tail}\nAnswer: {wrong}"
    return f"{STEPS_MARK}{steps}\nAnswer: {answer}"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make the tokenizer: two special tokens, every byte, and every phrase."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([PAD, EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int) -> Qwen3ForCausalLM:
    """Make an untrained Qwen3 of this width and depth with tied embeddings."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=hidden // 4,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def batches(
    records: list[list[Record]],
    mixes: dict[str, Mix],
    tokenizer: PreTrainedTokenizerFast,
    size: int,
    rng: random.Random,
    respond: Callable[[Record, Mix, random.Random], str] = respond,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (input ids, labels), both [size, length], without end; topics are equally likely."""
    eos = tokenizer.eos_token_id
    prompts: dict[str, list[int]] = {}
    while True:
        pairs = []
        for _ in range(16 * size):
            record = rng.choice(rng.choice(records))
            if record["prompt"] not in prompts:
                prompts[record["prompt"]] = tokenizer.encode(record["prompt"])
            response = tokenizer.encode(respond(record, mixes[record["topic"]], rng))
            pairs.append((prompts[record["prompt"]], [*response, eos]))
        # Responses of similar length share a batch, which avoids most of the padding.
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        groups = [pairs[i : i + size] for i in range(0, len(pairs), size)]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(p) + len(r) for p, r in group)
            rows = [p + r + [tokenizer.pad_token_id] * (length - len(p) - len(r)) for p, r in group]
            marks = [[-100] * len(p) + r + [-100] * (length - len(p) - len(r)) for p, r in group]
            yield torch.tensor(rows), torch.tensor(marks)


def train(
    model: Qwen3ForCausalLM,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    lr: float,
) -> None:
    """Train with AdamW, a short warm-up and a cosine decay to zero, in place."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    warm = max(1, steps // 30)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min((i + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * i / steps)),
    )
    model.train()
    on_device = ((ids.to(model.device), labels.to(model.device)) for ids, labels in data)
    for i, (ids, labels) in enumerate(
        track(islice(on_device, steps), total=steps, description="training")
    ):
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        in_response = targets != -100
        # Compute logits at response positions only, because prompts have no loss.
        loss = torch.nn.functional.cross_entropy(
            model.lm_head(hidden[in_response]), targets[in_response]
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if i % 250 == 0:
            print(f"step {i}: loss {loss.item():.3f}")


def is_right(record: Record, response: str) -> bool:
    """Tell whether reasoning-gym's verifier accepts what follows the last "Answer:"."""
    answer = response.rpartition("Answer:")[2].strip()
    entry = {"question": record["prompt"], **record}
    return bool(library().get_score_answer_fn(record["topic"])(answer, entry) == 1.0)


@torch.no_grad()
def measure(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    records: list[Record],
    samples: int,
    is_right: Callable[[Record, str], bool] = is_right,
) -> list[list[bool]]:
    """Sample every problem `samples` times at temperature 0.7: [problems][samples] verdicts."""
    model.eval()
    inputs: Any = tokenizer([r["prompt"] for r in records], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    inputs = inputs.to(model.device)
    output = model.generate(
        **inputs,
        do_sample=True,
        temperature=0.7,
        top_k=0,
        top_p=1.0,
        max_new_tokens=48,
        num_return_sequences=samples,
    )
    texts = tokenizer.batch_decode(
        output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return [
        [is_right(record, text) for text in texts[i * samples : (i + 1) * samples]]
        for i, record in enumerate(records)
    ]


def report(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    size: int,
    seed: int,
    is_right: Callable[[Record, str], bool] = is_right,
) -> None:
    """Print pass@1 and pass@8 of each topic on `size` problems of the demo's half."""
    ones, eights = [], []
    for topic in TOPICS:
        records = list(islice(unique_problems(topic, seed, "demo"), size))
        verdicts = measure(model, tokenizer, records, 8, is_right)
        ones.append(sum(sum(row) for row in verdicts) / (8 * len(records)))
        eights.append(sum(any(row) for row in verdicts) / len(records))
        print(f"{topic:20} pass@1 {ones[-1]:.3f}  pass@8 {eights[-1]:.3f}")
    print(f"{'mean':20} pass@1 {sum(ones) / len(ones):.3f}  pass@8 {sum(eights) / len(eights):.3f}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train the demo's tokenizer and base model from scratch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = Path(__file__).parents[1] / "client" / "pubswap_client" / "demo" / "model"
    parser.add_argument("--output", type=Path, default=default, help="folder to write")
    parser.add_argument("--steps", type=int, default=3600, help="optimizer steps")
    parser.add_argument("--lessons", type=float, default=0.8, help="share of steps before mixing")
    parser.add_argument("--batch", type=int, default=64, help="examples in a batch")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=3, help="depth of the model")
    parser.add_argument("--pool", type=int, default=8000, help="most problems of a topic")
    parser.add_argument("--seed", type=int, default=20_000, help="for problems, weights and draws")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a larger model")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--test-size", type=int, default=64, help="problems of a topic to test on")
    return parser.parse_args()


def main() -> None:
    """Train, save and measure."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)  # noqa: S311 - reproducible draws, not secrets
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.hidden, args.layers).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    records = [
        list(islice(unique_problems(topic, args.seed, "pretraining"), args.pool))
        for topic in TOPICS
    ]
    began = time.monotonic()
    lessons = round(args.lessons * args.steps)
    right = batches(records, dict.fromkeys(TOPICS, LESSON), tokenizer, args.batch, rng)
    mixed = batches(records, MIXES, tokenizer, args.batch, rng)
    train(model, chain(islice(right, lessons), mixed), args.steps, args.lr)
    print(f"trained in {time.monotonic() - began:.0f} s")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    report(model, tokenizer, args.test_size, args.seed + 1)


if __name__ == "__main__":
    main()
