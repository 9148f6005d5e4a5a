"""Prompts that are too long are left out or refused before a run begins, never during a step."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pubswap_client.base_model import prompt_limit
from pubswap_client.coordinator.client import ProblemSet
from pubswap_client.daemon.reporters import LogLines
from pubswap_client.daemon.session import Session, make_daemon, make_evaluator
from pubswap_client.data.manifest import read_manifest
from pubswap_client.demo.demos import MODEL
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.tokenizer import readable_tokenizer
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.recipes.runfile import check_lengths, make_sets, set_faults
from pubswap_client.recipes.runfile import prepare as operator_prepare
from pubswap_client.settings import ClientSettings
from pubswap_protocol.errors import Conflict, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import SetKind
from pubswap_protocol.problems import (
    Problem,
    PromptLimit,
    problem_lines,
    write_problems,
)
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool, verifier_version

TOKENIZER = readable_tokenizer(MODEL)
LONG = "1 + " * 60 + "1 ="
RUN = RunSettings.model_validate({"chat_template": "none", "grpo": {"max_prompt_tokens": 40}})
RECIPE = {
    "name": "long",
    "clients": 1,
    "local_steps": 4,
    "rounds": 1,
    "chat_template": "none",
    "model.source": str(MODEL),
    "grpo.max_prompt_tokens": 40,
    "grpo.prompts_per_step": 2,
}


def sums(name: str, count: int, long: tuple[int, ...] = ()) -> list[Problem]:
    """Sums of a set; the prompts at the indices `long` are too long."""
    return [
        Problem(id=f"{name}{n}", prompt=LONG if n in long else f"{n} + 1 =", answer=str(n + 1))
        for n in range(count)
    ]


def written(folder: Path, long: str, **changes: Any) -> Path:
    """A recipe whose set `long` has a long prompt on its third line."""
    for name in ("public", "test", "own"):
        write_problems(folder / f"{name}.jsonl", sums(name, 6, (2,) if name == long else ()))
    sets = {"data.public": "public.jsonl", "data.test": "test.jsonl", "data.private": ["own.jsonl"]}
    values = {**RECIPE, **sets, **changes}
    path = folder / "recipe.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


def test_a_limit_lists_lines_ids_and_lengths() -> None:
    """For the first five, and how many more; a prompt of exactly the limit passes."""
    limit = PromptLimit(7, len)
    limit.check([Problem(id="a", prompt="seven77", answer="1")], "the set")
    long = [Problem(id=f"p{n}", prompt="x" * (7 + n % 2), answer="1") for n in range(20)]
    with pytest.raises(InvalidProblems) as caught:
        limit.check(long, "the set")
    assert "the set: 10 of 20 prompts have more than 7 tokens" in caught.value.detail
    assert "line 2 (p1: 8 tokens), line 4 (p3: 8 tokens)" in caught.value.detail
    assert "line 10 (p9: 8 tokens) and 5 more" in caught.value.detail


@pytest.mark.parametrize("name", ["public", "test", "own"])
def test_a_long_prompt_of_any_set_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    """By the first check of `run create` and `simulate`, and by `recipe check`."""
    recipe = load_recipe(written(tmp_path, name))
    files = make_sets(recipe)
    with pytest.raises(InvalidProblems, match=rf"{name}\.jsonl: 1 of 6 .* line 3 \({name}2: "):
        check_lengths(TOKENIZER, recipe.run_settings, files)
    assert f"line 3 ({name}2: " in next(set_faults(recipe, TOKENIZER))


def test_a_run_whose_responses_are_shorter_than_the_answers_is_refused(tmp_path: Path) -> None:
    """Before anything is created, if most answers do not fit."""
    path = written(tmp_path, "", **{"grpo.max_response_tokens": 1})
    longer = [each.model_copy(update={"answer": "1234"}) for each in sums("test", 6)]
    write_problems(tmp_path / "test.jsonl", longer)
    recipe = load_recipe(path)
    with pytest.raises(InvalidProblems, match=r"6 of 6 answers do not fit in a response") as err:
        check_lengths(TOKENIZER, recipe.run_settings, make_sets(recipe))
    assert "a response at most 1 (grpo.max_response_tokens). Raise" in err.value.detail
    assert "6 of 6 answers do not fit" in next(set_faults(recipe, TOKENIZER))


def test_a_run_has_its_recipe_s_template_options_and_stop_tokens(tmp_path: Path) -> None:
    """The settings have the template's options, and the card has the stop tokens after the model's
    own.
    """
    written(tmp_path, "")
    path = tmp_path / "told.toml"
    path.write_text(
        'extends = "recipe.toml"\nchat_template = "auto"\n'
        "[chat_template_options]\nenable_thinking = false\n[model]\nstop_token_ids = [7, 9]\n"
    )
    recipe = load_recipe(path)
    create = operator_prepare(recipe, make_sets(recipe)).create
    assert create.settings.chat_template_options == {"enable_thinking": False}
    plain = load_recipe(tmp_path / "recipe.toml")
    own = operator_prepare(plain, make_sets(plain)).create.model.eos_token_ids
    assert create.model.eos_token_ids == (*own, 7, 9)


def test_a_public_set_is_not_checked_without_public_steps(tmp_path: Path) -> None:
    """So with fedavg its prompts may have any length."""
    recipe = load_recipe(written(tmp_path, "public", method="fedavg"))
    check_lengths(TOKENIZER, recipe.run_settings, make_sets(recipe))


def test_a_recipe_leaves_long_prompts_out_of_what_it_prepares(tmp_path: Path) -> None:
    """Counted with the recipe's own model, template and limit; the manifest has the number."""
    rows = [problem.model_dump() for problem in sums("s", 40, long=(3, 17))]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"source": "jsonl", "from": str(tmp_path / "all.jsonl"), "private_size": 20}
    spec |= {"public_size": 9, "test_size": 9}
    values = {**RECIPE, "data.prepare": spec}
    path = tmp_path / "recipe.toml"
    path.write_text("name = 'x'\n[model]\nsource = 'x'\n[data.prepare]\nsource = 'math'\n")
    recipe = load_recipe(path, values)
    files = make_sets(recipe, tmp_path / "split")
    [left] = read_manifest(tmp_path / "split").left_out
    # Both long prompts are the same text, and both are counted.
    assert (left.reason, left.rows) == ("a prompt of more than 40 tokens", 2)
    check_lengths(TOKENIZER, recipe.run_settings, files)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """A mistyped folder gives no traceback."""
    with pytest.raises(InvalidSettings, match="is not a Hugging Face model folder"):
        prompt_limit(tmp_path, RUN)


