"""A report's tables, against figures computed another way from the same results."""

import json
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting import plots
from pubswap_simulation.reporting.claims import paper_figures
from pubswap_simulation.reporting.commands import slug, write
from pubswap_simulation.reporting.estimates import Difference, Estimate, paired
from pubswap_simulation.reporting.markdown import markdown
from pubswap_simulation.reporting.measures import pass_at_1, replaced
from pubswap_simulation.reporting.plots import figures, line_styles, over_steps, shown, smoothed
from pubswap_simulation.reporting.report import Report, SectionReport, make_report, read_sections
from pubswap_simulation.reporting.section import sections
from pubswap_simulation.results import RUNS, DonatedTokens, Result, Value, read_results, unfinished
from support.client.results import ADAPTER_BYTES, make_result, study, write_store

ROOT = Path(__file__).parents[3]
T_4 = 2.776445  # Student's t for five seeds
FEDAVG = {"method": "fedavg"}
KEEP = {"method": "pubswap", "method.strategy": "keep", "method.period": 2}


def only(results: list[Result]) -> SectionReport:
    (section,) = make_report(sections(results)).sections
    return section


def means(
    section: SectionReport, measure: str = "final", name: str = ""
) -> dict[str, dict[int, Estimate]]:
    """A measure by row and tau."""
    rows: dict[str, dict[int, Estimate]] = {}
    for one in section.means:
        if (one.measure, one.name) == (measure, name):
            rows.setdefault(one.row, {})[one.tau] = one
    return rows


def differences(section: SectionReport, tau: int) -> dict[tuple[str, str], Difference]:
    """Of the final pass@1, by row and the row that it is less."""
    return {
        (one.row, one.less): one
        for one in section.differences
        if (one.measure, one.tau) == ("final", tau)
    }


def test_the_table_has_mean_interval_and_paired_difference() -> None:
    """For the final and best scores of five seeds, by the textbook's formulas."""
    fedavg = [[0.4, 0.5 + 0.01 * seed, 0.48 + 0.01 * seed * seed] for seed in range(5)]
    keep = [[0.4, 0.6 - 0.01 * seed, 0.55 + 0.013 * seed] for seed in range(5)]
    section = only(
        [make_result(scores, 12, seed, setting=FEDAVG) for seed, scores in enumerate(fedavg)]
        + [make_result(scores, 12, seed, setting=KEEP) for seed, scores in enumerate(keep)]
    )
    final, best = means(section), means(section, "best")
    assert list(final) == ["base model", "FedAvg", "PubSwap-keep, period 2"]

    values = [scores[-1] for scores in keep]
    found = final["PubSwap-keep, period 2"][12]
    assert found.mean == pytest.approx(mean(values))
    assert found.half_width == pytest.approx(T_4 * stdev(values) / 5**0.5, abs=1e-7)
    assert best["FedAvg"][12].mean == pytest.approx(mean(max(s[1:]) for s in fedavg))

    apart = [ours[-1] - theirs[-1] for ours, theirs in zip(keep, fedavg, strict=True)]
    difference = differences(section, 12)["PubSwap-keep, period 2", "FedAvg"]
    assert difference.mean == pytest.approx(mean(apart))
    assert difference.half_width == pytest.approx(T_4 * stdev(apart) / 5**0.5, abs=1e-7)
    assert (difference.above, difference.below) == (
        sum(value > 0 for value in apart),
        sum(value < 0 for value in apart),
    )
    assert section.notes == []


