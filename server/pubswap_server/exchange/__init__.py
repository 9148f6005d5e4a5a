"""Public steps: prompts, verdicts on responses, and each client's groups of responses."""