def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    """transformers would raise a TypeError."""
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / "config.json").write_text("[]")
    with pytest.raises(InvalidSettings, match="is not a JSON object"):
        prompt_limit(folder, RUN)


def test_an_evaluator_refuses_a_test_set_that_it_cannot_report(
    policy: Policy, tmp_path: Path
) -> None:
    """At its start: an empty set, or too many topics to report."""
    many = [Problem(id=str(n), prompt="1", answer="1", topic=str(n)) for n in range(10_001)]
    run: Any = SimpleNamespace(id="r", settings=policy.settings)
    nothing: Any = None
    for problems, said in (([], "test set has no problems"), (many, "has 10001 topics")):
        found = ProblemSet(problem_lines(problems))
        api: Any = SimpleNamespace(problem_set=lambda run, kind, found=found: found)
        with pytest.raises(InvalidProblems, match=said):
            make_evaluator(
                ClientSettings(state=tmp_path), Session(api, "a", run, policy, nothing, nothing)
            )


def test_a_member_with_another_version_of_a_problems_verifier_does_not_begin(
    policy: Policy, tmp_path: Path
) -> None:
    """It would give other rewards; the run's own verifier is compared at the hello."""
    lines = problem_lines([Problem(id="x", prompt="1 + 1 =", answer="2", verifier="math")])
    run: Any = SimpleNamespace(id="r", settings=policy.settings)
    nothing: Any = None
    for versions, fits in ((verifier_version("math"), True), ("math@1+0.0", False), (None, True)):
        found = ProblemSet(lines, versions)
        api: Any = SimpleNamespace(problem_set=lambda run, kind, found=found: found)
        session = Session(api, "judge", run, policy, nothing, nothing)
        with nullcontext() if fits else pytest.raises(Conflict, match=r"math@1\+0\.0, yours are m"):
            make_evaluator(ClientSettings(state=tmp_path), session)


@pytest.mark.parametrize(
    ("number", "refusal"), [(0, (InvalidProblems, "may have .* bytes")), (1, (Conflict, "yours"))]
)
def test_a_run_under_way_is_not_refused_for_what_a_step_might_draw(
    policy: Policy, tmp_path: Path, number: int, refusal: tuple[type[Exception], str]
) -> None:
    """An earlier version opened it, and its steps fit. What is compared next is its verifiers."""
    large = Problem(
        id="x", prompt="1 + 1 =", answer="2", verifier="math", metadata={"x": "y" * (9 << 20)}
    )
    found = ProblemSet(problem_lines([large, *sums("s", 6)]), "math@1+0.0")
    run: Any = SimpleNamespace(id="r", round=number, settings=policy.settings)
    api: Any = SimpleNamespace(problem_set=lambda run, kind: found)
    nothing: Any = None
    member = Session(api, "a", run, policy, nothing, VerifierPool())
    with pytest.raises(refusal[0], match=refusal[1]):
        make_daemon(ClientSettings(state=tmp_path), member, sums("own", 6), LogLines())


def test_a_member_refuses_the_runs_sets_before_it_works(policy: Policy, tmp_path: Path) -> None:
    """A coordinator counts without the chat template, so a member may be the first to notice."""
    asked = []

    def problem_set(run: str, kind: SetKind) -> ProblemSet:
        asked.append(kind)
        return ProblemSet(problem_lines([Problem(id="x", prompt="1" * 41, answer="1")]))

    run: Any = SimpleNamespace(id="r", round=0, settings=policy.settings)
    api: Any = SimpleNamespace(problem_set=problem_set)
    nothing: Any = None
    member = Session(api, "a", run, policy, nothing, VerifierPool())
    settings = ClientSettings(state=tmp_path)
    with pytest.raises(InvalidProblems, match=r"The operator's public set: .* \(x: 41 tokens\)"):
        make_daemon(settings, member, sums("own", 6), LogLines())
    held_out = settings.model_copy(update={"holdout": 2})
    long = Problem(id="long", prompt="1" * 41, answer="1")
    for own in (settings.model_copy(update={"data": tmp_path / "own.jsonl"}), held_out):
        said = rf"{own.data or 'a'}: .* line 7 \(long: 41 tokens\)"
        with pytest.raises(InvalidProblems, match=said):
            make_daemon(own, member, [*sums("own", 6), long], LogLines())
    with pytest.raises(InvalidProblems, match="1 problems besides 2 held-out ones; a step takes 3"):
        make_daemon(held_out, member, sums("own", 3), LogLines())
    with pytest.raises(InvalidProblems, match="The operator's test set: "):
        make_evaluator(settings, member)
    assert asked == [SetKind.PUBLIC, SetKind.TEST]
