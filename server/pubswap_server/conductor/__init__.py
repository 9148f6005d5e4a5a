"""Background work: close and average rounds, keep the stores clean."""
