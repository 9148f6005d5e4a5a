"""Timestamps in the database, from any time zone."""

from datetime import UTC, datetime, timedelta, timezone

from sqlalchemy import Column, MetaData, Table, create_engine, insert, select

from pubswap_server.database.tables import UtcDateTime

TOKYO = timezone(timedelta(hours=9))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_moment_of_another_zone_is_read_back_as_the_same_in_utc(database_url: str) -> None:
    """Comparisons use the same moment."""
    moments = Table("moments", MetaData(), Column("at", UtcDateTime))
    engine = create_engine(database_url)
    with engine.begin() as connection:
        moments.create(connection)
        connection.execute(insert(moments), {"at": NOON.astimezone(TOKYO)})
        found = connection.scalar(select(moments.c.at).where(moments.c.at < NOON + timedelta(1)))
        assert found is not None
        assert found.isoformat() == "2026-01-01T12:00:00+00:00"
        later = select(moments.c.at).where(moments.c.at > NOON)
        assert connection.scalar(later) is None
    engine.dispose()
