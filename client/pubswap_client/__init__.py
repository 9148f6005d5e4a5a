"""The organisation's side: the daemon, the evaluator, and the operator's commands over HTTP."""

import os

# Make results independent of a tensor's memory alignment, on which MKL's rounding otherwise depends
# on some CPUs (AMD with AVX-512). MKL reads this at its first product. A user's value takes
# precedence.
os.environ.setdefault("MKL_CBWR", "AUTO")
