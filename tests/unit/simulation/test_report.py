"""A report's rows, table and page, against figures computed another way from the same results."""

import json
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.commands import slug, write
from pubswap_simulation.reporting.contrasts import contrasts
from pubswap_simulation.reporting.estimates import Estimate
from pubswap_simulation.reporting.page import page
from pubswap_simulation.reporting.section import Section, final, read_sections, sections
from pubswap_simulation.reporting.table import drift, replaced, write_table
from pubswap_simulation.results import RUNS, DonatedTokens, Result, Value, read_results, unfinished
from support.client.results import ADAPTER_BYTES, make_result, study, write_store

ROOT = Path(__file__).parents[3]
T_4 = 2.776445  # Student's t for five seeds
FEDAVG = {"method": "fedavg"}
KEEP = {"method": "pubswap", "method.strategy": "keep", "method.period": 2}


def only(results: list[Result]) -> Section:
    (section,) = sections(results)
    return section


def means(section: Section) -> dict[str, dict[int, Estimate]]:
    """The final pass@1 by row and tau."""
    rows: dict[str, dict[int, Estimate]] = {}
    for row, tau in section.cells:
        if values := section.values((row, tau), final):
            rows.setdefault(row.label, {})[tau] = Estimate(values)
    return rows


def table(section: Section, folder: Path) -> pd.DataFrame:
    """results.csv as pandas reads it."""
    write_table([section], folder / "results.csv")
    return pd.read_csv(folder / "results.csv")


def line(text: str, label: str) -> list[str]:
    """The cells of the first line of a page's tables that begins with a label."""
    first = next(one for one in text.splitlines() if one.startswith(f"| {label} |"))
    return [cell.strip() for cell in first.strip("|").split("|")]


def test_the_page_has_mean_interval_and_paired_difference() -> None:
    """Of the final scores of five seeds, by the textbook's formulas."""
    fedavg = [[0.4, 0.5 + 0.01 * seed, 0.48 + 0.01 * seed * seed] for seed in range(5)]
    keep = [[0.4, 0.6 - 0.01 * seed, 0.55 + 0.013 * seed] for seed in range(5)]
    section = only(
        [make_result(scores, 12, seed, setting=FEDAVG) for seed, scores in enumerate(fedavg)]
        + [make_result(scores, 12, seed, setting=KEEP) for seed, scores in enumerate(keep)]
    )
    assert [row.label for row in section.rows] == ["FedAvg", "PubSwap-keep, period 2"]
    values = [100 * scores[-1] for scores in keep]
    apart = [ours - 100 * theirs[-1] for ours, theirs in zip(values, fedavg, strict=True)]
    half, wide = (T_4 * stdev(each) / 5**0.5 for each in (values, apart))
    above = sum(value > 0 for value in apart)
    assert line(page([section], {}), "PubSwap-keep, period 2")[1:4] == [
        "12",
        f"{mean(values):.1f} ± {half:.1f} (5)",
        f"{mean(apart):+.1f} ± {wide:.1f} (5: {above}/0/{5 - above})",
    ]
    assert section.notes == ()


def test_clients_alone_are_averaged_seed_by_seed(tmp_path: Path) -> None:
    """Over the seeds that all clients have; the table of results has each client's runs."""
    finals = {("client-1", 0): 0.5, ("client-2", 0): 0.7, ("client-1", 1): 0.9}
    section = only(
        [
            make_result([0.4, final], 12, seed, members="alone", client=client)
            for (client, seed), final in finals.items()
        ]
        + [make_result([0.4, 0.8], 12, seed, members="pooled") for seed in (0, 1)]
    )
    rows = means(section)
    assert rows["alone, mean of clients"][12].n == 1
    assert rows["alone, mean of clients"][12].mean == pytest.approx(0.6)
    assert rows["pooled (centralised)"][12].n == 2
    found = table(section, tmp_path)
    last = found[(found["round"] == 1) & found["client"].notna()]
    assert {
        (one.client, one.seed): score
        for one, score in zip(last.itertuples(), last["pass@1"], strict=True)
    } == finals
    assert found["drift_pairwise"].isna().all(), "one client does not drift"


