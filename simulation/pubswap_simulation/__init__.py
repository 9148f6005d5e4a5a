"""The researcher's side: whole federations on one machine, and what they came to."""
