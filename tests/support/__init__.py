"""Real processes and servers that tests share."""
