"""The model card of an exported adapter."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.adapter_card import card_text, loading
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import (
    Drift,
    Evaluation,
    MemberView,
    Role,
    RoundMeans,
    RoundSummary,
    RunState,
    WholeRun,
)
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import PrivacySettings, RunSettings
from pubswap_protocol.tensors.adapter import encode_adapter, modules, stack_layout
from pubswap_protocol.tensors.peft_folder import write_peft_folder

SETTINGS = RunSettings.model_validate({"rounds": 3, "clients": 2, "grpo": {"learning_rate": 0.5}})


def finished() -> WholeRun:
    def scores(share: float) -> Evaluation:
        topics = {"sums": share, "a|b\nc": 0.25}
        return Evaluation(pass_at_1=share, by_topic=topics, problems=4, seconds=1)

    after = RoundSummary(
        round=1,
        updates=2,
        adapter=digest_of(b"one"),
        drift=Drift(pairwise=1.5, from_mean=1),
        evaluation=scores(0.75),
    )
    return WholeRun(
        id="r1",
        name="consortium",
        state=RunState.FINISHED,
        paused=False,
        round=3,
        settings=SETTINGS,
        model=model_card(MODEL, SETTINGS.lora, "org/base", "main"),
        created_at=datetime.now(UTC),
        members=[
            MemberView(name="hospital-b", role=Role.CLIENT, active=True),
            MemberView(name="judge", role=Role.EVALUATOR, active=True),
            MemberView(name="hospital-a", role=Role.CLIENT, active=False),
        ],
        rounds=[RoundSummary(round=0, evaluation=scores(0.5)), after],
    )


def test_the_card_says_how_to_ask_the_model() -> None:
    """With the messages before each prompt and the template's arguments."""
    run = finished()
    shot = {"prompt": "1 + 1 =", "answer": "```2```"}
    values = {"system_prompt": "Be\nterse.", "few_shot": [shot]}
    values["chat_template_options"] = {"enable_thinking": False}
    told = run.model_copy(update={"settings": RunSettings.model_validate(values)})
    text = card_text(told, 1, adapter_of(run))
    asked = text.partition("## Prompt it")[2]
    messages = json.loads(asked.partition("```json\n")[2].partition("\n```\n")[0])
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "Be\nterse." and messages[-1]["content"] == "YOUR PROMPT"
    assert 'chat_template_kwargs) `{"enable_thinking": false}`' in asked
    plain = run.model_copy(update={"settings": RunSettings(chat_template="none")})
    assert "as plain text, without a chat template" in card_text(plain, 1, adapter_of(run))


def adapter_of(run: WholeRun, rank: int = 32) -> bytes:
    """An encoded adapter whose modules all have this rank."""
    layout = stack_layout(run.model.layout, {a: rank for a, _ in modules(run.model.layout)})
    return encode_adapter(
        layout, {name: np.zeros(shape, np.float32) for name, shape in layout.tensors.items()}
    )


def test_a_card_says_what_the_run_says_and_names_no_member() -> None:
    """It gives base, digests, deviations from the paper, members by number, and a line for each
    round.
    """
    run = finished()
    adapter = adapter_of(run)
    text = card_text(run, 1, adapter)
    assert 'base_model: "org/base"' in text and "library_name: peft" in text
    for digest in (run.model.config_digest, run.model.weights_digest, digest_of(adapter)):
        assert digest in text
    assert "- `rounds = 3`" in text and "- `grpo.learning_rate = 0.5`" in text
    assert "local_steps" not in text
    assert "| round | updates | pass@1 | a\\|b c | sums | drift | adapter |" in text
    assert f"| 1 | 2 | 0.750 | 0.250 | 0.750 | 1.500 | `{digest_of(b'one')}` |" in text
    assert "| 0 | 0 | 0.500 | 0.250 | 0.500 |  |  |" in text
    assert "- Members: client-1 (revoked), client-2, evaluator-1\n" in text
    assert "hospital" not in text and "judge" not in text


def test_a_card_says_what_a_private_run_has_cost_up_to_its_round() -> None:
    """The highest epsilon of any member so far, without later rounds; nothing if the run is not
    private.
    """
    run = finished()
    assert "rivacy" not in card_text(run, 1, adapter_of(run))
    settings = run.settings.model_copy(update={"privacy": PrivacySettings(epsilon=8.0)})
    rounds = [
        summary.model_copy(update={"round": number, "means": RoundMeans(epsilon=epsilon)})
        for number, epsilon, summary in zip(
            (0, 1, 2), (None, 2.5, 4.0), run.rounds[:1] * 3, strict=True
        )
    ]
    private = run.model_copy(update={"settings": settings, "rounds": rounds})
    text = card_text(private, 1, adapter_of(run))
    assert "ε ≤ 2.5, as the members report" in text
    assert "allows ε ≤ 8." in text
    assert "`privacy.epsilon = 8.0`" in text