def test_the_mean_score_of_graded_rewards_is_in_the_table(tmp_path: Path) -> None:
    """Beside pass@1, which such rewards may leave at 0; empty where no response is partly right."""
    result = make_result([0.0, 0.5])
    base, last = result.run.rounds
    assert base.evaluation is not None
    graded = base.evaluation.model_copy(update={"score": 0.25})
    rounds = [base.model_copy(update={"evaluation": graded}), last]
    run = result.run.model_copy(update={"rounds": rounds})
    found = table(only([result.model_copy(update={"run": run})]), tmp_path)
    assert list(found["score"].isna()) == [False, True] and found["score"][0] == 0.25


def test_what_is_varied_makes_rows_or_sections() -> None:
    """A change of the method is another row; a change of the problem is another section."""
    results = [
        make_result([0.4, 0.5], setting=FEDAVG | {"data.prepare.alpha": 0.3}),
        make_result([0.4, 0.6], setting=FEDAVG | {"data.prepare.alpha": 0.1}),
        make_result([0.4, 0.7], setting=FEDAVG | {"data.prepare.alpha": 0.1}, seed=1),
        make_result(
            [0.4, 0.8],
            setting={"aggregation.server_optimizer": "momentum", "data.prepare.alpha": 0.1}
            | FEDAVG,
        ),
        make_result([0.4, 0.9], recipe="other", setting=KEEP | {"method.donor_ratio": "decoupled"}),
    ]
    found = sections(results)
    assert [section.title for section in found] == [
        "other",
        "small, data.prepare.alpha = 0.1",
        "small, data.prepare.alpha = 0.3",
    ]
    assert list(means(found[0])) == ["PubSwap-keep, period 2, decoupled donor ratio"]
    low = means(found[1])
    assert low["FedAvg"][12].n == 2
    assert low["FedAvg, server momentum"][12].mean == 0.8


def test_what_is_left_out_or_not_done_is_named(tmp_path: Path) -> None:
    """The first result of a seed and row counts; a run is missing if a sweep planned it, but not
    because other rows have more seeds.
    """
    results = [
        make_result([0.4, 0.5], tau, seed, setting=FEDAVG) for tau in (4, 12) for seed in (0, 1)
    ]
    results.append(make_result([0.4, 0.5], 12, 0, setting=KEEP))
    results.append(make_result([0.4, 0.6], 12, 0, setting=FEDAVG | {"swap.period": 3}))
    assert only(results).notes == (
        "FedAvg, τ = 12: 1 more results of the same seeds are left out, because they differ in no "
        "setting that matters here",
    )
    store = write_store(tmp_path, results)
    (store / RUNS / "small-seed-7").mkdir()
    assert unfinished(store) == ["small-seed-7"]
    text = page(read_sections(store), {}, unfinished=unfinished(store))
    assert "Not done:\n\n- small-seed-7\n" in text


def test_results_judged_by_several_versions_of_the_rules_are_named() -> None:
    """The note counts the results of each version; with one version there is no note."""
    results = [make_result([0.4, 0.5], seed=seed) for seed in range(3)]
    judged = [
        result.model_copy(
            update={"run": result.run.model_copy(update={"verifier_version": version})}
        )
        for result, version in zip(results, ("math@7", "math@8", "math@7"), strict=True)
    ]
    assert only(results).notes == ()
    [note] = only(judged).notes
    assert note.endswith("several versions of a verifier's rules: 2 by math@7, 1 by math@8")


def test_a_variant_is_what_differs_from_the_recipe() -> None:
    """Not from the default: a recipe's own learning rate is no variant; rows are named in words."""
    usual = {"grpo.learning_rate": 0.001}
    recipes_own = [
        (0.5, FEDAVG, "federated"),
        (0.7, KEEP | {"method.strategy": "none"}, "federated"),
        (0.8, KEEP, "federated"),
        (0.9, FEDAVG, "with-public"),
    ]
    results = [
        make_result([0.4, final], setting=setting | usual, members=members).model_copy(
            update={"setting": setting}
        )
        for final, setting, members in recipes_own
    ]
    results.append(make_result([0.4, 0.6], setting=FEDAVG | {"grpo.learning_rate": 0.003}))
    assert {label: row[12].mean for label, row in means(only(results)).items()} == {
        "FedAvg": 0.5,
        "FedAvg, learning rate 0.003": 0.6,
        "public steps without exchange, period 2": 0.7,
        "PubSwap-keep, period 2": 0.8,
        "FedAvg, public prompts in every private set": 0.9,
    }


