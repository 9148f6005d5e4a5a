"""`from pubswap import Coordinator` against a real coordinator, with members that do not train."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from pubswap import Coordinator, PubSwapError, Run
from pubswap_protocol.errors import (
    InvalidSettings,
    LocalFault,
    Unauthenticated,
    UnknownRun,
    Unreachable,
    WrongState,
)
from pubswap_protocol.messages import Evaluation, Event, Progress, Role
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, Server, begun, create


@pytest.fixture
def coordinator(server: Server) -> Iterator[Coordinator]:
    """The operator's Coordinator."""
    with Coordinator(server.url, OPERATOR_TOKEN) as coordinator:
        yield coordinator


def finish(fed: Federation) -> None:
    """Submit the only round's updates, and the evaluation before it."""
    judge = fed.members["judge"]
    base = Evaluation(pass_at_1=0.25, by_topic={"say": 0.25}, problems=4, seconds=1.0)
    judge.submit_evaluation(fed.run.id, 0, base)
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)


def test_a_run_is_followed_from_its_start_to_its_end(
    server: Server, coordinator: Coordinator
) -> None:
    """Events arrive as they happen and end with the run; its properties are always current."""
    fed = begun(server, rounds=1)
    run = coordinator.run(fed.run.name)
    assert (run.id, run.name) == (fed.run.id, fed.run.name)
    assert run.id in [each.id for each in coordinator.runs()]
    seen: list[Event] = []
    reader = Thread(target=lambda: seen.extend(run.events()))
    reader.start()
    assert run.state == "training"
    run.pause()
    assert run.show().paused
    run.resume()
    assert not run.show().paused
    finish(fed)
    reader.join(30)
    assert not reader.is_alive()
    assert run.state == "finished"
    kinds = [event.kind for event in seen]
    assert kinds[0] == "created" and "aggregated" in kinds
    assert kinds == [event.kind for event in run.events(follow=False)]


def test_figures_are_flat_records_with_the_same_keys(
    server: Server, coordinator: Coordinator
) -> None:
    """For rounds and members; an unknown value is None."""
    fed = begun(server, rounds=1)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=1, steps=2, reward=0.375))
    finish(fed)
    run = coordinator.run(fed.run.id)
    base, first = run.metrics()
    assert list(base) == list(first)
    assert (base["round"], base["pass@1"], base["pass@1 say"]) == (0, 0.25, 0.25)
    assert (first["round"], first["pass@1"], first["updates"]) == (1, None, 2)
    assert first["drift_pairwise"] == 0.0 and base["drift_pairwise"] is None
    assert isinstance(first["bytes_up"], int) and first["bytes_up"] > 0
    members = run.members()
    a, b = members[:2]
    assert [member["name"] for member in members] == ["a", "b", "judge"]
    assert (a["role"], a["step"], a["reward"]) == ("client", 1, 0.375)
    assert b["step"] is None and list(a) == list(b)
    for record in (base, first, *members):
        assert not [value for value in record.values() if isinstance(value, dict | list)]


