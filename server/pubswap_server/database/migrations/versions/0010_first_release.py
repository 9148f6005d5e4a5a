"""The schema of the first release. A new database gets the current tables without migrations.

Earlier checkouts had 0001 to 0009, which are refused as unknown.
"""

revision = "0010"
down_revision = None
