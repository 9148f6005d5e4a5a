"""What an organisation allows a run, a person's approval, and the ledger of what was sent."""