def test_fedprox_is_shown_with_the_best_mu_at_each_tau() -> None:
    """Chosen by the mean final pass@1 on the seeds that all mu share; every mu is listed."""
    finals = {(0.001, 4): 0.5, (0.01, 4): 0.6, (0.1, 4): 0.5, (0.001, 12): 0.7, (0.01, 12): 0.6}
    results = [
        make_result([0.4, final], tau, seed, setting={"method": "fedprox", "method.mu": mu})
        for (mu, tau), value in finals.items()
        for seed in range(1 if mu == 0.1 else 2)
        # At seed 1, which not every mu has, 0.001 is the best.
        for final in [0.9 if (seed, mu, tau) == (1, 0.001, 4) else value]
    ]
    section = only(results)
    assert [note.partition(", the best")[0] for note in section.notes] == [
        "FedProx, best μ, τ = 4: μ = 0.01",
        "FedProx, best μ, τ = 12: μ = 0.001",
    ]
    rows = means(section)
    assert [rows["FedProx, best μ"][tau].mean for tau in (4, 12)] == [0.6, 0.7]
    assert list(rows) == [
        "base model",
        "FedProx, best μ",
        "FedProx, μ = 0.001",
        "FedProx, μ = 0.01",
        "FedProx, μ = 0.1",
    ]


def test_clients_alone_are_averaged_seed_by_seed() -> None:
    """Over the seeds that all clients have; each client also has its own row."""
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
    assert rows["client-1 alone"][12].mean == pytest.approx(0.7)
    assert rows["pooled (centralised)"][12].n == 2
    assert means(section, "drift_pairwise") == {}, "one client does not drift"


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
    found = make_report(sections(results)).sections
    assert [section.title for section in found] == [
        "other",
        "small, data.prepare.alpha = 0.1",
        "small, data.prepare.alpha = 0.3",
    ]
    assert list(means(found[0]))[1:] == ["PubSwap-keep, period 2, decoupled donor ratio"]
    low = means(found[1])
    assert low["FedAvg"][12].n == 2
    assert low["FedAvg, server momentum"][12].mean == 0.8


def test_what_goes_beyond_the_paper_is_compared_with_its_own_method() -> None:
    """A server optimizer with FedAvg, and a donor ratio with keep, seed by seed."""
    momentum = FEDAVG | {"aggregation.server_optimizer": "momentum"}
    decoupled = KEEP | {"method.donor_ratio": "decoupled"}
    finals = [(FEDAVG, 0.5, 0.6), (momentum, 0.6, 0.9), (KEEP, 0.7, 0.8), (decoupled, 0.6, 0.6)]
    section = only(
        [
            make_result([0.4, values[seed]], 4, seed, setting=setting)
            for setting, *values in finals
            for seed in (0, 1)
        ]
    )
    keep = "PubSwap-keep, period 2"
    found = differences(section, 4)
    assert found["FedAvg, server momentum", "FedAvg"].mean == pytest.approx(0.2)
    assert found[f"{keep}, decoupled donor ratio", keep].mean == pytest.approx(-0.15)
    assert found[f"{keep}, decoupled donor ratio", "FedAvg"].mean == pytest.approx(0.05)
    assert len(found) == 5, "the base model and keep are compared with FedAvg too"


def test_what_is_left_out_or_not_done_is_named(tmp_path: Path) -> None:
    """The first result of a seed and row counts; a run is missing if a sweep planned it, but not
    because other rows have more seeds.
    """
    results = [
        make_result([0.4, 0.5], tau, seed, setting=FEDAVG) for tau in (4, 12) for seed in (0, 1)
    ]
    results.append(make_result([0.4, 0.5], 12, 0, setting=KEEP))
    results.append(make_result([0.4, 0.6], 12, 0, setting=FEDAVG | {"swap.period": 3}))
    assert only(results).notes == [
        "FedAvg, τ = 12: 1 more results of the same seeds are left out, because they differ in no "
        "setting that matters here",
    ]
    store = write_store(tmp_path, results)
    (store / RUNS / "small-seed-7").mkdir()
    assert unfinished(store) == ["small-seed-7"]
    report = make_report(read_sections(store), unfinished=unfinished(store))
    assert "## Not done\n\n- small-seed-7\n" in markdown(report, {}, {})


