"""Pictures of one comparison: final pass@1, curves over steps, topics."""
