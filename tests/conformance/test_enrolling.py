"""Enrolling never loses the member's token, whatever interrupts it."""

import os
import signal
from pathlib import Path

import pytest

from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.organisation import enrolling
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import load_membership, membership_path
from pubswap_protocol import paths
from pubswap_protocol.errors import (
    HelloNeeded,
    InviteExpired,
    InviteUsed,
    NotSaved,
    StateInUse,
    Unauthenticated,
    WrongState,
)
from pubswap_protocol.messages import CreateInvite, Reissue
from support.chaos.small_disk import missing, read_only, small_disk
from support.coordinator.coordinator import Federation, Server, begun, create, good_hello
from support.coordinator.places import on_sqlite

needs_mounts = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def enroll(fed: Federation, invite: str, state: Path) -> str:
    """Enrol into a folder; returns the token saved there."""
    enrolling.enroll(fed.server.url, invite, state, TlsFiles())
    return load_membership(state).membership.token


def invited(fed: Federation, name: str) -> str:
    """Invite a member; returns the invite's code."""
    return fed.operator.invite(fed.run.id, CreateInvite(name=name)).invite


@needs_mounts
@on_sqlite
def test_an_invite_is_not_spent_where_its_token_cannot_be_kept(
    server: Server, tmp_path: Path
) -> None:
    """After a failure on a read-only or full folder, it still enrols elsewhere."""
    fed = create(server)
    code = invited(fed, "a")
    with read_only(tmp_path / "read-only") as folder, pytest.raises(OSError, match="Read-only"):
        enroll(fed, code, folder / "state")
    with small_disk(tmp_path / "full", 1 << 20) as disk:
        (disk.folder / "state").mkdir()
        disk.fill()
        with pytest.raises(NotSaved):
            enroll(fed, code, disk.folder / "state")
    assert enroll(fed, code, tmp_path / "state")


@on_sqlite
def test_a_folder_that_is_in_use_or_holds_a_membership_is_left_alone(
    server: Server, tmp_path: Path
) -> None:
    """The error names the run and what to do, and the invite is not spent."""
    fed, other = create(server), create(server)
    state = tmp_path / "state"
    enroll(fed, invited(fed, "a"), state)
    before, code = membership_path(state).read_bytes(), invited(other, "b")
    with pytest.raises(StateInUse, match=f"a in run {fed.run.name}.*--state"):
        enroll(other, code, state)
    assert membership_path(state).read_bytes() == before
    busy = tmp_path / "busy"
    busy.mkdir()
    with locked(busy), pytest.raises(StateInUse):
        enroll(other, code, busy)
    assert enroll(other, code, tmp_path / "free")


@on_sqlite
@pytest.mark.parametrize("end", ["killed", "not saved"])
def test_the_same_command_again_gets_the_token_that_was_not_saved(
    server: Server, tmp_path: Path, end: str
) -> None:
    """A process that dies between spending the invite and saving the token loses nothing."""
    fed = create(server)
    code, state = invited(fed, "a"), tmp_path / "state"

    def no_disk(*_: object) -> None:
        raise NotSaved("The disk is full.")

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        enrolling.save_membership = no_disk if end == "not saved" else killed  # type: ignore[assignment]
        try:
            enroll(fed, code, state)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == (9 if end == "killed" else 1 << 8)
    assert [member.name for member in fed.view().members] == ["a"]  # spent
    assert not membership_path(state).exists()
    with pytest.raises(InviteUsed):
        enroll(fed, code, tmp_path / "another's folder")
    token = enroll(fed, code, state)
    assert server.client(token).run(fed.run.id).id == fed.run.id
    assert {path.name for path in state.iterdir()} == {"ledger", "lock", "membership.json"}


@on_sqlite
def test_a_reissued_member_goes_on_under_its_name(server: Server, tmp_path: Path) -> None:
    """The old token works until the new invite is used; the member's update still counts."""
    fed = begun(server)
    assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
    unused, code = (fed.operator.reissue(fed.run.id, "a", Reissue()).invite for _ in range(2))
    assert fed.members["a"].task(fed.run.id, 0).round == 1
    with pytest.raises(InviteExpired):
        enroll(fed, unused, tmp_path / "state")
    token = enroll(fed, code, tmp_path / "state")
    with pytest.raises(Unauthenticated):
        fed.members["a"].task(fed.run.id, 0)
    reissued = server.client(token)
    with pytest.raises(HelloNeeded):
        reissued.task(fed.run.id, 0)
    reissued.hello(fed.run.id, good_hello(fed.run))
    assert reissued.task(fed.run.id, 0).kind == "wait"  # its update has arrived
    assert [member.name for member in fed.view().members] == ["a", "b", "judge"]
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    assert (kinds.count("reissued"), kinds.count("enrolled")) == (2, 4)


@on_sqlite
def test_a_revoked_member_stays_revoked(server: Server, tmp_path: Path) -> None:
    """Reissuing is refused, and an invite reissued earlier no longer works."""
    fed = begun(server)
    code = fed.operator.reissue(fed.run.id, "a", Reissue()).invite
    fed.operator.revoke(fed.run.id, "a")
    with pytest.raises(WrongState):
        fed.operator.reissue(fed.run.id, "a", Reissue())
    with pytest.raises(WrongState):
        enroll(fed, code, tmp_path / "state")


@on_sqlite
def test_a_suspended_member_that_was_reissued_stays_suspended(
    server: Server, tmp_path: Path
) -> None:
    """So a stolen token can be blocked right away and replaced later."""
    fed = begun(server)
    fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_SUSPEND)
    code = fed.operator.reissue(fed.run.id, "a", Reissue()).invite
    token = enroll(fed, code, tmp_path / "state")
    assert next(m for m in fed.view().members if m.name == "a").suspended
    fed.operator.decide(fed.run.id, "a", paths.RUN_MEMBER_REINSTATE)
    reissued = server.client(token)
    reissued.hello(fed.run.id, good_hello(fed.run))
    assert reissued.task(fed.run.id, 0).kind == "train"