def test_results_judged_by_several_versions_of_the_rules_are_named() -> None:
    """The note counts the results of each version; with one version there is no note."""
    results = [make_result([0.4, 0.5], seed=seed) for seed in range(3)]
    judged = [
        result.model_copy(
            update={"run": result.run.model_copy(update={"verifier_version": version})}
        )
        for result, version in zip(results, ("math@7", "math@8", "math@7"), strict=True)
    ]
    assert only(results).notes == []
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
        "base model": 0.4,
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
        "base model": pytest.approx(0.4),
        "FedAvg": 0.5,
        "client-1 alone": 0.6,
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
        "base model": pytest.approx(0.4),
        "FedAvg": 0.5,
        "FedAvg, learning rate 0.003": 0.75,
    }
    assert not section.notes
    hotter = [under("evaluation.temperature", value, value, seed=0) for value in (0.7, 0.9)]
    assert [each.title for each in make_report(sections(hotter)).sections] == [
        "small, evaluation.temperature = 0.7",
        "small, evaluation.temperature = 0.9",
    ]


def test_drift_and_replaced_share_come_from_the_rounds() -> None:
    """As means over rounds, public steps and clients."""
    section = only(
        [
            make_result([0.4, 0.5, 0.6], 4, seed, setting=KEEP, drift=2.0 + seed, replaced=0.2)
            for seed in (0, 1)
        ]
    )
    found = {one: means(section, one) for one in ("drift_pairwise", "replaced")}
    assert found["drift_pairwise"]["PubSwap-keep, period 2"][4].mean == 2.5
    assert found["replaced"]["PubSwap-keep, period 2"][4].mean == pytest.approx(0.3)
    assert all("base model" not in rows for rows in found.values())


def test_bytes_are_of_one_client_and_round_beside_full_fine_tuning() -> None:
    """The evaluator's downloads do not count; full fine-tuning is in float32, up and down."""
    section = only([make_result([0.4, 0.5, 0.6], 4, setting=KEEP)])
    (cost,) = section.costs
    assert (cost.adapters_up, cost.adapters_down) == (ADAPTER_BYTES, ADAPTER_BYTES)
    assert (cost.responses_up, cost.responses_down) == (200, 100)
    assert cost.full_fine_tuning == 2 * 4 * 5000


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
    assert "Model tiny of 5,000" in markdown(make_report(sections([result])), {}, {})
    card = result.run.model.model_copy(update={"source": "/somewhere/model"})
    run = result.run.model_copy(update={"model": card})
    there = make_report(sections([result.model_copy(update={"run": run})]))
    assert "\n\nA model of 5,000 parameters" in markdown(there, {}, {})


def test_donated_tokens_are_reported() -> None:
    """As means over all tokens of all rounds, for rows that have any; older results have none."""
    rounds = (
        DonatedTokens(round=1, tokens=30, probability=0.5, clip_share=0.0),
        DonatedTokens(round=2, tokens=10, probability=0.9, clip_share=0.5),
    )
    kept = [make_result([0.4, 0.5, 0.6], 4, seed, setting=KEEP) for seed in (0, 1)]
    told = [result.model_copy(update={"donated": rounds}) for result in kept]
    section = only([*told, make_result([0.4, 0.5, 0.6], 4, setting=FEDAVG)])
    found = means(section, "donated_probability")
    assert list(found) == ["PubSwap-keep, period 2"]
    assert (found["PubSwap-keep, period 2"][4].mean, found["PubSwap-keep, period 2"][4].n) == (
        pytest.approx(0.6),
        2,
    )
    assert "| 12.5 ± 0.0 (2) |" in markdown(make_report(sections(told)), {}, {})
    assert "donated" not in markdown(make_report(sections(kept)), {}, {})


def test_topics_of_the_last_round_are_reported_by_row() -> None:
    """The base model's scores are those of round 0."""
    section = only([make_result([0.4, 0.5], 4, seed, setting=FEDAVG) for seed in (0, 1)])
    found = means(section, "topic", "counting")
    assert found["base model"][4].mean == pytest.approx(0.5)
    assert found["FedAvg"][4].mean == pytest.approx(0.6)


