"""Local GRPO training: the objective, the update, and the trainer that makes the steps."""
