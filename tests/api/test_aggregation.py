"""Each rule of aggregation in a run over real sockets, with fake members."""

from typing import Any

import httpx
import numpy as np
import pytest

from pubswap_protocol.errors import Invalid, InvalidAdapter
from pubswap_protocol.messages import Event, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterLayout,
    decode_adapter,
    encode_adapter,
    sent_layout,
)
from pubswap_protocol.tensors.ranks import at_rank, leading
from pubswap_protocol.tensors.update_encoding import encode_update, from_bfloat16, to_bfloat16
from support.client import dense
from support.coordinator.coordinator import Federation, Server, begun, create

FIVE = {"method": "fedavg", "rounds": 2, "clients": 5}


def hand_in(fed: Federation, round_: int, made: dict[str, Adapter]) -> Adapter:
    """Submit the members' adapters, in the rule's layout; returns the aggregated adapter."""
    layout = fed.run.model.layout
    sent = sent_layout(layout, fed.run.settings.aggregation.rule)
    for name, adapter in made.items():
        api = fed.members[name]
        data = encode_adapter(sent, {tensor: adapter[tensor] for tensor in sent.tensors})
        update = SubmitUpdate(
            adapter=api.put_blob(fed.run.id, data), metrics=UpdateMetrics(examples=10, steps=2)
        )
        assert api.submit_update(fed.run.id, round_, update).status == "accepted"
    view = fed.wait_for(round_)
    digest = view.rounds[round_].adapter
    assert digest is not None
    return decode_adapter(layout, bytes(fed.members["judge"].blob(fed.run.id, digest)))


def events(fed: Federation, kind: str) -> list[Event]:
    """The run's events of a kind."""
    return [event for event in fed.operator.events(fed.run.id).events if event.kind == kind]


def all_close(found: Adapter, expected: dense.Vector) -> bool:
    """Whether an adapter equals this vector up to float32 rounding."""
    return np.allclose(dense.flat(found), expected, rtol=1e-5, atol=1e-5)


def test_a_private_rounds_epsilon_is_the_most_that_a_member_has_spent(server: Server) -> None:
    """Not the mean, which would hide the member with the fewest prompts."""
    fed = begun(server, rounds=2, clients=3, method="fedavg", privacy={"epsilon": 8.0})
    assert "privacy.epsilon" in fed.run.requires
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    for name, epsilon in (("a", 1.5), ("b", 2.5), ("c", None)):
        api = fed.members[name]
        metrics = UpdateMetrics(examples=10, steps=2, epsilon=epsilon)
        update = SubmitUpdate(adapter=api.put_blob(fed.run.id, data), metrics=metrics)
        assert api.submit_update(fed.run.id, 1, update).status == "accepted"
    means = fed.wait_for(1).rounds[1].means
    assert means is not None
    assert (means.epsilon, means.reward) == (2.5, None)


