"""The model card of an exported adapter: the README.md of its folder."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator

from pubswap_client.rollout.vllm_sampling import LORA_RANKS, lora_rank
from pubswap_protocol import __version__
from pubswap_protocol.command_line.keys import flat
from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import MemberView, RoundSummary, WholeRun
from pubswap_protocol.prompts import messages_of
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.peft_folder import ranks_of
from pubswap_protocol.terms import given


def adapter_text(run: WholeRun, number: int) -> str:
    """Describe the adapter of a round; round 0's is never called trained."""
    if number == 0 and run.settings.initial_adapter is not None:
        return "the initial adapter (the operator's)"
    if number == 0:
        return "the untrained initial adapter (the base model unchanged)"
    return f"the adapter after round {number} of {run.settings.rounds}"


def _on_hub(source: str) -> bool:
    """Whether a base model's source is a hub id, or else the name of the operator's folder."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source) is not None


def loading(run: WholeRun, adapter: bytes, folder: str, merged: bool) -> Iterator[str]:
    """How to load an exported folder: lines of Python to paste, and a vLLM command.

    The operator's folder of a base model has another name elsewhere, so it is called BASE.
    """
    model = run.model
    auto = f"transformers.AutoModelFor{'MultimodalLM' if model.text_model else 'CausalLM'}"
    if merged:
        yield "import transformers"
        yield f"model = {auto}.from_pretrained({folder!r})"
        yield f"tokenizer = transformers.AutoTokenizer.from_pretrained({folder!r})"
        yield f"vllm serve {shlex.quote(folder)}"
        return
    source = model.source if _on_hub(model.source) else "BASE"
    named = f"{source!r}, revision={model.revision!r}" if model.revision else f"{source!r}"
    yield "import peft, transformers"
    yield f"base = {auto}.from_pretrained({named})"
    yield f"model = peft.PeftModel.from_pretrained(base, {folder!r})"
    yield f"tokenizer = transformers.AutoTokenizer.from_pretrained({named})"
    rank = max(ranks_of(adapter, model).values())
    if rank > LORA_RANKS[-1]:
        yield f"(vLLM serves ranks up to {LORA_RANKS[-1]}, not {rank}: export with --format merged)"
        return
    base = [source, "--revision", model.revision] if model.revision else [source]
    options = ["--enable-lora", "--max-lora-rank", str(lora_rank(rank))]
    yield shlex.join(["vllm", "serve", *base, *options, "--lora-modules", f"{run.name}={folder}"])
    if not _on_hub(model.source):
        yield f"BASE is the base model's folder, {model.source} in the run"


def card_text(run: WholeRun, number: int, adapter: bytes, merged: bool = False) -> str:
    """The card as Markdown, with the hub's metadata. Members are numbered, not named."""
    head, settings = _head(run, number, adapter, merged), _settings(run.settings)
    return "\n".join([*head, *settings, *_privacy(run, number), *_rounds(run)]) + "\n"


def _head(run: WholeRun, number: int, adapter: bytes, merged: bool) -> Iterator[str]:
    model = run.model
    library = "transformers" if merged else "peft"
    yield "---"
    if _on_hub(model.source):  # the hub's metadata know no folders
        yield f"base_model: {json.dumps(model.source)}"
    yield f"library_name: {library}"
    yield from ("pipeline_tag: text-generation", "---", "")
    yield f"# {run.name}: {adapter_text(run, number)}{', merged into its base' if merged else ''}"
    yield ""
    revision = f"revision {model.revision}, " if model.revision else ""
    yield f"- Base model: `{model.source}`, {revision}{model.architecture}"
    for name in ("config", "tokenizer", "weights"):
        yield f"- Its {name}: `{getattr(model, name + '_digest')}`"
    yield f"- Adapter: `{digest_of(adapter)}`"
    yield f"- Run: `{run.id}`, {run.state}; method {run.settings.method.name}"
    if run.members:  # empty if a member asks
        yield f"- Members: {', '.join(_members(run.members))}"
    yield f"- Written by PubSwap {__version__}"
    yield from ("", "## Load it", "", "FOLDER is the folder of this file.", "", "```text")
    yield from loading(run, adapter, "FOLDER", merged)
    yield from ("```", "")
    yield from _prompting(run.settings)


