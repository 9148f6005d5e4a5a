"""A coordinator whose verifiers have changed since its members said hello."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pubswap_protocol.errors import Conflict, HelloNeeded
from pubswap_protocol.verifiers import registry
from pubswap_server.runs.runs import ask_again
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import (
    Federation,
    Server,
    begun,
    good_hello,
    serving,
    settings_for,
)


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> ServerSettings:
    """The settings of a coordinator that is stopped and restarted."""
    return settings_for(tmp_path).model_copy(update={"database_url": database_url})


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that moves the verifiers to their next version."""
    return lambda: monkeypatch.setattr(registry, "_RULES", registry._RULES + 1)


def test_an_upgraded_coordinator_asks_every_member_for_another_hello(
    settings: ServerSettings, upgraded: Callable[[], None]
) -> None:
    """Evaluators, too; and the log names the run's new verifier version."""
    with serving(settings) as server, server.closing:
        fed = begun(server, method="fedavg")
        old = good_hello(fed.run)
        fed.submit("a", 1, fed.adapter(1))
    upgraded()
    with serving(settings) as server, server.closing:
        now = Federation(server, fed.run, server.client(), tokens=fed.tokens)
        for name, token in fed.tokens.items():
            api = now.members[name] = server.client(token)
            with pytest.raises(HelloNeeded):
                api.task(fed.run.id, 0)
            with pytest.raises(Conflict, match="exact@"):
                api.hello(fed.run.id, old)
            api.hello(fed.run.id, good_hello(fed.run))
        assert now.members["judge"].task(fed.run.id, 0).kind == "evaluate"
        assert now.members["a"].task(fed.run.id, 0).kind == "wait"  # its update has arrived
        assert now.submit("b", 1, now.adapter(2)) == "accepted"
        now.wait_for(1)
        events = now.operator.events(fed.run.id).events
    (changed,) = (event for event in events if event.kind == "verifier changed")
    assert changed.details == {
        "before": old.verifier_version,
        "now": good_hello(fed.run).verifier_version,
    }


def test_a_restart_with_the_same_rules_asks_for_no_hello(settings: ServerSettings) -> None:
    """Nor does it log an event."""
    with serving(settings) as server, server.closing:
        fed = begun(server)
    with serving(settings) as server, server.closing:
        assert server.client(fed.tokens["a"]).task(fed.run.id, 0).kind == "train"
        kinds = {event.kind for event in server.client().events(fed.run.id).events}
        assert "verifier changed" not in kinds


def test_a_member_says_its_hello_again_when_it_is_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same verifier version it goes on; otherwise the error names both versions."""
    fed = begun(server)
    api, same = fed.members["judge"], registry._RULES
    api.hello(fed.run.id, good_hello(fed.run))

    def start(rules: int) -> None:
        monkeypatch.setattr(registry, "_RULES", rules)
        server.do(server.app.state.services.database.write(ask_again))

    start(same + 1)
    start(same)
    assert api.task(fed.run.id, 0).kind == "evaluate"
    start(same + 1)
    with pytest.raises(Conflict, match=rf"exact@{same + 1}, yours is exact@{same};") as refused:
        api.task(fed.run.id, 0)
    assert refused.type is Conflict
