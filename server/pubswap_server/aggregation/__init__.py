"""From the clients' adapters of a closed round to its global adapter, slice by slice.

Memory does not grow with the number of clients: every pass reads slices that are the narrower the
more clients there are, though a row of a tensor is never cut. Only the mean of products
(truncation.py) has all clients' factors of a module in memory. Everything is summed in the order of
the clients' names.
"""