def test_an_untrained_adapter_is_called_so() -> None:
    run = finished()
    text = card_text(run, 0, adapter_of(run))
    assert "# consortium: the untrained initial adapter" in text and "final" not in text


def test_an_adapter_that_training_started_from_is_not_called_untrained() -> None:
    run = finished()
    settings = run.settings.model_copy(update={"initial_adapter": digest_of(b"")})
    text = card_text(run.model_copy(update={"settings": settings}), 0, adapter_of(run))
    assert "# consortium: the initial adapter (the operator's)" in text
    assert "Round 0 is the initial adapter." in text and "untrained" not in text


def test_a_merged_model_s_card_is_a_model_s() -> None:
    run = finished()
    text = card_text(run, 1, adapter_of(run), merged=True)
    assert "library_name: transformers" in text
    assert "# consortium: the adapter after round 1 of 3, merged into its base" in text
    assert "AutoModelForCausalLM.from_pretrained('FOLDER')\n" in text
    assert "\nvllm serve FOLDER\n" in text


def test_an_adapter_of_a_model_with_a_vision_tower_is_loaded_with_the_whole_model() -> None:
    """Its names are that model's, and a causal model of Qwen3.5 would be the text alone."""
    run = finished()
    model = run.model.model_copy(update={"text_model": "model.language_model"})
    whole = run.model_copy(update={"model": model})
    for merged in (True, False):
        lines = list(loading(whole, adapter_of(run, 8), "a", merged))
        assert "= transformers.AutoModelForMultimodalLM.from_pretrained('" in lines[1]


@pytest.mark.parametrize("merged", [False, True])
def test_the_lines_of_python_run_as_pasted(merged: bool, tmp_path: Path) -> None:
    """In a new process, with the base model's folder for BASE."""
    run = finished()
    run = run.model_copy(update={"model": model_card(MODEL, SETTINGS.lora, "./model", None)})
    adapter = adapter_of(run)
    write_peft_folder(tmp_path / "a", adapter, SETTINGS.lora, run.model, str(MODEL))
    folder = str(MODEL if merged else tmp_path / "a")
    lines = [line for line in loading(run, adapter, folder, merged) if "vllm" not in line]
    program = "\n".join(line for line in lines if not line.startswith("BASE"))
    program = program.replace("'BASE'", f"{str(MODEL)!r}") + "\n"
    program += "print(model(**tokenizer('2 + 2', return_tensors='pt')).logits.shape[1])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(done.stdout) > 0, done.stderr


@pytest.mark.parametrize(("rank", "allowed"), [(8, 8), (32, 32), (33, 64), (512, 512)])
def test_the_serving_command_has_a_rank_that_holds_the_adapter(rank: int, allowed: int) -> None:
    """It is the smallest that vLLM accepts and the adapter fits; vLLM's default is 16, and ours is
    32.
    """
    run = finished()
    *python, serve = loading(run, adapter_of(run, rank), "my adapter", merged=False)
    assert python == [
        "import peft, transformers",
        "base = transformers.AutoModelForCausalLM.from_pretrained('org/base', revision='main')",
        "model = peft.PeftModel.from_pretrained(base, 'my adapter')",
        "tokenizer = transformers.AutoTokenizer.from_pretrained('org/base', revision='main')",
    ]
    assert serve == (
        f"vllm serve org/base --revision main --enable-lora --max-lora-rank {allowed} "
        "--lora-modules 'consortium=my adapter'"
    )


def test_a_base_model_that_is_a_folder_has_a_placeholder_in_the_serving_command() -> None:
    """Its name leads nowhere on another machine, nor on the hub."""
    run = finished()
    for source in ("model", "./model", "deploy/recipes/small/model"):
        card = model_card(MODEL, SETTINGS.lora, source, None)
        local = run.model_copy(update={"model": card})
        *_, serve, base = loading(local, adapter_of(run, 8), "a", merged=False)
        assert serve.startswith("vllm serve BASE --enable-lora")
        assert base == f"BASE is the base model's folder, {source} in the run"
        text = card_text(local, 1, adapter_of(run))
        assert "base_model:" not in text
        assert f"- Base model: `{source}`, {card.architecture}\n" in text


def test_an_adapter_of_too_high_a_rank_for_vllm_is_to_be_merged() -> None:
    """vLLM serves ranks up to 512."""
    run = finished()
    assert "--format merged" in list(loading(run, adapter_of(run, 513), "a", merged=False))[-1]