def _prompting(settings: RunSettings) -> Iterator[str]:
    """What the model was trained to see around a prompt, for whoever asks it."""
    yield from ("## Prompt it", "")
    if settings.chat_template == "none":
        yield from ("Prompts go in as plain text, without a chat template.", "")
        return
    yield "Prompts go through the base model's chat template, if it has one, in these messages:"
    yield from ("", "```json")
    messages = messages_of(settings.conversation("YOUR PROMPT"))
    texts = [json.dumps(each.model_dump(), ensure_ascii=False) for each in messages]
    yield f"[{f',{chr(10)} '.join(texts)}]"
    yield from ("```", "")
    if settings.chat_template_options:
        options = json.dumps(settings.chat_template_options, ensure_ascii=False)
        yield from (f"With the template's arguments (vLLM: chat_template_kwargs) `{options}`.", "")


def _members(members: list[MemberView]) -> Iterator[str]:
    """Members as client-2, numbered by role in the order of their names, known to the operator."""
    numbers: Counter[str] = Counter()
    for member in sorted(members, key=lambda member: (member.role, member.name)):
        numbers[member.role] += 1
        revoked = "" if member.active else " (revoked)"
        yield f"{member.role}-{numbers[member.role]}{revoked}"


def _settings(settings: RunSettings) -> Iterator[str]:
    differing = flat(given(settings))
    yield from ("## Settings that differ from PubSwap's defaults", "")
    for key, value in differing.items():
        yield f"- `{key} = {value_text(value)}`"
    if not differing:
        yield "None."
    yield ""


def _privacy(run: WholeRun, number: int) -> Iterator[str]:
    if run.settings.privacy is None:
        return
    spent = [
        summary.means.epsilon
        for summary in run.rounds
        if summary.round <= number and summary.means and summary.means.epsilon is not None
    ]
    yield from ("## Privacy", "")
    largest, allowed = max(spent, default=0), run.settings.privacy.epsilon
    yield "Each member trained with record-level differential privacy. For each of its n private"
    yield "prompts, the updates that it sent up to this round are (ε, δ)-differentially private"
    yield f"with ε ≤ {largest:.3g}, as the members report, and δ = min(1e-5, 1 / (10 n)); the run"
    yield f"allows ε ≤ {allowed:g}. The page Differential privacy of PubSwap's documentation says"
    yield "what that does not cover."
    yield ""


def _rounds(run: WholeRun) -> Iterator[str]:
    scores = [each.evaluation.by_topic for each in run.rounds if each.evaluation]
    topics = sorted({topic for by_topic in scores for topic in by_topic})
    headings = ["round", "updates", "pass@1", *map(_cell, topics), "drift", "adapter"]
    start = "the base model" if run.settings.initial_adapter is None else "the initial adapter"
    yield from ("## Rounds", "", f"Round 0 is {start}. Drift is the mean distance of two")
    yield from ("clients' adapters at the end of a round.", "")
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for summary in run.rounds:
        yield f"| {' | '.join(_cells(summary, topics))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _cells(summary: RoundSummary, topics: list[str]) -> Iterator[str]:
    yield str(summary.round)
    yield str(summary.updates)
    evaluation = summary.evaluation
    yield evaluation.figures if evaluation else ""
    for topic in topics:
        score = evaluation.by_topic.get(topic) if evaluation else None
        yield "" if score is None else f"{score:.3f}"
    yield f"{summary.drift.pairwise:.3f}" if summary.drift else ""
    yield f"`{summary.adapter}`" if summary.adapter else ""
