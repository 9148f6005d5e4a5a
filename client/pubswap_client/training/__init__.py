"""Local GRPO training: policy, rollout, update. The only package that imports torch."""
