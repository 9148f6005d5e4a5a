"""The doctor's checks of the model's files, its tokenizer and its chat template."""

import json
import re
import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer

from pubswap_client.demo.demos import MODEL
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Outcome
from pubswap_client.doctor.model import check_model, shown_example
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.tokenizer import PromptTokenizer, readable_tokenizer
from pubswap_client.recipes.runfile import run_card
from pubswap_client.recipes.tables import ModelSource
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import BaseModelMismatch, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import RunState, RunView
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.response_form import ResponseForm
from support.client.examined import facts_of

RUN = RunSettings()
PLAIN = RunSettings(chat_template="none")
CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
SHOT = {"prompt": "1 + 1 =", "answer": "2"}


@pytest.fixture
def view() -> RunView:
    """A run on the demo's model."""
    return RunView(
        id="r",
        name="run",
        state=RunState.OPEN,
        paused=False,
        round=0,
        settings=RUN,
        model=model_card(MODEL, RUN.lora, "model", "v1"),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the demo's model."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def with_template(folder: Path, template: str | None) -> PromptTokenizer:
    """The folder's tokenizer with this chat template."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return PromptTokenizer(folder)


def of_model(folder: Path, run: RunView) -> Facts:
    return facts_of(ClientSettings(model=str(folder)), run=run.settings, card=run.model)


def card_of(folder: Path, run: RunSettings, source: ModelSource) -> ModelCard:
    """The card of a run on the model in a folder."""
    card = source.card(folder, run.lora, run.grpo.longest_row)
    return run_card(card, readable_tokenizer(folder), run)


def test_the_run_s_own_files_are_well(view: RunView) -> None:
    """The folder and the card are passed on to later checks."""
    facts = of_model(MODEL, view)
    assert check_model(facts).outcome is Outcome.OK
    assert facts.model is not None
    folder, found = facts.model
    assert (folder, found.weights_digest) == (MODEL, view.model.weights_digest)


def test_the_size_of_a_model_counts_only_what_is_loaded(view: RunView, copied: Path) -> None:
    """Mistral's consolidated.safetensors, a second copy of the weights, does not count."""
    before = check_model(of_model(copied, view)).found
    shutil.copy(copied / "model.safetensors", copied / "consolidated.safetensors")
    assert check_model(of_model(copied, view)).found == before


def test_files_that_differ_are_named(view: RunView, copied: Path) -> None:
    """The message names the changed config and tokenizer, but not the unchanged weights."""
    for name in ("config.json", "tokenizer.json"):
        (copied / name).write_text((copied / name).read_text() + "\n")
    with pytest.raises(BaseModelMismatch, match=r"config, tokenizer\. The run uses .* v1"):
        check_model(of_model(copied, view))


def test_a_folder_without_weights_is_no_model(view: RunView, copied: Path) -> None:
    """The message says what is missing."""
    (copied / "model.safetensors").unlink()
    with pytest.raises(InvalidSettings, match="safetensors"):
        check_model(of_model(copied, view))


def test_an_example_is_shown_as_the_model_gets_it(copied: Path) -> None:
    """With its number of tokens, and with the chat template if the run uses it."""
    tokenizer = with_template(copied, CHAT)
    shown = shown_example(tokenizer, RUN)
    assert shown.outcome is Outcome.OK
    tokens = tokenizer.encode_for(RUN, "What is 12 + 30?")
    ids = " ".join(map(str, tokens))
    text = f"is {len(tokens)} tokens: '[user]What is 12 + 30?<eos>'; ids {ids}"
    assert shown.found.endswith(text)
    told = RunSettings.model_validate({"system_prompt": "Hi " * 300, "few_shot": [SHOT] * 9})
    shown = shown_example(tokenizer, told)
    assert "'[system]Hi Hi" in shown.found and "[assistant]2<eos>[user]What is 12" in shown.found
    assert len(shown.found) < 3000, "a long one is cut in the middle"
    plain = shown_example(tokenizer, RUN.model_copy(update={"chat_template": "none"}))
    assert "the run uses none" in plain.found
    assert "tokens: 'What is 12 + 30?'; ids" in plain.found


def test_a_template_without_a_place_for_the_run_s_messages_is_refused(copied: Path) -> None:
    """When the run is created, and by the doctor: a template that fails, one that leaves the
    message out, and no template.
    """
    gemma = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    silent = CHAT.replace("in messages", "in messages if m.role != 'system'")
    no_examples = CHAT.replace("in messages", "in messages if m.role == 'user'")
    system, shots = {"system_prompt": "Be terse."}, {"few_shot": [SHOT]}
    for template, values, said in (
        (gemma + CHAT, system, r"no place for system messages \(system_prompt, or"),
        (silent, system | shots, "no place for system messages"),
        (no_examples, shots, r"no place for assistant messages \(few_shot, or"),
        (gemma.replace("[0].role == 'system'", "[1]") + CHAT, shots, "template fails"),
        (None, system, "has no chat template, and so no place for system_prompt, few_shot"),
    ):
        tokenizer = with_template(copied, template)
        run = RunSettings.model_validate(values)
        with pytest.raises(InvalidSettings, match=said):
            shown_example(tokenizer, run)
        with pytest.raises(InvalidSettings, match=said):
            card_of(copied, run, ModelSource(source="model"))
        own = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "1 + 1 ="}]
        problem = Problem.model_validate({"id": "a", "prompt": own, "answer": "2"})
        if "system_prompt" in values:  # one line of a set is at fault, and not the run
            with pytest.raises(InvalidProblems, match=rf"mine, line 1 \(a\): .*{said}"):
                tokenizer.limit(RUN).check([problem], "mine")


