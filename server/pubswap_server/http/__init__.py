"""Everything that knows HTTP: requests checked, answers and refusals made."""
