"""The HTTP layer: request checks, routes, responses and errors."""
