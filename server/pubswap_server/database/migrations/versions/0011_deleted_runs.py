"""A run's log goes with the run, when that is deleted, and not otherwise."""

from alembic import op

revision = "0011"
down_revision = "0010"

_REFUSAL = "events are append-only"
_KEPT = "(SELECT state FROM runs WHERE id = OLD.run_id)"


def upgrade() -> None:
    """Make the triggers anew: an event may be deleted once its run says `deleted`."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER events_no_delete")
        op.execute(
            f"CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
            f"WHEN {_KEPT} IS NOT 'deleted' BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        )
        return
    op.execute("DROP TRIGGER events_append_only ON events")
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION events_refuse_change()"
    )
    op.execute(
        "CREATE FUNCTION events_refuse_delete() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {_KEPT} = 'deleted' THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION events_refuse_delete()"
    )
