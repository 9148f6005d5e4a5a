"""The tokenizer and its chat template: what the model is shown, and how its replies end.

The example is a fixed text: the report may be passed on, and must hold nothing private.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from pubswap_client.doctor.finding import Finding, failure, named, ok, warning
from pubswap_client.training.tokenizer import PromptTokenizer
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.texts import decode

TEMPLATE, END, ROUND_TRIP = "chat template", "end of sequence", "round trip"
EXAMPLE = "What is 12 + 30?"
_SHOWN = 6


def check_template(tokenizer: PromptTokenizer, run: RunSettings) -> Finding:
    """Whether prompts go through a template, with an example."""
    chat = run.chat_template == "auto"
    tokens = tokenizer.encode_for(run, EXAMPLE)
    shown = f"{EXAMPLE!r} is {len(tokens)} tokens: {_ends(tokenizer, tokens)}"
    if not chat:
        return ok(TEMPLATE, f"the run uses none; {shown}")
    if not tokenizer.has_template:
        return warning(
            TEMPLATE,
            f"the run uses the model's, which has none; {shown}",
            "For a base model that is right. If yours should be an instruct model, look for its "
            "chat_template.jinja beside tokenizer_config.json.",
        )
    return ok(TEMPLATE, f"the model's own is used; {shown}")


def check_end(tokenizer: PromptTokenizer, card: ModelCard, run: RunSettings) -> Finding:
    """The end-of-sequence tokens exist, and one of them ends a reply in the template."""
    ids = card.eos_token_ids
    outside = [token for token in ids if not 0 <= token < card.vocabulary]
    if outside:
        return failure(
            END,
            f"ids {named(outside)} are not in the vocabulary of {card.vocabulary}",
            "Get the model's generation_config.json again: these files do not belong together.",
        )
    found = f"{named(f'{token} {_text(tokenizer, token)!r}' for token in ids)}"
    if run.chat_template == "auto" and tokenizer.has_template:
        end = tokenizer.turn_end()
        if end and not set(end) & set(ids):
            return warning(
                END,
                f"{found}; but a reply in the template ends with {_text(tokenizer, end[0])!r}",
                "Responses may go on to max_response_tokens. Ask the operator for a run with "
                f"model.stop_token_ids = [{end[0]}].",
            )
    return ok(END, found)


def check_round_trip(tokenizer: PromptTokenizer, problems: Iterable[Problem]) -> Finding:
    """Prompts that are encoded and decoded again are what they were, up to white space."""
    changed, count = [], 0
    for problem in problems:
        count += 1
        tokens = np.array(tokenizer.encode(problem.prompt, chat=False), dtype=np.int32)
        if decode(tokenizer.plain, tokens).split() != problem.prompt.split():
            changed.append(problem.id)
    if changed:
        return warning(
            ROUND_TRIP,
            f"{len(changed)} of {count} prompts come back changed: {named(changed)}",
            "The model cannot read all of their characters: look for symbols its tokenizer lacks, "
            "and for the text of special tokens such as <|im_end|>.",
        )
    return ok(ROUND_TRIP, f"{count} prompts come back as they were")


def _ends(tokenizer: PromptTokenizer, tokens: Sequence[int]) -> str:
    """The first and the last tokens, as text."""
    texts = [repr(_text(tokenizer, token)) for token in tokens]
    if len(texts) <= 2 * _SHOWN:
        return " ".join(texts)
    return f"{' '.join(texts[:_SHOWN])} ... {' '.join(texts[-_SHOWN:])}"


def _text(tokenizer: PromptTokenizer, token: int) -> str:
    """One token as text, special ones too."""
    return str(tokenizer.plain.decode([token], skip_special_tokens=False))
