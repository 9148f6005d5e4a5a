"""The schema of the first release. A new database gets the tables of today, and no migration.

Checkouts from before it had 0001 to 0009, which are refused as unknown.
"""

revision = "0010"
down_revision = None