def test_the_template_s_own_switch_turns_thinking_off(copied: Path) -> None:
    """`chat_template_options` are its variables, as Qwen3's enable_thinking."""
    off = "{% if enable_thinking is false %}(think off){% endif %}"
    tokenizer = with_template(copied, CHAT + off)
    assert "(think off)" not in shown_example(tokenizer, RUN).found
    options = RunSettings.model_validate({"chat_template_options": {"enable_thinking": False}})
    assert "<eos>(think off)'" in shown_example(tokenizer, options).found


def test_a_model_without_a_template_is_a_warning_where_the_run_uses_one() -> None:
    """It may be a base model, or an incomplete copy of another model."""
    found = shown_example(PromptTokenizer(MODEL), RUN)
    assert found.outcome is Outcome.WARNING
    assert "chat_template.jinja" in found.advice


def test_a_run_s_card_asks_for_the_token_that_ends_a_turn(copied: Path) -> None:
    """A base model's config often names another; with the token in the run file it is accepted."""
    ended = "{% for m in messages %}<pad>{{ m.content }}<turn>{% endfor %}"
    path = copied / "tokenizer.json"
    known = Tokenizer.from_file(str(path))
    known.add_special_tokens(["<turn>"])
    known.save(str(path))
    with_template(copied, ended)
    config = json.loads((copied / "config.json").read_text())
    number = known.token_to_id("<turn>")
    config["vocab_size"] = number + 1
    (copied / "config.json").write_text(json.dumps(config))
    source = ModelSource(source="model")
    with pytest.raises(InvalidSettings, match=rf"'<turn>'.*model\.stop_token_ids = \[{number}\]"):
        card_of(copied, RUN, source)
    assert card_of(copied, PLAIN, source).eos_token_ids == (1,)
    stopped = card_of(copied, RUN, source.model_copy(update={"stop_token_ids": (number,)}))
    assert stopped.eos_token_ids == (1, number)
    assert stopped.turn_token_ids == (0, number)
    assert ResponseForm.of(stopped, RUN).turns == (0,)


def test_a_run_without_a_template_does_not_ask_a_template_that_fails(copied: Path) -> None:
    """So the advice to set chat_template = 'none' helps."""
    with_template(copied, "{{ raise_exception('only with a system message') }}")
    source = ModelSource(source="model")
    with pytest.raises(InvalidSettings, match="chat_template = 'none'"):
        card_of(copied, RUN, source)
    assert card_of(copied, PLAIN, source).turn_token_ids == (0,)


DATED = "{{ strftime_now('%d %b %Y') }}" + CHAT


def test_prompts_that_differ_from_the_run_s_are_refused_with_the_first_token(copied: Path) -> None:
    """A chat template is in no digest; the message has both versions of transformers."""
    with_template(copied, CHAT)
    run = card_of(copied, RUN, ModelSource(source="org/model"))
    with_template(copied, CHAT.replace("[", "("))
    own = model_card(copied, RUN.lora, "own", None)
    run.check_same(own)  # the digests agree
    sample = run.prompt_sample
    assert sample is not None
    older = run.model_copy(
        update={"prompt_sample": sample.model_copy(update={"transformers": "5.17.0"})}
    )
    said = (
        rf"token 1 of a fixed prompt is \d+ '\(', and the operator's is \d+ '\['\. Use .*"
        rf"of org/model\. .* transformers 5\.17\.0, .* has {re.escape(transformers.__version__)}"
    )
    with pytest.raises(BaseModelMismatch, match=said):
        Policy.load(copied, older, RUN, device="cpu")
    PromptTokenizer(copied).check_prompts(own, RUN)  # an older run has no sample


def test_a_run_has_one_date_for_templates_that_write_it(copied: Path) -> None:
    """Members get the operator's, whatever day it is for them."""
    with_template(copied, DATED)
    card = card_of(copied, RUN, ModelSource(source="model"))
    policy = Policy.load(copied, card, RUN, device="cpu")
    today = PromptTokenizer(copied, card.prompt_date)
    assert policy.encode("?") == today.encode("?", chat=True)
    other = PromptTokenizer(copied, date(2001, 2, 3))
    assert other.plain.decode(other.encode("?", chat=True)).startswith("03 Feb 2001[user]?")
    with pytest.raises(BaseModelMismatch, match="encoded differently"):
        other.check_prompts(card, RUN)