def test_a_default_is_a_variant_where_the_recipe_has_its_own() -> None:
    """Even if the run does not record it, or it is unset; a single client aggregates nothing."""
    usual = {"grpo.loss_aggregation": "token_mean", "aggregation.clip_norm": 2.0}
    recipes_own = [
        make_result([0.4, 0.5], setting=FEDAVG | usual).model_copy(update={"setting": FEDAVG}),
        make_result(
            [0.4, 0.6], members="alone", client="client-1", setting=dict([*usual.items()][:1])
        ),
    ]
    varied = [
        make_result(
            [0.4, 0.7], setting=FEDAVG | usual | {"grpo.loss_aggregation": "sequence_mean"}
        ),
        make_result([0.4, 0.8], setting=FEDAVG | {"grpo.loss_aggregation": "token_mean"}),
    ]
    assert {k: row[12].mean for k, row in means(only(recipes_own + varied)).items()} == {
        "FedAvg": 0.5,
        "alone, mean of clients": 0.6,
        "FedAvg, loss aggregation sequence mean": 0.7,
        "FedAvg, clip norm unset": 0.8,
    }


def test_a_recipe_that_was_edited_is_another_row_or_section() -> None:
    """Although neither names it as an axis, no mean mixes runs of both versions."""

    def under(key: str, value: Value, final: float, seed: int) -> Result:
        made = make_result([0.4, final], seed=seed, setting=FEDAVG | {key: value})
        return made.model_copy(update={"setting": FEDAVG})

    before = [under("grpo.learning_rate", 0.001, 0.5, seed) for seed in (0, 1)]
    after = [under("grpo.learning_rate", 0.003, 0.75, seed) for seed in (1, 2, 3)]
    section = only(before + after)
    assert {label: row[12].mean for label, row in means(section).items()} == {
        "FedAvg": 0.5,
        "FedAvg, learning rate 0.003": 0.75,
    }
    assert not section.notes
    hotter = [under("evaluation.temperature", value, value, seed=0) for value in (0.7, 0.9)]
    assert [each.title for each in sections(hotter)] == [
        "small, evaluation.temperature = 0.7",
        "small, evaluation.temperature = 0.9",
    ]


def test_drift_and_replaced_share_come_from_the_rounds(tmp_path: Path) -> None:
    """As means over rounds, public steps and clients; the table has them round by round."""
    results = [
        make_result([0.4, 0.5, 0.6], 4, seed, setting=KEEP, drift=2.0 + seed, replaced=0.2)
        for seed in (0, 1)
    ]
    section = only(results)
    [cell] = section.cells
    assert section.values(cell, drift) == {0: 2.0, 1: 3.0}
    assert section.values(cell, replaced) == pytest.approx({0: 0.3, 1: 0.3})
    found = table(section, tmp_path)
    assert list(found[found["seed"] == 1]["drift_pairwise"].dropna()) == [3.0, 3.0]
    assert list(found["replaced_share"].dropna()) == pytest.approx([0.3] * 4)


def test_bytes_are_of_one_client(tmp_path: Path) -> None:
    """The evaluator's downloads do not count; in the table they grow by the round."""
    section = only([make_result([0.4, 0.5, 0.6], 4, setting=KEEP)])
    found = table(section, tmp_path)
    assert list(found["adapters_up"]) == [0, ADAPTER_BYTES, 2 * ADAPTER_BYTES]
    assert list(found["responses_up"]) == [0, 200, 400]
    assert list(found["responses_down"]) == [0, 100, 200]
    text = page([section], {}).partition("### Bytes and seconds")[2]
    # Two rounds, each with an adapter of 640 bytes up and down.
    assert ADAPTER_BYTES == 640
    assert line(text, "PubSwap-keep, period 2") == [
        *("PubSwap-keep, period 2", "4", "2"),
        *("2.6 kB", "600 bytes", "3.2 kB", "10"),
    ]
    assert "without exchange" not in text
    silent = only([make_result([0.4, 0.5], 4, setting=KEEP | {"method.strategy": "none"})])
    assert "Public steps without exchange send responses" in page([silent], {})


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("swap.replay", True, "with replay"),
        ("swap.schedule", "late", "schedule late"),
        ("grpo.clipping", "sequence", "sequence clipping"),
        ("aggregation.server_optimizer", "adam", "server adam"),
        ("wire.precision", "int8", "sent in int8"),
        ("grpo.learning_rate", 0.001, "learning rate 0.001"),
    ],
)
def test_rows_are_named_in_words(axis: str, value: Value, words: str) -> None:
    """Deviations from the paper's method follow its name."""
    varied = [make_result([0.4, 0.5], 4, setting=KEEP | {axis: value})]
    section = only([make_result([0.4, 0.5], 4, setting=KEEP), *varied])
    assert f"PubSwap-keep, period 2, {words}" in means(section)


