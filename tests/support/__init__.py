"""Real processes, servers and helpers shared by the tests."""
