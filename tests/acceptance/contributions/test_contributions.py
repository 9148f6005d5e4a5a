"""`pubswap admin contributions`: counts like the exchange's own, and rounds without each member."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.messages import SwapSummary
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter, open_stack
from pubswap_protocol.tensors.peft_folder import WEIGHTS
from pubswap_protocol.tensors.responses import (
    ResponseRules,
    decode_offers,
    decode_responses,
    encode_responses,
)
from pubswap_server.database.engine import Database
from pubswap_server.database.tables import SwapRow
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.places import admin

MEMBERS = ("a", "b", "c")
RIGHT = {1: {"a": [4, 3], "b": [0, 1], "c": [2, 0]}, 2: {"a": [0, 0], "b": [0, 4], "c": [1, 3]}}
SWAPS: dict[str, dict[str, Any]] = {
    "keep": {},
    "random": {"strategy": "random"},
    "limited": {"max_donor_share": 0.5},
    "likely": {"donors": "likely", "candidates": 2},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ServerSettings:
    """A coordinator that keeps only the last round's updates."""
    return settings_for(tmp_path_factory.mktemp("place")).model_copy(update={"keep_rounds": 1})


@pytest.fixture(scope="module")
def server(place: ServerSettings) -> Iterator[Server]:
    with serving(place) as server, server.closing:
        yield server


def rules_of(fed: Federation, round_: int) -> ResponseRules:
    """The form of a public step's responses."""
    prompts = fed.members["a"].swap_prompts(fed.run.id, round_, 1)
    return ResponseRules.of(fed.run.model, fed.run.settings, [p.index for p in prompts.prompts])


def exchanged(fed: Federation, round_: int) -> Counter[tuple[str, str]]:
    """Have all members respond; returns the number of donated responses by (donor, receiver).

    A member's responses are recognised by their log-probabilities, which are unique to it.
    """
    rules = rules_of(fed, round_)
    for number, name in enumerate(MEMBERS):
        body = fed.responses(name, round_, 1, RIGHT[round_][name])
        groups = [
            [replace(each, logprobs=np.full_like(each.logprobs, -1 - number)) for each in group]
            for group in decode_responses(body, rules)
        ]
        data = encode_responses(rules.prompts, groups)
        fed.members[name].submit_responses(fed.run.id, round_, 1, data)
    handed: Counter[tuple[str, str]] = Counter()
    for receiver in MEMBERS:
        data = fed.members[receiver].exchanged(fed.run.id, round_, 1)
        if fed.run.settings.swap.donors == "likely":
            offers = decode_offers(data, rules)
            got = [each for offer in offers for each in offer.candidates]
        else:
            groups = decode_responses(data, rules)
            got = [each for group in groups for each in group if each.donated]
        handed.update((MEMBERS[-1 - round(float(each.logprobs[0]))], receiver) for each in got)
    return handed


def finished(server: Server, swap: dict[str, Any]) -> tuple[Federation, Counter[tuple[str, str]]]:
    """A run of two rounds; in the second, c's update comes too late to count."""
    fed = begun(server, clients=3, swap=swap, aggregation={"quorum": 2})
    handed: Counter[tuple[str, str]] = Counter()
    for round_ in (1, 2):
        handed += exchanged(fed, round_)
        if round_ == 2:
            fed.submit("c", round_, fed.adapter(99))
            fed.operator.exclude(fed.run.id, round_, "c")
        for name in MEMBERS[: 3 if round_ == 1 else 2]:
            fed.submit(name, round_, sent(fed, name, round_))
        fed.wait_for(round_)
    return fed, handed


def sent(fed: Federation, name: str, round_: int) -> Adapter:
    """A member's update in a round."""
    return fed.adapter(10 * round_ + MEMBERS.index(name))


