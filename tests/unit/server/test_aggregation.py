"""Every aggregation rule against dense numpy (support/client/dense.py), streamed, in any order."""

import itertools
import math
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pubswap_protocol.digests import digest_of, hexadecimal
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.methods.rules import RULES, FedIT, Median, MultiKrum, TrimmedMean
from pubswap_protocol.methods.weights import Examples, Uniform, Weights
from pubswap_protocol.settings import AggregationSettings
from pubswap_protocol.tensors.adapter import (
    LARGEST,
    Adapter,
    AdapterFile,
    AdapterLayout,
    AdapterSource,
    decode_adapter,
    encode_adapter,
    sent_layout,
)
from pubswap_server.aggregation.gram import (
    MAX_DRIFT_CLIENTS,
    compared,
    drift_of,
    sampled,
    squared_distances,
)
from pubswap_server.aggregation.log_lines import STANDS_OUT
from pubswap_server.aggregation.outputs import adapter_file, combined
from pubswap_server.aggregation.round import Aggregated, aggregate
from pubswap_server.aggregation.updates import UNIFORM, Updates, shares_of
from support.client import dense

LAYOUT = AdapterLayout(
    tensors={
        "x.lora_A.weight": (4, 30),
        "x.lora_B.weight": (50, 4),
        "y.lora_A.weight": (4, 60),
        "y.lora_B.weight": (9, 4),
    }
)
ONE_LAYER = {"x.lora_A.weight": (64, 4096), "x.lora_B.weight": (4096, 64)}


class Folder:
    """A blob store in a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        data = b"".join(parts)
        place = self.path(digest_of(data))
        if not place.exists():  # or the bytes would change under a reader that has mapped the file
            place.write_bytes(data)
        return digest_of(data), len(data)

    def path(self, digest: str) -> Path:
        return self.folder / hexadecimal(digest)

    def keep(self, layout: AdapterLayout, adapter: Adapter) -> AdapterFile:
        """Store an adapter as a file."""
        return AdapterFile(self.path(self.write([encode_adapter(layout, adapter)])[0]), layout)

    def load(self, digest: str, layout: AdapterLayout = LAYOUT) -> Adapter:
        """A stored adapter."""
        return decode_adapter(layout, self.path(digest).read_bytes())


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    """An empty store."""
    return Folder(tmp_path / "blobs")


def adapters(count: int, seed: int = 0, layout: AdapterLayout = LAYOUT) -> list[Adapter]:
    """Random adapters."""
    rng = np.random.default_rng(seed)
    return [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in layout.tensors.items()}
        for _ in range(count)
    ]


def round_of(
    store: Folder,
    made: Sequence[Adapter],
    previous: Adapter,
    state: str | None = None,
    weights: Sequence[float] | None = None,
    sample: Sequence[int] | None = None,
    weighing: Weights = UNIFORM,
    **rules: Any,
) -> Aggregated:
    """Aggregate adapters of clients c0, c1, ... by the rules."""
    wanted = AggregationSettings(**rules)
    sent = sent_layout(LAYOUT, wanted.rule)
    updates = Updates(
        members=tuple(f"c{place}" for place in range(len(made))),
        sources=tuple(store.keep(sent, {n: a[n] for n in sent.tensors}) for a in made),
        weights=tuple(weights or [1.0] * len(made)),
        previous=store.keep(LAYOUT, previous),
        weighing=weighing,
    )
    before = None if state is None else store.path(state)
    return aggregate(updates, before, wanted, store, sample)


def close(found: Adapter, expected: dense.Vector, tolerance: float = 3e-7) -> bool:
    """Whether an adapter is this vector, up to rounding to float32."""
    return np.allclose(dense.flat(found), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [5.0, 1.0, 2.0]])
def test_fedit_is_the_mean_of_a_and_of_b_separately(store: Folder, weights: list[float]) -> None:
    """Each number is the weighted mean of the clients' numbers, and the file is canonical."""
    previous, *made = adapters(4)
    found = round_of(store, made, previous, weights=weights)
    assert close(store.load(found.adapter), dense.weighted_mean([*map(dense.flat, made)], weights))
    data = store.path(found.adapter).read_bytes()
    assert data == encode_adapter(LAYOUT, decode_adapter(LAYOUT, data))
    assert (found.log, found.server_state) == ((), None)