@pytest.mark.parametrize("order", ["abcde", "ecadb"])
@pytest.mark.parametrize(
    "rules",
    [
        {"rule": "median"},
        {"rule": {"name": "trimmed_mean", "trim": 0.2}},
        {"rule": {"name": "multi_krum", "bad": 1}},
        {"rule": "fedit", "clip_norm": 1.0},
    ],
)
def test_a_robust_run_is_not_moved_by_one_bad_member(
    server: Server, rules: dict[str, Any], order: str
) -> None:
    """One of five sends its factors times 1000; the result equals a dense numpy reference."""
    fed = begun(server, **FIVE, aggregation=rules)
    made = {name: fed.adapter(number) for number, name in enumerate("abcde")}
    made["c"] = {name: 1000 * array for name, array in made["c"].items()}
    found = hand_in(fed, 1, {name: made[name] for name in order})
    start = dense.flat(
        decode_adapter(fed.run.model.layout, fed.operator.global_adapter(fed.run.id, "0"))
    )
    vectors = [dense.flat(made[name]) for name in "abcde"]
    (told,) = events(fed, "update stands out")
    assert (told.details["member"], told.details["round"]) == ("c", 1)
    norms = [float(np.linalg.norm(vector - start)) for vector in vectors]
    assert told.details["norm"] == pytest.approx(norms[2], rel=1e-6)
    assert told.details["median_of_others"] == pytest.approx(
        np.median(norms[:2] + norms[3:]), rel=1e-6
    )
    rule = fed.run.settings.aggregation.rule.name
    if rule == "median":
        expected = np.median(np.array(vectors), axis=0)
    elif rule == "trimmed_mean":
        expected = dense.trimmed_mean(vectors, 1)
    elif rule == "multi_krum":
        kept = sorted(dense.krum_order(vectors, 1)[:4])
        expected = np.mean([vectors[n] for n in kept], axis=0)
        (left_out,) = events(fed, "update excluded")
        assert left_out.details == {"member": "c", "round": 1}
    else:
        expected = np.mean(dense.clip(vectors, start, 1.0), axis=0)
        assert "c" in {event.details["member"] for event in events(fed, "update clipped")}
    assert all_close(found, expected)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_server_optimizer_remembers_from_round_to_round(server: Server, optimizer: str) -> None:
    """Over two rounds, the global adapter follows a dense numpy reference."""
    fed = begun(
        server, method="fedavg", aggregation={"rule": "fedit", "server_optimizer": optimizer}
    )
    layout = fed.run.model.layout
    reference = dense.ServerOptimizer(optimizer, 1.0 if optimizer == "momentum" else 0.01)
    start = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    expected = dense.flat(start)
    for round_ in (1, 2):
        made = {name: fed.adapter(10 * round_ + n) for n, name in enumerate("ab")}
        found = hand_in(fed, round_, made)
        mean = np.mean([dense.flat(one) for one in made.values()], axis=0)
        expected = reference.moved(expected, mean)
        assert all_close(found, expected)


def test_in_an_ffa_run_members_send_b_and_the_a_is_the_first_rounds(server: Server) -> None:
    """An update that holds an A is refused, and A stays bit for bit the same in every round."""
    fed = begun(server, method="fedavg", aggregation={"rule": "ffa"})
    layout = fed.run.model.layout
    start = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    with pytest.raises(InvalidAdapter, match="not this run's"):
        fed.members["a"].put_blob(fed.run.id, encode_adapter(layout, fed.adapter(1)))
    for round_ in (1, 2):
        made = {name: fed.adapter(10 * round_ + n) for n, name in enumerate("ab")}
        found = hand_in(fed, round_, made)
        for name, tensor in found.items():
            if "lora_A" in name:
                assert np.array_equal(tensor, start[name])
            else:
                expected = (made["a"][name].astype(np.float64) + made["b"][name]) / 2
                assert np.allclose(tensor, expected, atol=1e-6)
    assert fed.view().rounds[2].traffic.adapters_up < 2 * layout.file_bytes


def test_members_of_unequal_rank_are_averaged_by_their_products(server: Server) -> None:
    """The next round begins from the closest adapter of the run's rank.

    A rank outside the run's range is refused at upload, and the error names the range.
    """
    ranks = {"lora": {"rank": 4}, "aggregation": {"rule": {"name": "svd", "min_rank": 2}}}
    fed = begun(server, method="fedavg", **ranks)
    layout = fed.run.model.layout
    before = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    for rank in (1, 5):
        foreign = at_rank(layout, rank)
        data = encode_adapter(foreign, random_of(foreign))
        with pytest.raises(InvalidAdapter, match=rf"rank {rank}; the run takes 2 .* to 4"):
            fed.members["a"].put_blob(fed.run.id, data)
    low = leading(fed.adapter(1), 2)
    data = encode_adapter(at_rank(layout, 2), low)
    fed.members["a"].put_blob(fed.run.id, data)
    assert fed.hand_in("a", 1, data).status == "accepted"
    fed.submit("b", 1, fed.adapter(2))
    done = fed.wait_for(1).rounds[1]
    found = decode_adapter(layout, fed.members["a"].blob(fed.run.id, done.adapter or ""))
    wide = {
        name: np.concatenate([low[name], rest[2:]])
        if "lora_A" in name
        else np.concatenate([low[name], rest[:, 2:]], axis=1)
        for name, rest in before.items()
    }
    each = [dense.products(one) for one in (wide, fed.adapter(2))]
    for name, product in dense.products(found).items():
        wanted = dense.closest((each[0][name] + each[1][name]) / 2, 4)
        assert np.allclose(product, wanted, rtol=0, atol=1e-4)
    kinds = {event.kind: event.details for event in fed.operator.events(fed.run.id).events}
    assert 0 < kinds["rank truncated"]["left_out"] < 1
    assert done.drift is not None
    moved = dense.flat(wide) - dense.flat(fed.adapter(2))
    assert done.drift.pairwise == pytest.approx(np.linalg.norm(moved), rel=1e-5)


