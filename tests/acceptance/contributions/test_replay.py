"""`pubswap admin replay` averages the rounds again, and says what it cannot remove."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import PeftConfig

from pubswap_protocol import paths
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.tensors.adapter import (
    Adapter,
    decode_adapter,
    encode_adapter,
    open_stack,
    sent_layout,
)
from pubswap_protocol.tensors.peft_folder import WEIGHTS
from pubswap_server.admin.backup import backup
from pubswap_server.admin.restore import restore
from pubswap_server.settings import ServerSettings
from support.chaos.small_disk import missing, small_disk
from support.client import dense
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.places import admin

ROUNDS, MEMBERS = 2, ("a", "b", "c")
EXAMPLES = {"a": 10, "b": 30, "c": 7}
RULES: dict[str, dict[str, Any]] = {
    "fedit": {"rule": "fedit"},
    "examples": {"weights": "examples", "max_weight_share": 1.0},
    "momentum": {"server_optimizer": "momentum", "server_learning_rate": 0.5},
    "adam": {"server_optimizer": "adam"},
    "clipped": {"clip_norm": 0.5},
    "median": {"rule": "median"},
    "ffa": {"rule": "ffa"},
    "fedex": {"rule": "fedex"},
    "svd": {"rule": "svd"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ServerSettings:
    """A coordinator that keeps every round."""
    return settings_for(tmp_path_factory.mktemp("place")).model_copy(update={"keep_rounds": 0})


@pytest.fixture(scope="module")
def server(place: ServerSettings) -> Iterator[Server]:
    with serving(place) as server, server.closing:
        yield server


@pytest.fixture(scope="module")
def runs(server: Server) -> dict[str, Federation]:
    """A finished run for each rule."""
    return {name: finished(server, aggregation=rule) for name, rule in RULES.items()}


def finished(server: Server, **overrides: Any) -> Federation:
    """A run whose members have sent random adapters round by round."""
    fed = begun(server, clients=len(MEMBERS), rounds=ROUNDS, method="fedavg", **overrides)
    for round_ in range(1, ROUNDS + 1):
        for name in MEMBERS:
            update = sent(fed, name, round_)
            layout = sent_layout(fed.run.model.layout, fed.run.settings.aggregation.rule)
            data = encode_adapter(layout, {key: update[key] for key in layout.tensors})
            fed.members[name].put_blob(fed.run.id, data)
            fed.hand_in(name, round_, data, EXAMPLES[name])
        fed.wait_for(round_)
    return fed


def sent(fed: Federation, name: str, round_: int) -> Adapter:
    """A member's update in a round."""
    return fed.adapter(100 * round_ + MEMBERS.index(name))


def published(fed: Federation, round_: int) -> Adapter:
    """The run's own adapter of a round, without residuals."""
    digest = fed.view().rounds[round_].adapter or ""
    return decode_adapter(fed.run.model.layout, bytes(fed.members["a"].blob(fed.run.id, digest)))


def replayed(place: ServerSettings, fed: Federation, out: Path, *options: str) -> Adapter:
    """The adapter of a successful replay."""
    done = admin(place, "replay", fed.run.id, "--out", str(out), *options)
    assert done.returncode == 0, done.stderr
    assert (out / "README.md").read_text() in done.stdout
    return open_stack(out / WEIGHTS, fed.run.model.layout).load()


def refused(place: ServerSettings, fed: Federation, out: Path, *options: str) -> str:
    """The error of a failed replay, which leaves nothing behind."""
    before = sorted(out.parent.iterdir())
    done = admin(place, "replay", fed.run.id, "--out", str(out), *options)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert sorted(out.parent.iterdir()) == before
    return done.stderr


@pytest.mark.parametrize("rule", RULES)
def test_with_everybody_it_is_the_runs_own_adapter_to_the_bit(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path, rule: str
) -> None:
    """So is an earlier round's; PEFT reads the folder, and the run is unchanged."""
    fed = runs[rule]
    before = fed.view()
    replayed(place, fed, tmp_path / "out")
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == fed.operator.global_adapter(
        fed.run.id, "final"
    )
    assert "equals that of round 2 to the bit" in (tmp_path / "out" / "README.md").read_text()
    assert "unlearning" not in (tmp_path / "out" / "README.md").read_text()
    assert PeftConfig.from_pretrained(str(tmp_path / "out")).peft_type == "LORA"
    replayed(place, fed, tmp_path / "one", "--round", "1")
    assert (tmp_path / "one" / WEIGHTS).read_bytes() == fed.operator.global_adapter(fed.run.id, "1")
    assert fed.view().rounds == before.rounds


