"""A public step: its prompts, the verdicts on responses, and each client's groups of them."""
