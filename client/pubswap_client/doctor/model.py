"""Checks of the base model: its files, and prompts as it gets them."""

from pubswap_client.base_model import own_model
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, ok, skipped, warning
from pubswap_client.policy.tokenizer import PromptTokenizer
from pubswap_protocol.base.files import weight_files
from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.settings import RunSettings


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
    shown = tokenizer.example(run)
    if run.chat_template != "auto":
        return ok(f"the run uses none; {shown}")
    if not tokenizer.has_template:
        return warning(
            f"the run uses the model's, but the model has none; {shown}",
            "For a base model that is right. If yours should be an instruct model, look for its "
            "chat_template.jinja beside tokenizer_config.json.",
        )
    return ok(f"the model's own is used; {shown}")