@pytest.mark.parametrize("rule", ["fedit", "median"])
def test_equal_adapters_aggregate_to_themselves(store: Folder, rule: str) -> None:
    """An unchanged adapter loses nothing to rounding."""
    previous, one = adapters(2)
    found = round_of(store, [one] * 4, previous, rule=rule)
    assert store.path(found.adapter).read_bytes() == encode_adapter(LAYOUT, one)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_is_that_of_each_number(store: Folder, count: int) -> None:
    """It equals numpy's median over the clients, for odd and even numbers of them."""
    previous, *made = adapters(count + 1)
    found = round_of(store, made, previous, rule="median")
    expected = np.median(np.array([dense.flat(one) for one in made]), axis=0)
    assert close(store.load(found.adapter), expected)


@pytest.mark.parametrize(("count", "trim", "dropped"), [(5, 0.2, 1), (10, 0.3, 3), (7, 0.4, 2)])
def test_the_trimmed_mean_drops_a_share_at_either_end(
    store: Folder, count: int, trim: float, dropped: int
) -> None:
    """It drops the floor(beta n) smallest and as many of the largest, number by number."""
    previous, *made = adapters(count + 1)
    found = round_of(store, made, previous, rule=TrimmedMean(trim=trim))
    expected = dense.trimmed_mean([dense.flat(one) for one in made], dropped)
    assert close(store.load(found.adapter), expected)


@pytest.mark.parametrize(("count", "bad", "kept"), [(5, 1, None), (7, 2, 3), (9, 1, 1)])
def test_multi_krum_averages_the_clients_of_the_lowest_scores(
    store: Folder, count: int, bad: int, kept: int | None
) -> None:
    """It is the weighted mean of the chosen clients; the log names those left out."""
    previous, *made = adapters(count + 1)
    weights = [1.0 + place for place in range(count)]
    found = round_of(store, made, previous, weights=weights, rule=MultiKrum(bad=bad, averaged=kept))
    vectors = [dense.flat(one) for one in made]
    chosen = sorted(dense.krum_order(vectors, bad)[: kept or count - bad])
    mean = dense.weighted_mean([vectors[n] for n in chosen], [weights[n] for n in chosen])
    assert close(store.load(found.adapter), mean)
    excluded = [note.details["member"] for note in found.log if note.kind == "update excluded"]
    assert excluded == [f"c{n}" for n in range(count) if n not in chosen]


def test_multi_krum_counts_exactly_the_n_minus_f_minus_2_closest_others() -> None:
    """By hand, on a line: the nearest others are a pair's, the two nearest are a trio's."""
    pair_and_trio = np.array([0.0, 0.1, 1.0, 1.3, 1.6])
    distances = squared_distances(np.outer(pair_and_trio, pair_and_trio))
    # The sums of two squared distances: 1.01, 0.82, 0.45, 0.18, 0.45.
    assert [MultiKrum(bad=1, averaged=m).select(distances) for m in (1, 2, 3)] == [
        [3],
        [2, 3],
        [2, 3, 4],
    ]


@pytest.mark.parametrize(("bad", "fewest"), [(1, 5), (2, 7), (3, 9)])
def test_multi_krum_needs_2_f_plus_3_updates(bad: int, fewest: int) -> None:
    """With one fewer, the median is used."""
    rule = MultiKrum(bad=bad)
    assert rule.used(fewest) is rule
    assert rule.used(fewest - 1) == Median()


@pytest.mark.parametrize("rule", ["multi_krum", "trimmed_mean"])
def test_too_few_updates_for_a_rule_fall_back_to_the_median(store: Folder, rule: str) -> None:
    """A round that closed at its quorum is still aggregated robustly, and the log says so."""
    previous, *made = adapters(4)
    found = round_of(store, made, previous, rule=rule)
    expected = np.median(np.array([dense.flat(one) for one in made]), axis=0)
    assert close(store.load(found.adapter), expected)
    (note,) = found.log
    assert note.kind == "aggregation fell back"
    assert note.details == {"rule": rule, "used": "median", "updates": 3}


