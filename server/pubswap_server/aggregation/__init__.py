"""Aggregation of the clients' adapters of a closed round into its global adapter, slice by slice.

Memory does not grow with the number of clients, because slices get narrower the more clients there
are. A row of a tensor is never cut, however. Only the mean of products (truncation.py) has all
clients' factors of a module in memory. Everything is summed in the order of the clients' names.
"""