def test_pass_at_1_is_reported_on_each_clients_own_topics() -> None:
    """Weighted by the client's share of each tested topic; pooled sets have none."""
    mixed = {"client-1": {"algebra": 3, "geometry": 1}, "client-2": {"counting": 2, "other": 5}}
    plain = [make_result([0.4, 0.5], 4, seed, setting=FEDAVG) for seed in (0, 1)]
    results = [result.model_copy(update={"topics": mixed}) for result in plain]
    pooled = make_result([0.4, 0.5], 4, members="pooled")
    pooled = pooled.model_copy(update={"topics": {"client-1": {"algebra": 1}}})
    section = only([*results, pooled])
    # algebra, counting and geometry are 0.5, 0.6 and 0.7 after the last round.
    first, second = (means(section, "own_topics", f"client-{n}") for n in (1, 2))
    assert first["FedAvg"][4].mean == pytest.approx((3 * 0.5 + 0.7) / 4)
    assert second["FedAvg"][4].mean == pytest.approx(0.6)
    assert list(first) == list(second) == ["FedAvg"]
    head = "topics weighted as in each client's own problems, τ = 4 (%)"
    assert head in markdown(make_report(sections(results)), {}, {})
    assert head not in markdown(make_report(sections(plain)), {}, {})


def test_a_method_and_a_strategy_of_another_version_have_their_own_names() -> None:
    """They come after the paper's, and nothing fails: neither the tables nor the plots."""
    plain, keep = make_result([0.4, 0.5], 4, setting=FEDAVG), make_result([0.4, 0.6], 4)
    table = plain.model_dump(mode="json")
    table["run"]["settings"]["method"] = {"name": "fedsoon"}
    soon = Result.model_validate_json(json.dumps(table))
    table = keep.model_dump(mode="json")
    table["run"]["settings"]["method"]["strategy"] = {"name": "vote", "share": 0.5}
    vote = Result.model_validate_json(json.dumps(table))
    found = sections([vote, soon, keep, plain])
    section = make_report(found).sections[0]
    assert list(means(section)) == [
        "base model",
        "FedAvg",
        "PubSwap-keep, period 2",
        "PubSwap-vote, period 2",
        "fedsoon",
    ]
    assert {one.claim for one in section.claims} >= {"keep is better than FedAvg at the largest τ"}
    assert dict(figures(found[0], line_styles(shown(found[0])))).keys() >= {"final", "curves"}


def test_curves_go_over_the_steps_of_the_whole_run() -> None:
    """Step 0 is the base model; a public step keeps its position in the run."""
    first, second = (make_result([0.4, score, 0.7], 4, setting=KEEP) for score in (0.5, 0.6))
    found = over_steps({0: (first,), 1: (second,)}, pass_at_1)
    assert {step: one.mean for step, one in found.items()} == pytest.approx(
        {0: 0.4, 4: 0.55, 8: 0.7}
    )
    assert list(replaced(first)) == [2, 4, 6, 8]


def test_results_with_settings_removed_since_are_read_as_before() -> None:
    """The settings of old results are data; one that a newer result lacks makes no other row."""
    old = list(read_results(ROOT / "deploy/recipes/small/study/search"))
    keep = "PubSwap-keep, period 2"
    new = make_result([0.4, 0.5], 48, seed=7, recipe=old[0].recipe, setting={"method": "pubswap"})
    for results in (old, [*old, new], [new, *old]):
        rows = {method.label for section in sections(results) for method in section.methods}
        assert {"base model", keep, f"{keep}, schedule late"} < rows
        assert {f"{keep}, with replay", f"{keep}, rule fedex"} < rows
        assert not any("even" in row or "without" in row for row in rows)


def test_a_running_mean_has_the_interval_of_the_seeds_running_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interval excludes noise that the running mean averages out."""
    assert list(smoothed({1: 0.0, 2: 3.0, 3: 0.0, 4: 3.0}, 3).values()) == [1.5, 1.0, 2.0, 1.5]
    result = make_result([0.4, 0.5], 4, setting=KEEP)
    cell = {seed: (result.model_copy(update={"seed": seed}),) for seed in range(3)}

    def opposed(result: Result) -> dict[int, float]:
        return {step: float((step + result.seed) % 2) for step in range(1, 25)}

    rough = over_steps(cell, opposed)[5]
    monkeypatch.setattr(plots, "SMOOTHED", (opposed,))
    even = over_steps(cell, opposed)[5]
    assert rough.half_width is not None and rough.half_width > 0.5
    assert (even.low, even.mean, even.high) == (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study, with one more run for another alpha."""
    other = make_result([0.4, 0.5], setting=FEDAVG | {"data.prepare.alpha": 0.3})
    folder = tmp_path_factory.mktemp("report") / "store"
    return write_store(folder, [*study(seeds=range(2), alphas=(0.1,)), other])