ROBUST = [
    {"rule": "median"},
    {"rule": {"name": "trimmed_mean", "trim": 0.2}},
    {"rule": {"name": "multi_krum", "bad": 1}},
]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 4), size=st.floats(10, 1e12), seed=st.integers(0, 1000))
@pytest.mark.parametrize("rules", ROBUST)
def test_one_client_of_five_cannot_move_a_robust_rule_out_of_the_others(
    store: Folder, rules: dict[str, Any], place: int, size: float, seed: int
) -> None:
    """Whichever client it is, and however large its numbers, the result stays among honest ones."""
    previous, *made = adapters(6, seed)
    made[place] = {name: np.float32(size) * array for name, array in made[place].items()}
    found = dense.flat(store.load(round_of(store, made, previous, **rules).adapter))
    honest = np.array([dense.flat(one) for n, one in enumerate(made) if n != place])
    assert (found >= honest.min(axis=0) - 1e-6).all()
    assert (found <= honest.max(axis=0) + 1e-6).all()


@pytest.mark.parametrize(
    "rules",
    [
        {"rule": "fedit"},
        {"rule": "median"},
        {"rule": {"name": "multi_krum", "bad": 1, "averaged": 2}},
    ],
)
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_clipping_bounds_each_update_before_the_rule(
    store: Folder, rules: dict[str, Any], factor: float
) -> None:
    """Updates are clipped to c times the median norm, and the log names them."""
    previous, *made = adapters(6)
    made[2] = {name: 5 * array for name, array in made[2].items()}
    found = round_of(store, made, previous, clip_norm=factor, **rules)
    start, before = dense.flat(previous), [dense.flat(one) for one in made]
    vectors = dense.clip(before, start, factor)
    if rules["rule"] == "median":
        expected = np.median(np.array(vectors), axis=0)
    else:
        order = range(5) if rules["rule"] == "fedit" else dense.krum_order(vectors, 1)[:2]
        expected = np.mean([vectors[n] for n in sorted(order)], axis=0)
    assert close(store.load(found.adapter), expected, 2e-6)
    clipped = {note.details["member"] for note in found.log if note.kind == "update clipped"}
    assert clipped == {f"c{n}" for n in range(5) if not np.array_equal(vectors[n], before[n])}
    assert "c2" in clipped


@pytest.mark.parametrize("name", ["momentum", "adam"])
@pytest.mark.parametrize("rate", [None, 0.3])
def test_a_server_optimizer_moves_by_its_own_memory_of_the_rounds(
    store: Folder, name: str, rate: float | None
) -> None:
    """Three rounds follow the papers' recursions, each continuing from the last one's blob."""
    rules = {"server_optimizer": {"name": name, **({"rate": rate} if rate else {})}}
    reference = dense.ServerOptimizer(name, rate or {"momentum": 1.0}.get(name, 0.01))
    (theta,) = adapters(1)
    expected, state = dense.flat(theta), None
    for number in range(3):
        made = adapters(3, seed=number + 1)
        found = round_of(store, made, theta, state, **rules)
        expected = reference.moved(expected, np.mean([dense.flat(one) for one in made], axis=0))
        theta, state = store.load(found.adapter), found.server_state
        assert close(theta, expected, 1e-5)
        again = round_of(store, made, theta, state, **rules)
        assert again == round_of(store, made, theta, state, **rules)
    assert state is not None


@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_ffa_takes_b_from_the_clients_and_a_from_the_round(store: Folder, optimizer: str) -> None:
    """Clients send B only; the bits of A do not change."""
    previous, *made = adapters(4)
    found = round_of(store, made, previous, rule="ffa", server_optimizer=optimizer)
    mean = store.load(found.adapter)
    for name in LAYOUT.tensors:
        if "lora_A" in name:
            assert np.array_equal(mean[name], previous[name])
        elif optimizer == "none":
            expected = np.mean([one[name].astype(np.float64) for one in made], axis=0)
            assert np.allclose(mean[name], expected, atol=1e-6)
        else:
            assert not np.array_equal(mean[name], previous[name])


