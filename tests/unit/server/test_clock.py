"""The server's clock, against a wall clock that jumps."""

from datetime import UTC, datetime, timedelta, timezone

from pubswap_server.clock import Clock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Machine:
    """A wall clock that can be set, and a monotonic clock."""

    def __init__(self) -> None:
        self.wall, self.steady = NOON, 100.0

    def pass_by(self, seconds: float) -> None:
        """Advance both clocks."""
        self.wall += timedelta(seconds=seconds)
        self.steady += seconds

    def clock(self) -> Clock:
        """A server's clock on this machine."""
        return Clock(lambda: self.steady, lambda: self.wall)


def test_a_jump_of_the_wall_clock_changes_nothing() -> None:
    """After a jump of a day, forward or back, only the seconds that really passed count."""
    machine = Machine()
    clock = machine.clock()
    for jump in (timedelta(days=1), -timedelta(days=2)):
        before = clock.now()
        machine.wall += jump
        assert clock.now() == before
        machine.pass_by(30)
        assert clock.now() == before + timedelta(seconds=30)


def test_replicas_that_are_set_alike_show_the_same() -> None:
    """Two machines whose own clocks are hours apart agree once both are set by a third."""
    one, other = Machine(), Machine()
    other.wall += timedelta(hours=5)
    other.steady = 7.0
    clocks = [one.clock(), other.clock()]
    for clock in clocks:
        clock.set(NOON)
    one.pass_by(60)
    other.pass_by(60)
    assert [clock.now() for clock in clocks] == [NOON + timedelta(minutes=1)] * 2


def test_processes_of_one_machine_hand_their_clock_on() -> None:
    """Its reading at some moment is enough, however long the transfer takes."""
    machine = Machine()
    parent = machine.clock()
    handed_on = (parent.now(), machine.steady)
    machine.pass_by(3)
    machine.wall += timedelta(days=1)
    child = machine.clock()
    child.set(*handed_on)
    assert child.now() == parent.now()


def test_a_clock_is_set_ahead_but_not_back() -> None:
    """Times recorded by an earlier process are not in the future for a later one."""
    machine = Machine()
    clock = machine.clock()
    clock.advance_to(None)
    clock.advance_to(NOON - timedelta(days=1))
    assert clock.now() == NOON
    clock.advance_to(NOON + timedelta(days=1))
    machine.pass_by(2)
    assert clock.now() == NOON + timedelta(days=1, seconds=2)


def test_a_clock_that_is_set_by_another_zones_shows_utc() -> None:
    """PostgreSQL answers in the zone of its session."""
    machine = Machine()
    clock = machine.clock()
    clock.set(NOON.astimezone(timezone(timedelta(hours=9))))
    machine.pass_by(1)
    assert clock.now().isoformat() == "2026-01-01T12:00:01+00:00"
