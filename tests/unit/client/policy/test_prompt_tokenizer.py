"""Prompts of any text: only the chat template makes control tokens."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from pubswap_client.policy.tokenizer import PromptTokenizer, readable_tokenizer
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from support.client.models import save_model
from support.client.tokenizer_kinds import CONTROL, KINDS

TURNS = (
    "{{ '<s>' }}{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# As gpt-oss: what begins and ends a message is also inside a reply that has reasoning.
CHANNELS = (
    "{% for m in messages %}{% if m.thinking and loop.last and not add_generation_prompt %}"
    "<|start|>assistant<think>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>{{ m.role }}</think>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def tokenizer(folder: Path, kind: str, template: str | None) -> PromptTokenizer:
    """A tokenizer of a kind, as a model's folder has it."""
    full = PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<|pad|>",
        unk_token="<unk>",
        additional_special_tokens=["<|start|>", "<|end|>"],
        chat_template=template,
    )
    full.save_pretrained(folder)
    return PromptTokenizer(folder)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_spelled_by_a_problem_are_text(
    tmp_path: Path, kind: str, chat: bool
) -> None:
    """The prompt has the control tokens of a harmless one and nothing else, and reads the same."""
    made = tokenizer(tmp_path, kind, TURNS)
    control = {made.plain.token_to_id(text) for text in CONTROL}
    harmless = [token for token in made.encode("what is 1", chat) if token in control]
    for text in CONTROL:
        prompt = f"what is {text} 1? {text}assistant 2{text}"
        tokens = made.encode(prompt, chat)
        assert [token for token in tokens if token in control] == harmless, text
        read = made.plain.decode([token for token in tokens if token not in control])
        spelled = read.replace(" ", "").count(text)
        assert spelled == 3 or "<unk>" in made.plain.decode(tokens, skip_special_tokens=False), read


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_spelled_in_any_message_are_text(tmp_path: Path, kind: str) -> None:
    """In the run's system prompt and examples too; the template trims what it is given."""
    made = tokenizer(tmp_path, kind, TURNS)
    control = {made.plain.token_to_id(text) for text in CONTROL}

    def tokens(text: str) -> list[int]:
        shot = {"prompt": f"{text} is 1", "answer": f" 2{text}"}
        run = RunSettings.model_validate({"system_prompt": f"so {text}", "few_shot": [shot]})
        turns = [
            {"role": "user", "content": f" {text}what"},
            {"role": "assistant", "content": f"1{text}3"},
            {"role": "user", "content": f"is x? {text}"},
        ]
        problem = Problem.model_validate({"id": "a", "prompt": turns, "answer": "4"})
        return made.encode_for(run, problem.prompt)

    harmless = [token for token in tokens("12") if token in control]
    names = [made.plain.id_to_token(token) for token in harmless]
    assert names == ["<s>", *["<|start|>", "<|end|>"] * 6, "<|start|>"]
    for text in CONTROL:
        found = tokens(text)
        assert [token for token in found if token in control] == harmless, text
        read = made.plain.decode([token for token in found if token not in control])
        whole = read.replace(" ", "").count(text) == 6
        assert whole or "<unk>" in made.plain.decode(found, skip_special_tokens=False), read


def test_a_prompt_that_cannot_be_kept_apart_is_refused(tmp_path: Path) -> None:
    """The sign with which spelled control tokens are masked, beside one of them."""
    made = tokenizer(tmp_path, "byte level", TURNS)
    assert made.encode("\ue0024\ue003", chat=True)
    with pytest.raises(InvalidProblems, match="spells one of the model's control tokens"):
        made.encode("\ue0024\ue003 <|end|>", chat=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_without_them_is_encoded_as_transformers_does(tmp_path: Path, kind: str) -> None:
    """The same ids as its own `apply_chat_template`, and as its plain call."""
    made = tokenizer(tmp_path, kind, TURNS)
    full = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for prompt in ("What is 12 + 30?", "  two\nlines  ", "ünï → ∫", "< | s | >"):
        turns = [{"role": "user", "content": prompt}]
        wanted = full.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert made.encode(prompt, chat=True) == wanted
        assert made.encode(prompt, chat=False) == full(prompt)["input_ids"]
    shot = {"prompt": "1 + 1?", "answer": " It is 2."}
    run = RunSettings.model_validate({"system_prompt": "Be terse.", "few_shot": [shot]})
    turns = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": " It is 2."},
        {"role": "user", "content": "3 + 4?"},
    ]
    wanted = full.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert made.encode_for(run, "3 + 4?") == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_turn_tokens_are_between_messages_and_not_inside_a_reply(tmp_path: Path, kind: str) -> None:
    """Begin of text and padding too; marks of reasoning are a reply's own text."""
    made = tokenizer(tmp_path, kind, TURNS)
    names = [made.plain.id_to_token(token) for token in made.turn_tokens()]
    assert sorted(names) == sorted(["<|start|>", "<|end|>", "<|pad|>", "<s>"])
    assert made.plain.id_to_token(made.turn_end()[0]) == "<|end|>"


def test_what_a_reply_with_reasoning_contains_is_text(tmp_path: Path) -> None:
    """As in templates whose replies consist of several messages."""
    made = tokenizer(tmp_path, "byte level", CHANNELS)
    names = [made.plain.id_to_token(token) for token in made.turn_tokens()]
    assert sorted(names) == ["<s>", "<|pad|>"]


def test_without_a_template_only_begin_of_text_and_padding_are_turn_tokens(tmp_path: Path) -> None:
    """A base model's text has no turns."""
    made = tokenizer(tmp_path, "byte level", None)
    names = [made.plain.id_to_token(token) for token in made.turn_tokens()]
    assert sorted(names) == ["<s>", "<|pad|>"]


def test_a_prompt_with_a_token_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    """As with a token that was added to the tokenizer alone; other prompts can be used."""
    folder = save_model(tmp_path / "small", "qwen3", vocab_size=40)
    readable, loaded = readable_tokenizer(folder), PromptTokenizer(folder, None, 40)
    run = RunSettings()
    assert readable.encode_for(run, "3 + 4") == loaded.encode_for(run, "3 + 4")
    for each in (readable, loaded):
        with pytest.raises(InvalidProblems, match=r"token 'z' \(44\), .* only the first 40"):
            each.encode_for(run, "x y z")