def distances(made: Sequence[Adapter]) -> tuple[float, float]:
    """The mean distances between pairs, and from the mean."""
    vectors = [dense.flat(one) for one in made]
    pairs = [float(np.linalg.norm(x - y)) for x, y in itertools.combinations(vectors, 2)]
    centre = np.mean(vectors, axis=0)
    from_mean = float(np.mean([np.linalg.norm(x - centre) for x in vectors]))
    return (float(np.mean(pairs)) if pairs else 0.0), from_mean


@pytest.mark.parametrize("slice_", [1, 7, 1 << 14])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("rules", [{}, {"clip_norm": 2.0}, {"rule": "median"}])
def test_drift_is_the_distance_between_clients_and_from_their_mean(
    store: Folder, monkeypatch: pytest.MonkeyPatch, count: int, slice_: int, rules: dict[str, Any]
) -> None:
    """Checked against flat vectors and every pair, for every way of computing inner products."""
    monkeypatch.setattr("pubswap_server.aggregation.updates.SLICE", slice_)
    previous, *made = adapters(count + 1)
    measured = round_of(store, made, previous, **rules).drift
    pairwise, from_mean = distances(made)
    assert measured.pairwise == pytest.approx(pairwise, rel=1e-5)
    assert measured.from_mean == pytest.approx(from_mean, rel=1e-5, abs=1e-5)


EVERY = [
    {
        "rule": TrimmedMean(trim=0.25) if rule == "trimmed_mean" else rule,
        "clip_norm": clip,
        "server_optimizer": optimizer,
    }
    for rule in ("fedit", "ffa", "svd", "median", "trimmed_mean", "multi_krum")
    for clip in (None, 1.0)
    for optimizer in (("none",) if rule == "svd" else ("none", "adam"))
]


@pytest.mark.parametrize("rules", EVERY)
def test_the_width_of_the_slices_changes_no_bit_of_an_elementwise_rule(
    store: Folder, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    """Every combination works in narrow slices; without a norm, it gives the same bits."""
    previous, *made = adapters(6)
    whole = round_of(store, made, previous, **rules)
    again = round_of(store, made, previous, **rules)
    assert whole == again
    monkeypatch.setattr("pubswap_server.aggregation.updates.SLICE", 5)
    narrow = round_of(store, made, previous, **rules)
    if rules["clip_norm"] is None:
        assert (whole.adapter, whole.server_state) == (narrow.adapter, narrow.server_state)
    assert close(store.load(narrow.adapter), dense.flat(store.load(whole.adapter)), 1e-5)


def peak_of(folder: Path, count: int, rules: dict[str, Any]) -> int:
    """Peak memory of streaming a round of `count` clients of 2 MiB each."""
    layout = AdapterLayout(tensors=ONE_LAYER)
    store = Folder(folder / f"{count}")
    files = [store.keep(layout, one) for one in adapters(2, layout=layout)]
    updates = Updates(
        tuple(f"c{n:02}" for n in range(count)),
        tuple(files[n % 2] for n in range(count)),
        (1.0,) * count,
        files[0],
    )

    class Sink(Folder):
        """A store that holds one part at a time."""

        def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
            path, size = self.folder / "part", 0
            with path.open("wb") as file:
                for part in parts:
                    size += file.write(part)
            name = f"part:{len(list(self.folder.iterdir()))}"
            path.rename(self.path(name))
            return name, size

    sink = Sink(folder / f"sink-{count}")
    tracemalloc.start()
    aggregate(updates, None, AggregationSettings(**rules), sink)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "rules",
    [
        {"rule": "fedit"},
        {"rule": "fedit", "server_optimizer": "adam"},
        {"rule": "median", "clip_norm": 1.0},
        {"rule": "multi_krum"},
    ],
)
def test_memory_does_not_grow_with_the_clients(tmp_path: Path, rules: dict[str, Any]) -> None:
    """Twice the clients of 2 MiB each need no more, and always far less than a file for each."""
    some, many = peak_of(tmp_path, 32, rules), peak_of(tmp_path, 64, rules)
    assert many < 1.5 * some
    assert many < 12 << 20 < 32 * AdapterLayout(tensors=ONE_LAYER).file_bytes


