"""The HTTP API: thin routes, one module per group."""
