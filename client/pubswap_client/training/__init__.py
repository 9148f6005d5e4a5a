"""Local GRPO training: the objective, the update, and the trainer that runs the steps."""
