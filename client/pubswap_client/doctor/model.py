"""Checks of the base model: files, tokenizer, chat template, and the end of its replies."""

from pubswap_client.base_model import own_model
from pubswap_client.data.drawing import sample
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, failure, ok, skipped, warning
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_protocol.base.files import weight_files
from pubswap_protocol.command_line.amounts import first_few, size_text
from pubswap_protocol.settings import RunSettings

SAMPLE = 1000  # problems, enough to show a fault that all have


def check_template(facts: Facts) -> Finding:
    """Check whether prompts go through a chat template, and show an example."""
    if facts.model is None or facts.run is None:
        return skipped("the run's own model")
    folder, card, run = facts.model[0], facts.run.model, facts.run.settings
    tokenizer = PromptTokenizer(folder, card.prompt_date, card.vocabulary)
    tokenizer.check_prompts(card, run)
    facts.tokenizer = tokenizer
    return shown_example(tokenizer, run)


def shown_example(tokenizer: PromptTokenizer, run: RunSettings) -> Finding:
    chat = run.chat_template == "auto"
    shown = tokenizer.example(run)
    if not chat:
        return ok(f"the run uses none; {shown}")
    if not tokenizer.has_template:
        return warning(
            f"the run uses the model's, but the model has none; {shown}",
            "For a base model that is right. If yours should be an instruct model, look for its "
            "chat_template.jinja beside tokenizer_config.json.",
        )
    return ok(f"the model's own is used; {shown}")


def check_end(facts: Facts) -> Finding:
    """Check that the end-of-sequence tokens exist, and that one ends a reply in the template."""
    if facts.tokenizer is None or facts.run is None:
        return skipped("a tokenizer")
    tokenizer, card, run = facts.tokenizer, facts.run.model, facts.run.settings
    ids = card.eos_token_ids
    outside = [token for token in ids if not 0 <= token < card.vocabulary]
    if outside:
        return failure(
            f"ids {first_few(outside)} are not in the vocabulary of {card.vocabulary}",
            "Download the model's generation_config.json again: these files do not match.",
        )
    text = first_few(f"{token} {tokenizer.token_text(token)!r}" for token in ids)
    if run.chat_template == "auto" and tokenizer.has_template:
        end = tokenizer.unknown_end(ids)
        if end is not None:
            return warning(
                f"{text}; but a reply in the template ends with {tokenizer.token_text(end)!r}",
                "Responses may go on to max_response_tokens. Ask the operator for a run with "
                f"model.stop_token_ids = [{end}].",
            )
    return ok(text)


def check_round_trip(facts: Facts) -> Finding:
    """Check that encoding and decoding leaves prompts unchanged, up to white space."""
    tokenizer = facts.tokenizer
    if facts.file is None or tokenizer is None:
        return skipped("private data and a tokenizer")
    problems = sample(facts.file.problems, SAMPLE, "doctor")

    def again(prompt: str) -> str:
        tokens = tokenizer.encode(prompt, chat=False)
        return str(tokenizer.plain.decode(tokens))  # without what the tokenizer adds by itself

    changed = [p.id for p in problems if again(p.text).split() != p.text.split()]
    if changed:
        return warning(
            f"{len(changed)} of {len(problems)} prompts come back changed: {first_few(changed)}",
            "The model cannot read all of their characters: look for symbols its tokenizer lacks.",
        )
    return ok(f"{len(problems)} prompts come back unchanged")


def check_model(facts: Facts) -> Finding:
    """Check that the files that training would use are here, and are the run's.

    Compares their digests, as the coordinator does when a member joins, but does not ask it. Raises
    what `own_model` does.
    """
    facts.stage("reading the model's files")
    if facts.run is None:
        return skipped("the run")
    folder, card = facts.model = own_model(facts.settings, facts.run)
    size = size_text(sum(file.stat().st_size for file in weight_files(folder)))
    text = f"{folder}: {card.architecture}, {card.parameters:,} parameters, {size}"
    return ok(f"{text}; config, tokenizer and weights are the run's")
