"""A run's terms: made once when it is opened, and never written anew."""

import json
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import OtherTerms
from pubswap_protocol.messages import ChangeRun, CreateInvite, Role, SetKind
from pubswap_protocol.terms import agreed, differences, read_terms
from pubswap_server.database.tables import RunRow
from support.coordinator.coordinator import Federation, Server, create, serving, settings_for


def terms(fed: Federation, name: str = "a") -> str:
    """A run's terms, as a member gets them."""
    found = fed.members[name].run(fed.run.id).terms
    assert found is not None
    return found


def opened(server: Server) -> Federation:
    """A run that is open, with a client and an evaluator."""
    fed = create(server, clients=2)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.enroll("a")
    fed.enroll("judge", Role.EVALUATOR)
    return fed


def test_members_get_the_terms_from_the_opening_on(server: Server) -> None:
    """They say what the run's view says, and name the public set by its digest."""
    fed = create(server, clients=2)
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="early"))
    early = server.client(fed.operator.enroll(invite.invite).token)
    assert early.run(fed.run.id).terms is None
    with pytest.raises(OtherTerms, match="wait until its operator has opened it"):
        agreed(early.run(fed.run.id))
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.members["early"] = early
    fed.enroll("a")
    fed.enroll("judge", Role.EVALUATOR)
    assert terms(fed) == terms(fed, "early") == terms(fed, "judge")
    view = fed.members["a"].run(fed.run.id)
    assert agreed(view) == view
    public = fed.members["a"].problem_set(fed.run.id, SetKind.PUBLIC)
    assert read_terms(terms(fed)).public == digest_of(public.data)
    assert fed.operator.run(fed.run.id).terms is None  # only its members approve
    assert {each.terms for each in fed.operator.runs()} == {None}


def test_another_number_of_clients_changes_that_line_alone(server: Server) -> None:
    """It is the only change there is, and only before the start."""
    fed = opened(server)
    before = terms(fed)
    fed.operator.change_run(fed.run.id, ChangeRun(clients=2))
    assert terms(fed) == before
    fed.operator.change_run(fed.run.id, ChangeRun(clients=1))
    fewer = terms(fed)
    assert differences(before, fewer) == {"clients": ("2", "1")}
    view = fed.members["a"].run(fed.run.id)
    assert (agreed(view), view.settings.clients) == (view, 1)
    fed.start()
    for path in (paths.RUN_PAUSE, paths.RUN_RESUME, paths.RUN_CANCEL):
        fed.operator.move_run(fed.run.id, path)
        assert terms(fed) == fewer


def test_an_upgraded_coordinator_writes_no_terms_anew(tmp_path: Path, database_url: str) -> None:
    """Terms of a version that had no `resample` stay without it, also with fewer clients."""
    settings = settings_for(tmp_path).model_copy(update={"database_url": database_url})
    with serving(settings) as server, server.closing:
        fed = opened(server)
        values = json.loads(terms(fed))
        del values["settings"]["grpo"]["resample"]
        older = json.dumps(values, separators=(",", ":"))

        def store(session: Session) -> None:
            session.execute(update(RunRow).where(RunRow.id == fed.run.id).values(terms=older))

        server.do(server.app.state.services.database.write(store))
    with serving(settings) as server, server.closing:
        again = Federation(server, fed.run, server.client(), tokens=fed.tokens)
        again.members["a"] = server.client(fed.tokens["a"])
        assert terms(again) == older
        assert agreed(again.members["a"].run(fed.run.id)).settings == fed.run.settings
        again.operator.change_run(fed.run.id, ChangeRun(clients=1))
        assert differences(older, terms(again)) == {"clients": ("2", "1")}
        assert "resample" not in terms(again)
