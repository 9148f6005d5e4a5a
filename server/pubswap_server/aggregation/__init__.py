"""Aggregation: what becomes of the clients' adapters when a round closes.

    updates.py           what goes in
    shares.py            what part of the mean a client has
    slices.py            rows of tensors, a few at a time
    rule.py              the interface of a rule
    fedit.py, robust.py, krum.py
                         the rules
    gram.py              inner products between clients: drift, norms, distances
    clipping.py          updates with bounded norms
    server_optimizer.py  momentum, Adam and Yogi on the averaged update
    stacking.py          exact sums of LoRA products: FedEx-LoRA's residual, and exports
    means.py             a rule applied to updates, slice by slice
    optimized.py         the files of a server optimizer
    choosing.py          which rule a round takes
    round.py             one round, from the updates to the blobs

Memory does not grow with the number of clients: every pass reads slices that are the narrower the
more clients there are, though a row of a tensor is never cut. Everything is summed in the order of
the clients' names.
"""