def test_a_model_without_a_name_is_given_none() -> None:
    """Otherwise the text would say "Model model"."""
    result = make_result([0.4, 0.5], 4, setting=FEDAVG)
    assert "Model tiny of 5,000" in page([only([result])], {})
    card = result.run.model.model_copy(update={"source": "/somewhere/model"})
    run = result.run.model_copy(update={"model": card})
    there = only([result.model_copy(update={"run": run})])
    assert "\n\nA model of 5,000 parameters" in page([there], {})


def test_rewards_and_donated_tokens_are_those_of_the_round(tmp_path: Path) -> None:
    """Rewards as the mean over its steps and clients; what a round does not have is empty."""
    second = DonatedTokens(round=2, tokens=10, probability=0.9, clip_share=0.5)
    result = make_result([0.4, 0.5, 0.6], 4, setting=KEEP)
    found = table(only([result.model_copy(update={"donated": (second,)})]), tmp_path)
    assert list(found["reward"].dropna()) == pytest.approx([1.5 / 8, 5.5 / 8])
    assert list(found["donated_probability"].dropna()) == [0.9]
    assert found["donated_tokens"][2] == 10


def test_topics_of_the_last_round_are_shown_by_row() -> None:
    """The base model's scores are those of round 0."""
    section = only([make_result([0.4, 0.5], 4, seed, setting=FEDAVG) for seed in (0, 1)])
    text = page([section], {}).partition("### Final pass@1 by topic, τ = 4")[2]
    assert line(text, "row") == ["row", "algebra", "counting", "geometry"]
    assert line(text, "base model")[1:] == ["40.0", "50.0", "60.0"]
    assert line(text, "FedAvg")[1:] == ["50.0", "60.0", "70.0"]


def test_the_papers_own_figures_stand_beside_those_of_its_recipes() -> None:
    """And not beside others."""
    ours, other = (
        page([only([make_result([0.4, 0.5], recipe=recipe)])], {})
        for recipe in ("qwen3-4b-deepmath", "small")
    )
    assert "| PubSwap-keep, period 2 | 70.0 | 65.4 | 70.2 | 70.5 |" in ours
    assert "The paper's own figures" not in other


def test_a_method_and_a_strategy_of_another_version_have_their_own_names() -> None:
    """They come after the paper's."""
    plain, keep = make_result([0.4, 0.5], 4, setting=FEDAVG), make_result([0.4, 0.6], 4)
    table = plain.model_dump(mode="json")
    table["run"]["settings"]["method"] = {"name": "fedsoon"}
    soon = Result.model_validate_json(json.dumps(table))
    table = keep.model_dump(mode="json")
    table["run"]["settings"]["method"]["strategy"] = {"name": "vote", "share": 0.5}
    vote = Result.model_validate_json(json.dumps(table))
    assert [row.label for row in only([vote, soon, keep, plain]).rows] == [
        "FedAvg",
        "PubSwap-keep, period 2",
        "PubSwap-vote, period 2",
        "fedsoon",
    ]