def told(place: ServerSettings, fed: Federation, *options: str) -> dict[str, Any]:
    """The command's report."""
    done = admin(place, "contributions", fed.run.name, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summaries(place: ServerSettings, run: str) -> list[SwapSummary]:
    """The coordinator's records of the closed exchanges."""
    database = Database(place.sqlalchemy_url)
    with Session(database.engine) as session:
        found = session.scalars(select(SwapRow.summary).where(SwapRow.run_id == run))
        all_of_them = [SwapSummary(**each) for each in found if each]
    database.close()
    return all_of_them


@pytest.mark.parametrize("swap", SWAPS)
def test_the_counts_are_what_the_members_were_handed(
    place: ServerSettings, server: Server, swap: str
) -> None:
    """By donor and receiver, they match the members' own files and the coordinator's records."""
    fed, handed = finished(server, SWAPS[swap])
    assert sum(handed.values()) > 3
    found = told(place, fed)
    assert found["offered"] == (swap == "likely")
    members = {each["member"]: each for each in found["members"]}
    assert sorted(members) == list(MEMBERS)
    given = {
        (donor, receiver): count
        for donor, each in members.items()
        for receiver, count in each["given"].items()
    }
    assert given == dict(handed)
    recorded = summaries(place, fed.run.id)
    assert len(recorded) == 2
    for name, each in members.items():
        assert each["received"] == sum(8 * one.replaced_share[name] for one in recorded)
        assert (each["exchanges"], each["responses"]) == (2, 16)
        assert each["right"] == sum(sum(RIGHT[round_][name]) for round_ in (1, 2))
        assert each["rounds"] == (1 if name == "c" else 2)
    said = admin(place, "contributions", fed.run.id).stdout
    assert ("do not report which" in said) == (swap == "likely")
    assert str(sum(members["a"]["given"].values())) in said.splitlines()[2]


def test_each_kept_round_is_written_without_each_of_its_members(
    place: ServerSettings, server: Server, tmp_path: Path
) -> None:
    """Next to the round's own adapter; deleted rounds are named, and late updates do not count."""
    fed, _ = finished(server, {})
    out = tmp_path / "out"
    found = told(place, fed, "--out", str(out))
    assert (found["left_out"], found["not_kept"]) == ({"2": ["a", "b"]}, [1])
    folders = sorted(str(path.parent.relative_to(out)) for path in out.rglob(WEIGHTS))
    assert folders == ["round-2/all", "round-2/without-a", "round-2/without-b"]
    layout = fed.run.model.layout
    assert (out / "round-2/all" / WEIGHTS).read_bytes() == fed.operator.global_adapter(
        fed.run.id, "2"
    )
    for name, other in (("a", "b"), ("b", "a")):
        alone = open_stack(out / f"round-2/without-{name}" / WEIGHTS, layout).load()
        theirs = sent(fed, other, 2)
        assert all(np.array_equal(alone[key], theirs[key]) for key in theirs)
    assert (out.stat().st_mode & 0o077) == 0  # an update can be computed from it
    again = admin(place, "contributions", fed.run.id, "--out", str(out))
    assert again.returncode == 1 and "[invalid_settings]" in again.stderr
    said = admin(place, "contributions", fed.run.id, "--out", str(tmp_path / "two")).stdout
    assert "without a, b" in said and "PUBSWAP_KEEP_ROUNDS" in said
    assert "compute that member's update" in said
    some = told(place, fed, "--out", str(tmp_path / "one"), "--round", "1")
    assert (some["left_out"], some["not_kept"]) == ({}, [1])


def test_residuals_and_moments_are_those_of_the_round(
    place: ServerSettings, server: Server, tmp_path: Path
) -> None:
    """Under FedEx-LoRA the folders contain stacks, and `all` has the bits of the export."""
    fed = begun(server, clients=2, rounds=2, method="fedavg", aggregation={"rule": "fedex"})
    for round_ in (1, 2):
        for name in ("a", "b"):
            fed.submit(name, round_, sent(fed, name, round_))
        fed.wait_for(round_)
    out = tmp_path / "out"
    told(place, fed, "--out", str(out))
    assert (out / "round-2/all" / WEIGHTS).read_bytes() == fed.operator.global_adapter(
        fed.run.id, "final"
    )
    layout, theirs = fed.run.model.layout, sent(fed, "b", 2)
    # With one client the mean's product lacks nothing, so only round 1's residual is left.
    first = decode_adapter(layout, bytes(fed.members["a"].blob(fed.run.id, adapter_of(fed, 1))))
    stack = open_stack(out / "round-2/without-a" / WEIGHTS, layout).load()
    for a in (name for name in theirs if "lora_A" in name):
        b = a.replace("lora_A", "lora_B")
        products = [each[b].astype(float) @ each[a] for each in (sent(fed, n, 1) for n in "ab")]
        residual = np.mean(products, axis=0) - first[b].astype(float) @ first[a]
        wanted = theirs[b].astype(float) @ theirs[a] + residual
        assert np.allclose(stack[b].astype(float) @ stack[a], wanted, rtol=0, atol=1e-4)


def adapter_of(fed: Federation, round_: int) -> str:
    """The digest of a round's adapter."""
    return fed.view().rounds[round_].adapter or ""
