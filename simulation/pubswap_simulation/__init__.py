"""The researcher's side: whole federations simulated on one machine, and their results."""
