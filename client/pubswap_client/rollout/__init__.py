"""Rollout engines: responses sampled from the policy, by transformers or vLLM."""
