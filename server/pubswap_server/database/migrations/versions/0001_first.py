"""The schema of the first release. A new database gets the tables of today, and no migration."""

revision = "0001"
down_revision = None