def random_of(layout: AdapterLayout) -> Adapter:
    """Random factors."""
    rng = np.random.default_rng(0)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in layout.tensors.items()}


@pytest.mark.parametrize("rules", [{"rule": "ffa"}, {"clip_norm": 1.0}])
def test_reduced_updates_are_aggregated_as_what_they_stand_for(
    server: Server, rules: dict[str, Any]
) -> None:
    """Rules decode reduced-precision files to adapters, also if they hold only B."""
    fed = begun(server, method="fedavg", aggregation=rules, wire={"precision": "bfloat16"})
    layout = fed.run.model.layout
    sent = sent_layout(layout, fed.run.settings.aggregation.rule)
    start = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    stands_for = []
    for number, name in enumerate("ab"):
        adapter, api = fed.adapter(number), fed.members[name]
        adapter = {tensor: adapter[tensor] for tensor in sent.tensors}
        data = encode_update(sent, "bfloat16", adapter, start)
        moved = {n: from_bfloat16(to_bfloat16(adapter[n] - start[n])) for n in adapter}
        stands_for.append({n: start[n] + moved[n] for n in adapter})
        update = SubmitUpdate(
            adapter=api.put_blob(fed.run.id, data), metrics=UpdateMetrics(examples=10, steps=2)
        )
        assert api.submit_update(fed.run.id, 1, update).status == "accepted"
    fed.wait_for(1)
    digest = fed.view().rounds[1].adapter or ""
    found = decode_adapter(layout, bytes(fed.members["judge"].blob(fed.run.id, digest)))
    base = dense.flat({name: start[name] for name in sent.tensors})
    vectors = [dense.flat(one) for one in stands_for]
    if "clip_norm" in rules:
        vectors = dense.clip(vectors, base, 1.0)
    assert all_close({name: found[name] for name in sent.tensors}, np.mean(vectors, axis=0))


def test_a_run_whose_rule_can_never_hold_is_refused(server: Server) -> None:
    """When it is created, with the reason."""
    with pytest.raises(ValueError, match=r"needs at least 2 f \+ 3 = 5 clients"):
        create(server, aggregation={"rule": "multi_krum"})
    fed = create(server)
    body = {"name": "krum", "settings": fed.run.settings.model_dump(mode="json")}
    body["settings"]["aggregation"]["rule"] = "multi_krum"
    body["model"] = fed.run.model.model_dump(mode="json")
    with server.http() as http:
        reply: httpx.Response = http.post("/v1/runs", json=body)
    assert reply.status_code == 422
    assert reply.json()["code"] == Invalid.code
    assert "2 f + 3" in reply.text


def test_a_robust_round_that_closes_at_its_quorum_falls_back(server: Server) -> None:
    """Three updates are too few for Multi-Krum, so the median is used, and the log says so."""
    rules = {"rule": "multi_krum", "quorum": 3, "deadline_seconds": 0.3}
    fed = begun(server, **FIVE, aggregation=rules)
    made = {name: fed.adapter(number) for number, name in enumerate("abc")}
    found = hand_in(fed, 1, made)
    assert all_close(found, np.median([dense.flat(one) for one in made.values()], axis=0))
    (event,) = events(fed, "aggregation fell back")
    assert event.details == {"rule": "multi_krum", "used": "median", "updates": 3, "round": 1}