def test_a_pass_reads_each_file_once(store: Folder) -> None:
    """The mean and the drift use the same rows."""

    class Counting(AdapterSource):
        """A source that counts the reads of it."""

        def __init__(self, source: AdapterFile) -> None:
            self.source, self.layout, self.numbers = source, source.layout, 0

        def tensor(self, name: str) -> Any:
            raise AssertionError("whole tensors are not read")

        def rows(self, name: str, first: int, last: int) -> Any:
            found = self.source.rows(name, first, last)
            self.numbers += found.size
            return found

    files = [store.keep(LAYOUT, one) for one in adapters(3)]
    sources = tuple(Counting(file) for file in files[:2])
    updates = Updates(("a", "b"), sources, (1.0, 1.0), files[2])
    results = combined(updates.slices(), FedIT(), updates.shares, updates.widest)
    assert sum(len(part) for part in adapter_file(LAYOUT, results)) == LAYOUT.file_bytes
    assert [source.numbers for source in sources] == [LAYOUT.parameters] * 2
    assert drift_of(compared(updates, first=True)[0].matrix).pairwise > 0
    assert [source.numbers for source in sources] == [2 * LAYOUT.parameters] * 2


@pytest.mark.parametrize("rules", [{}, {"clip_norm": 1.0}])
def test_the_drift_of_many_clients_is_that_of_some(store: Folder, rules: dict[str, Any]) -> None:
    """16 of 68 clients are drawn for it; the adapter and the clipped clients stay the same."""
    made = adapters(MAX_DRIFT_CLIENTS + 52)
    made[40] = {name: 50 * array for name, array in made[40].items()}
    found, drawn = [], sampled(len(made), 5, 1)
    assert len(set(drawn)) == MAX_DRIFT_CLIENTS
    assert drawn == sampled(len(made), 5, 1) != sampled(len(made), 5, 2)
    assert sampled(MAX_DRIFT_CLIENTS, 5, 1) == range(MAX_DRIFT_CLIENTS)
    for sample in (None, drawn):
        found.append(round_of(store, made, adapters(1, 9)[0], sample=sample, **rules))
    exact, other = (store.load(one.adapter) for one in found)
    for name in exact:
        assert np.allclose(exact[name], other[name], rtol=1e-4, atol=1e-4)
    clipped, clipped_too = (
        [note for note in one.log if note.kind == "update clipped"] for one in found
    )
    assert bool(clipped) == bool(rules)
    for note, same in zip(clipped, clipped_too, strict=True):
        assert note.details["member"] == same.details["member"]
        assert note.details["norm"] == pytest.approx(same.details["norm"], rel=1e-5)
    told, of_the_drawn = (
        [note.details["member"] for note in one.log if note.kind == STANDS_OUT] for one in found
    )
    assert told == ["c40"]
    assert of_the_drawn == (["c40"] if 40 in drawn else [])
    expected = distances([made[place] for place in drawn])
    assert found[1].drift.pairwise == pytest.approx(expected[0], rel=1e-4)
    assert found[1].drift.from_mean == pytest.approx(expected[1], rel=1e-4)


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=12),
    st.floats(0.05, 1.0),
)
def test_no_share_is_over_the_bound_and_the_rest_keep_their_weights(
    weights: list[int], largest: float
) -> None:
    """The shares are min(largest, c w), where the test finds c independently by bisection."""
    found = shares_of([float(weight) for weight in weights], largest)
    assert sum(found) == pytest.approx(1)
    if largest * len(weights) <= 1:
        assert len(set(found)) == 1
        return
    low, high = 0.0, 2.0
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(min(largest, middle * weight) for weight in weights)
        low, high = (middle, high) if total < 1 else (low, middle)
    assert found == pytest.approx([min(largest, high * weight) for weight in weights], abs=1e-9)
    assert max(found) <= largest