@pytest.fixture(scope="module")
def out(store: Path) -> Path:
    """The folder with that store's report."""
    found = read_sections(store)
    write(found, make_report(found), store.parent / "out", paper=True)
    return store.parent / "out"


def test_a_store_is_written_as_markdown_json_and_pictures(store: Path, out: Path) -> None:
    """Every section has its tables, and the JSON reads back as written."""
    data = make_report(read_sections(store))
    assert Report.model_validate_json((out / "report.json").read_text()) == data
    written = (out / "report.md").read_text()
    for head in ("## small, data.prepare.alpha = 0.1", "## small, data.prepare.alpha = 0.3"):
        assert head in written
    assert "| PubSwap-keep, period 2 | 51.1 | 53.0 | 53.3 | 55.8 |" in written, "the paper's own"
    pictures = sorted(path.name for path in out.glob("*.png"))
    prefix = slug("small, data.prepare.alpha = 0.1") + "-"
    assert [name.removeprefix(prefix) for name in pictures if name.startswith(prefix)] == [
        "curves-beyond.png",
        "curves.png",
        "final.png",
        "topics.png",
    ]
    for name in pictures:
        assert f"]({name})" in written
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_the_results_are_one_table(store: Path, out: Path) -> None:
    """A row for each run, with its measures, for pandas."""
    runs = pd.DataFrame(json.loads((out / "report.json").read_text())["runs"])
    results = list(read_results(store))
    assert len(runs) == len(results)
    assert sorted(runs["final"]) == sorted(result.final for result in results)
    means = runs.groupby(["section", "row", "tau"])["final"].mean()
    for section in make_report(read_sections(store)).sections:
        for one in section.means:
            if (one.measure, one.row) == ("final", "PubSwap-keep, period 4"):
                assert means[section.title, one.row, one.tau] == pytest.approx(one.mean)


def test_the_smallest_store_makes_a_report(tmp_path: Path) -> None:
    """One run of one seed has no intervals and no verdicts, and nothing fails."""
    found = read_sections(write_store(tmp_path, [make_result([0.4, 0.5], 4, setting=KEEP)]))
    data = make_report(found)
    write(found, data, tmp_path / "out", paper=False)
    written = (tmp_path / "out" / "report.md").read_text()
    assert "| PubSwap-keep, period 2 | 50.0 (1) |" in written
    assert "±" not in written.split("## small")[1]


@pytest.mark.full
def test_the_same_store_gives_the_same_bytes(store: Path, out: Path, tmp_path: Path) -> None:
    """So a committed report changes only when results do."""
    found = read_sections(store)
    write(found, make_report(found), tmp_path, paper=True)
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


def test_figures_have_the_digits_that_their_interval_allows() -> None:
    """Shares are in per cent with one digit; the precision of others follows their interval."""
    share = Estimate(n=5, mean=0.4731, low=0.4613, high=0.4849)
    assert share.text(True) == "47.3 ± 1.2 (5)"
    other = Estimate(n=3, mean=12.345, low=12.245, high=12.445)
    assert other.text(False) == "12.35 ± 0.10 (3)"
    assert Estimate(n=1, mean=0.5).text(True) == "50.0 (1)"
    difference = paired({0: 0.52, 1: 0.53, 2: 0.5}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert difference is not None
    assert difference.text(True) == "+1.7 ± 3.8 (3: 2/1/0)"


def test_the_papers_figures_are_those_of_the_recipes_or_all() -> None:
    """A small study matches none by name, so all are shown."""
    assert set(paper_figures({"qwen3-4b-deepmath", "small"})) == {"qwen3-4b-deepmath"}
    assert len(paper_figures({"small"})) == 9
    assert "## The paper's own figures" in markdown(
        Report(sections=[]), {}, paper_figures({"small"})
    )
