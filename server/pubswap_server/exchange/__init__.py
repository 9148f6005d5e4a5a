"""A public step: its prompts, the verdicts on responses, and who trains on which."""
