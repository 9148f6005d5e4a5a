"""The ledger: every request to the coordinator, recorded before it is sent."""