def test_results_with_settings_removed_since_are_read_as_before() -> None:
    """The settings of old results are data; one that a newer result lacks makes no other row."""
    old = list(read_results(ROOT / "deploy/recipes/small/study/search"))
    keep = "PubSwap-keep, period 2"
    new = make_result([0.4, 0.5], 48, seed=7, recipe=old[0].recipe, setting={"method": "pubswap"})
    for results in (old, [*old, new], [new, *old]):
        rows = {row.label for section in sections(results) for row in section.rows}
        assert {keep, f"{keep}, schedule late"} < rows
        assert {f"{keep}, with replay", f"{keep}, rule fedex"} < rows
        assert not any("even" in row or "without" in row for row in rows)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study, with one more run for another alpha."""
    other = make_result([0.4, 0.5], setting=FEDAVG | {"data.prepare.alpha": 0.3})
    folder = tmp_path_factory.mktemp("report") / "store"
    return write_store(folder, [*study(seeds=range(2), alphas=(0.1,)), other])


@pytest.fixture(scope="module")
def out(store: Path) -> Path:
    """The folder with that store's report."""
    write(read_sections(store), store.parent / "out")
    return store.parent / "out"


def test_a_store_is_written_as_a_page_a_table_and_pictures(out: Path) -> None:
    """Every section has its plots."""
    written = (out / "report.md").read_text()
    for head in ("## small, data.prepare.alpha = 0.1", "## small, data.prepare.alpha = 0.3"):
        assert head in written
    pictures = sorted(path.name for path in out.glob("*.png"))
    prefix = slug("small, data.prepare.alpha = 0.1") + "-"
    assert [name.removeprefix(prefix) for name in pictures if name.startswith(prefix)] == [
        "curves.png",
        "final.png",
    ]
    for name in pictures:
        assert f"]({name})" in written
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_the_table_has_a_line_for_each_run_and_evaluation(store: Path, out: Path) -> None:
    """The page's means follow from it."""
    found = pd.read_csv(out / "results.csv")
    results = list(read_results(store))
    assert len(found) == sum(len(result.evaluations) for result in results)
    last = found[found["round"] == found["rounds"]]
    assert sorted(last["pass@1"]) == sorted(result.final for result in results)
    of_rows = last.groupby(["section", "row", "tau"])["pass@1"].mean()
    for section in read_sections(store):
        for label, by_tau in means(section).items():
            for tau, one in by_tau.items():
                assert of_rows[section.title, label, tau] == pytest.approx(one.mean)


def test_the_page_says_how_to_make_it_again() -> None:
    """With the recipe, the commits of the code and the contrast named before the runs."""
    results = [
        make_result([0.4, 0.5 + 0.01 * seed], 4, seed, setting=setting).model_copy(
            update={"code": f"{'0123456789' * 4}-dirty"}
        )
        for seed in range(3)
        for setting in (FEDAVG, KEEP)
    ]
    named = "PubSwap-keep, period 2 - FedAvg"
    text = page([only(results)], {}, contrasts(sections(results), named)).partition("again\n")[2]
    assert f'`pubswap report STORE --primary "{named}"`' in text
    assert "here `small`" in text
    assert "01234567-dirty 6." in text


def test_the_smallest_store_makes_a_report(tmp_path: Path) -> None:
    """One run of one seed has no intervals, a single client no bytes, and nothing fails."""
    for name, result in (
        ("federated", make_result([0.4, 0.5], 4, setting=KEEP)),
        ("pooled", make_result([0.4, 0.5], 4, members="pooled")),
    ):
        write([only([result])], tmp_path / name)
        written = (tmp_path / name / "report.md").read_text()
        assert "50.0 (1)" in written
        assert "±" not in written.split("## small")[1]
        assert ("Bytes" in written) is (name == "federated")


@pytest.mark.full
def test_the_same_store_gives_the_same_bytes(store: Path, out: Path, tmp_path: Path) -> None:
    """So a committed report changes only when results do."""
    write(read_sections(store), tmp_path)
    for path in sorted(out.iterdir()):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_a_store_with_no_result_is_refused(tmp_path: Path) -> None:
    """The message says which command makes one."""
    with pytest.raises(InvalidSettings, match="pubswap simulate RECIPE"):
        read_sections(tmp_path)
    with pytest.raises(InvalidSettings, match="is not a folder"):
        read_sections(tmp_path / "nowhere")


def test_a_result_without_evaluations_is_refused() -> None:
    """The message gives recipe, setting and seed."""
    result = make_result([0.4, 0.5], seed=7, setting=FEDAVG)
    run = result.run.model_copy(update={"rounds": result.run.rounds[1:]})
    with pytest.raises(InvalidSettings, match=r"'small'.*fedavg.*seed 7.*rounds \[1\] only"):
        sections([result.model_copy(update={"run": run})])
