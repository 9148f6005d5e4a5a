"""The only code that talks to a coordinator: requests, transfers, retries, TLS."""
