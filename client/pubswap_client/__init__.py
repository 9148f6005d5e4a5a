"""The organisation's side: the daemon, the evaluator, and the operator's commands over HTTP."""

import os

# Equal bits wherever a tensor lies in memory: by itself, MKL rounds by alignment on some CPUs (AMD
# with AVX-512). It is read at the first product; whoever has set it knows why.
os.environ.setdefault("MKL_CBWR", "AUTO")