def expected(fed: Federation, rule: str, left: list[str]) -> tuple[dense.Vector, list[Any]]:
    """The last adapter from these members alone, and each round's updates, in plain numpy.

    Each member's step is the same as in the run, but starts from the adapter without the others.
    """
    theta = dense.flat(published(fed, 0))
    is_a = np.concatenate(
        [
            np.full(tensor.size, "lora_A" in name)
            for name, tensor in sorted(published(fed, 0).items())
        ]
    )
    optimizer, rounds = None, []
    if rule in ("momentum", "adam"):
        optimizer = dense.ServerOptimizer(rule, {"momentum": 0.5, "adam": 0.01}[rule])
    for round_ in range(1, ROUNDS + 1):
        began = dense.flat(published(fed, round_ - 1))
        moved = [theta + (dense.flat(sent(fed, name, round_)) - began) for name in left]
        rounds.append(moved)
        weights = [float(EXAMPLES[name]) if rule == "examples" else 1.0 for name in left]
        if rule == "clipped":
            moved = dense.clip(moved, theta, 0.5)
        mean = np.median(moved, axis=0) if rule == "median" else None
        mean = dense.weighted_mean(moved, weights) if mean is None else mean
        if rule == "ffa":
            mean = np.where(is_a, theta, mean)
        theta = optimizer.moved(theta, mean) if optimizer else mean
    return theta, rounds


@pytest.mark.parametrize(
    ("rule", "without"),
    [
        *((name, ["b"]) for name in RULES if name not in ("fedex", "svd")),
        ("examples", ["a", "c"]),
    ],
)
def test_without_a_member_it_is_the_rule_on_the_steps_of_the_others(
    place: ServerSettings,
    runs: dict[str, Federation],
    tmp_path: Path,
    rule: str,
    without: list[str],
) -> None:
    """It equals numpy's, which shares no code with the server, and differs from the run's own."""
    fed, left = runs[rule], [name for name in MEMBERS if name not in without]
    options = [word for name in without for word in ("--without", name)]
    found = dense.flat(replayed(place, fed, tmp_path / "out", *options))
    wanted, _ = expected(fed, rule, left)
    assert np.allclose(found, wanted, rtol=0, atol=2e-6)
    assert not np.allclose(found, dense.flat(published(fed, ROUNDS)), rtol=0, atol=1e-3)
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(f"the updates of {name} in rounds 1 to 2" in card for name in without)
    assert "not unlearning" in card


def test_one_round_of_the_plain_mean_is_the_mean_of_the_others_to_the_bit(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path
) -> None:
    """In round 1 all members start from the run's own adapter."""
    fed = runs["fedit"]
    found = replayed(place, fed, tmp_path / "out", "--without", "c", "--round", "1")
    a, b = sent(fed, "a", 1), sent(fed, "b", 1)
    for name, tensor in found.items():
        mean = (a[name].astype(np.float64) + b[name].astype(np.float64)) / 2
        assert np.array_equal(tensor, mean.astype(np.float32))


def test_fedex_without_a_member_has_the_mean_of_the_others_products(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path
) -> None:
    """The folder's product is the product of the means plus each round's residual."""
    fed = runs["fedex"]
    found = dense.products(replayed(place, fed, tmp_path / "out", "--without", "c"))
    theta, rounds = expected(fed, "fedit", ["a", "b"])

    def named(vector: dense.Vector) -> Adapter:
        tensors: Any = {}
        for name, tensor in sorted(published(fed, 0).items()):
            tensors[name], vector = (
                vector[: tensor.size].reshape(tensor.shape),
                vector[tensor.size :],
            )
        return tensors

    wanted = dense.products(named(theta))
    for moved in rounds:
        each = [dense.products(named(vector)) for vector in moved]
        of_mean = dense.products(named(np.mean(moved, axis=0)))
        for name in wanted:
            wanted[name] = wanted[name] + (each[0][name] + each[1][name]) / 2 - of_mean[name]
    for name, product in wanted.items():
        assert np.allclose(found[name], product, rtol=0, atol=1e-4)


