"""The model with its adapter: tokens in, log-probabilities out."""
