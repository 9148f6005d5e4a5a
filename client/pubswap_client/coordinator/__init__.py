"""The only code that speaks to a coordinator: requests, transfers, retries, TLS."""