def test_the_mean_of_products_without_a_member_is_that_of_the_others_changes(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path
) -> None:
    """Each changes the product as in the run, although the factors had another basis there."""
    fed = runs["svd"]
    found = dense.products(replayed(place, fed, tmp_path / "out", "--without", "c"))
    wanted = dense.products(published(fed, 0))
    for round_ in range(1, ROUNDS + 1):
        began = dense.products(published(fed, round_ - 1))
        each = [dense.products(sent(fed, name, round_)) for name in "ab"]
        rank = fed.run.settings.lora.rank
        for name, product in wanted.items():
            change = (each[0][name] + each[1][name]) / 2 - began[name]
            wanted[name] = dense.closest(product + change, rank)
    for name, product in wanted.items():
        assert np.allclose(found[name], product, rtol=0, atol=1e-4)


def test_rounds_that_are_not_kept_are_named_and_begun_behind(
    tmp_path: Path,
) -> None:
    """With one of two rounds kept, the first stays as averaged; an archived run has none left."""
    place = settings_for(tmp_path / "place").model_copy(update={"keep_rounds": 1})
    with serving(place) as server, server.closing:
        fed = finished(server)
        found = dense.flat(replayed(place, fed, tmp_path / "out", "--without", "c"))
        card = (tmp_path / "out" / "README.md").read_text()
        assert "Round 2 of run" in card and "Round 1 could not be averaged again" in card
        assert "PUBSWAP_KEEP_ROUNDS" in card and "rounds before round 2" in card
        # Round 2 started from the run's own adapter, including c's part in it.
        wanted = np.mean([dense.flat(sent(fed, name, 2)) for name in ("a", "b")], axis=0)
        assert np.array_equal(found, wanted.astype(np.float32))
        assert "[gone]" in refused(place, fed, tmp_path / "no", "--round", "1", "--without", "c")
        fed.operator.move_run(fed.run.id, paths.RUN_ARCHIVE)
        said = refused(place, fed, tmp_path / "no", "--without", "c")
        assert "[gone]" in said and "PUBSWAP_KEEP_ROUNDS" in said


def test_what_cannot_be_is_refused_and_nothing_is_written(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path
) -> None:
    """An unknown member or round, no member left, and a folder that already exists."""
    fed = runs["fedit"]
    said = refused(place, fed, tmp_path / "out", "--without", "d")
    assert "[not_found]" in said and "'d'" in said and "a, b, c" in said
    said = refused(place, fed, tmp_path / "out", "--round", "3")
    assert "[not_found]" in said and "round 3" in said
    everybody = [word for name in MEMBERS for word in ("--without", name)]
    said = refused(place, fed, tmp_path / "out", *everybody)
    assert "[wrong_state]" in said and "nothing is left" in said
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    said = refused(place, fed, tmp_path / "out", "--without", "c")
    assert "[invalid_settings]" in said and "another --out" in said
    assert (tmp_path / "out" / "mine").read_text() == "kept"
    done = admin(place, "replay", "nobody-knows-it", "--out", str(tmp_path / "no"))
    assert done.returncode == 1 and "[unknown_run]" in done.stderr


def test_an_update_that_is_damaged_is_not_averaged(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path
) -> None:
    """One bit is flipped in a copy of the storage."""
    fed, data = runs["fedit"], tmp_path / "copy"
    copy = place.model_copy(update={"data_dir": data})
    # Closing the served database's files in this process would drop its locks: let SQLite read it.
    backup(place, tmp_path / "backup", progress_bar())
    restore(copy, tmp_path / "backup", progress_bar())
    digest = digest_of_sent(fed, "b", 2)
    (file,) = data.rglob(digest.replace(":", "-"))
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.unlink()
    file.write_bytes(whole)
    assert "[damaged_blob]" in refused(copy, fed, tmp_path / "out", "--without", "c")
    assert digest_of_file(file) != digest


def digest_of_sent(fed: Federation, name: str, round_: int) -> str:
    """The digest of a member's update."""
    data = encode_adapter(fed.run.model.layout, sent(fed, name, round_))
    return str(fed.hand_in(name, round_, data, EXAMPLES[name]).digest)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.full
@pytest.mark.parametrize("command", ["replay", "contributions"])
def test_a_full_disk_leaves_nothing_behind(
    place: ServerSettings, runs: dict[str, Federation], tmp_path: Path, command: str
) -> None:
    """There is room for a file, but not for the whole output."""
    run = runs["fedit"].run.id
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill(leave=8 << 10)
        done = admin(place, command, run, "--out", str(disk.folder / "out"))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "No space left on device" in done.stderr or "[not_saved]" in done.stderr
        assert [path.name for path in disk.folder.iterdir()] == ["eaten-by-somebody-else"]
        disk.make_room()
        assert admin(place, command, run, "--out", str(disk.folder / "out")).returncode == 0