def test_a_member_that_reports_a_thousand_million_examples_has_twice_an_equal_share() -> None:
    """By default, and at most a half, so two clients have a half each; the sum stays 1."""
    assert Examples().max_share is None
    for clients, most in ((1, 1.0), (2, 0.5), (3, 0.5), (4, 0.5), (5, 0.4), (8, 0.25), (100, 0.02)):
        liar, *others = shares_by_default([1e9, *[30.0] * (clients - 1)])
        assert liar == pytest.approx(most)
        assert math.fsum([liar, *others]) == pytest.approx(1)
    assert shares_by_default([1e9, 30.0, 10.0]) == (0.5, 0.375, 0.125)
    assert shares_by_default([20.0, 10.0, 10.0]) == (0.5, 0.25, 0.25)
    assert shares_of([1e9, 1.0], 1.0)[0] > 0.999999  # the operator's choice


def shares_by_default(weights: Sequence[float]) -> tuple[float, ...]:
    """The shares of a round without `aggregation.weights.max_share`."""
    return shares_of(weights, Examples().largest_share(len(weights)))


@pytest.mark.parametrize("rule", ["fedit", "svd", "multi_krum"])
def test_the_log_names_a_member_whose_weight_is_bounded(store: Folder, rule: str) -> None:
    """With the share that its weight asks for and the one it has; no note if the bound is far."""
    previous, *made = adapters(6)
    bounded, even = (
        round_of(store, made, previous, weights=weights, weighing=Examples(), rule=rule).log
        for weights in ([1e9, 1.0, 1.0, 1.0, 1.0], [3.0, 2.0, 2.0, 2.0, 1.0])
    )
    [note] = [note for note in bounded if note.kind == "weight bounded"]
    counted = 4 if rule == "multi_krum" else 5
    assert note.details["member"] == "c0"
    assert note.details["asked"] > 0.999
    assert note.details["share"] == pytest.approx(2 / counted)
    assert "weight bounded" not in {note.kind for note in even}


def test_equal_weights_have_no_bound_and_the_same_bits(store: Folder) -> None:
    """Whatever the bound, uniform weights give the plain mean, without a note."""
    previous, *made = adapters(8)
    found = [
        round_of(store, made, previous, weighing=weighing)
        for weighing in (Examples(), Examples(max_share=0.01), Uniform())
    ]
    assert len({each.adapter for each in found}) == 1
    assert [each.log for each in found] == [()] * 3


def test_no_blown_up_result_leaves_the_aggregation(store: Folder) -> None:
    """A result too large to be an upload is not published, with momentum, Adam or FedIT."""
    start, far = adapters(2)
    far = {name: np.full_like(array, LARGEST) for name, array in far.items()}
    for rules in (
        {"server_optimizer": {"name": "momentum", "rate": 10.0}},
        {"server_optimizer": {"name": "adam", "rate": 1e8}},
    ):
        with pytest.raises(InvalidAdapter, match="numbers are at most"):
            round_of(store, [far, far], start, **rules)
    beyond = {name: 4 * array for name, array in far.items()}  # as base + difference may be
    with pytest.raises(InvalidAdapter, match="lora_A"):
        round_of(store, [beyond, far], start)
    with pytest.raises(InvalidAdapter, match="not finite"):
        no_number = {name: array * np.nan for name, array in far.items()}
        round_of(store, [no_number, far], start)


@pytest.mark.parametrize("rule", ["fedit", "ffa", "median", "multi_krum"])
def test_every_rule_takes_the_largest_updates_and_measures_them(store: Folder, rule: str) -> None:
    """The drift of updates at both ends of the range equals float64's."""
    start, *_ = adapters(1)
    signs = (1, -1, 1, 1, 1) if rule == "multi_krum" else (1, -1)
    made = [{n: np.full_like(a, sign * LARGEST) for n, a in start.items()} for sign in signs]
    found = round_of(store, made, start, rule=rule)
    sent = sent_layout(LAYOUT, RULES.read(rule))
    vectors = [dense.flat({n: a[n] for n in sent.tensors}) for a in made]
    distances = [np.linalg.norm(x - y) for x, y in itertools.combinations(vectors, 2)]
    assert found.drift.pairwise == pytest.approx(np.mean(distances), rel=1e-6)