def test_an_operator_s_acts_are_a_run_s_methods(server: Server, coordinator: Coordinator) -> None:
    """Invites have a role, a start without clients is refused, and cancelling is final."""
    fed = create(server)
    run = coordinator.run(fed.run.id)
    assert run.state == "created"
    with pytest.raises(WrongState):
        run.start()
    fed.operator.move_run(fed.run.id, "/v1/runs/{run}/open")
    for name, role in (("a", "client"), ("judge", "evaluator")):
        assert fed.operator.enroll(run.invite(name, role)).role is Role(role)
    run.cancel()
    assert run.state == "cancelled"
    with pytest.raises(WrongState):
        run.adapter("never")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_is_a_folder_or_a_model(
    server: Server, coordinator: Coordinator, tmp_path: Path
) -> None:
    """It has exactly the requested round's factors, and nothing is overwritten."""
    import torch
    from transformers import AutoModelForCausalLM

    from pubswap_client.demo.demos import MODEL

    fed = begun(server, rounds=1)
    run = coordinator.run(fed.run.id)
    with pytest.raises(WrongState, match="no final adapter"):
        run.adapter(tmp_path / "early")
    finish(fed)
    folder = run.adapter(str(tmp_path / "out"))
    data = fed.operator.global_adapter(fed.run.id, "1")
    assert (folder / "adapter_model.safetensors").read_bytes() == data
    lora = fed.run.settings.lora.model_dump(exclude_defaults=True, mode="json")
    changes = {"name": "following", **{f"lora.{key}": value for key, value in lora.items()}}
    more = {"data": tmp_path / "split", "initial_adapter": folder}
    following = coordinator.create("tour", set=changes, **more)
    assert fed.operator.global_adapter(following.id, "0") == data
    with pytest.raises(InvalidSettings, match="already exists"):
        run.adapter(folder)
    with pytest.raises(LocalFault, match="cannot be created"):
        run.adapter(folder / "README.md" / "within")
    trained = run.peft(AutoModelForCausalLM.from_pretrained(MODEL)).state_dict()
    untrained = run.peft(AutoModelForCausalLM.from_pretrained(MODEL), round=0).state_dict()
    [*factors] = [name for name in trained if "lora_B" in name]
    adapter = fed.adapter(1)
    assert len(factors) == len([name for name in adapter if "lora_B" in name])
    for name in factors:
        wanted = adapter[name.replace(".default", "")]
        torch.testing.assert_close(trained[name], torch.from_numpy(wanted))
        assert not untrained[name].any()


def test_what_cannot_be_is_refused_with_what_to_do(
    server: Server, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every failure is a PubSwapError, raised before any request where possible."""
    fed = create(server)
    run = coordinator.run(fed.run.id)
    for act, error, said in [
        (lambda: coordinator.run("nowhere"), UnknownRun, None),
        (lambda: coordinator.run("Hospital A"), InvalidSettings, "lowercase letters"),
        (lambda: run.invite("Hospital A"), InvalidSettings, "lowercase letters"),
        (lambda: run.invite("a", "owner"), InvalidSettings, "client or evaluator"),
        (lambda: coordinator.create("toor"), InvalidSettings, "tour"),
        (lambda: coordinator.create("tour", set={"clints": 2}), InvalidSettings, "clients"),
        (lambda: runs(server.url, "wrong"), Unauthenticated, None),
        (lambda: runs("http://127.0.0.1:1", "token"), Unreachable, "Is it running"),
        (lambda: Coordinator("host:8470", "token"), InvalidSettings, "https://host:8470"),
        (
            lambda: Coordinator("https://host", "token", ca_file=tmp_path / "no.pem"),
            InvalidSettings,
            "no.pem",
        ),
    ]:
        with pytest.raises(error, match=said) as caught:
            act()
        assert isinstance(caught.value, PubSwapError)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUBSWAP_OPERATOR_TOKEN", raising=False)
    with pytest.raises(InvalidSettings, match="operator-token"):
        Coordinator()


def runs(url: str, token: str) -> list[Run]:
    with Coordinator(url, token) as coordinator:
        return coordinator.runs()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> Iterator[None]:
    """The environment that the operator's commands read."""
    (tmp_path / "token").write_text(OPERATOR_TOKEN)
    monkeypatch.delenv("PUBSWAP_OPERATOR_TOKEN", raising=False)
    monkeypatch.setenv("PUBSWAP_COORDINATOR", server.url)
    monkeypatch.setenv("PUBSWAP_OPERATOR_TOKEN_FILE", str(tmp_path / "token"))
    yield


@pytest.mark.usefixtures("environment")
def test_address_and_token_come_from_where_the_commands_look(tmp_path: Path) -> None:
    """So no notebook has to hold or show a token."""
    with Coordinator() as coordinator:
        settings = {"name": "from-python", "clients": 1}
        made = coordinator.create("tour", data=tmp_path / "split", set=settings)
        assert made.state == "open"
        assert made.show().settings.clients == 1
    assert len(list((tmp_path / "split").glob("client-*.jsonl"))) == 1
    assert repr(made) == f"Run('from-python', {made.id!r})"
    assert OPERATOR_TOKEN not in repr(coordinator)
