"""The HTTP interface: thin routes, one file for each group."""
