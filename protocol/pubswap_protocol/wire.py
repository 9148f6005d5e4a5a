"""An update on the wire: the whole adapter in float32, or its difference to the round's start.

With d = theta_n - theta_round + e, e being what earlier updates of this client left out:

    bfloat16   Q(d) = d rounded to the nearest bfloat16, ties to even
    int8       Q(d) = s q, q = round(d / s) in -127..127, s = max |d| / 127

with one s for each of the rank's r directions: a row of A (r, in), a column of B (out, r). So the
scales cost 4 / max(in, out) of the file, where a scale for each row of B would cost 4 / r of it.
The client keeps e' = d - Q(d) for its next update: what is sent, summed over the rounds, never
strays from the true sum by more than one step of the quantisation (error feedback, Seide et al.
2014; Karimireddy et al. 2019).

A reduced file is canonical, and refused otherwise: the tensors `NAME` (BF16 or I8) and, for int8,
`NAME.scale` (F32), those of the widest dtype first and then by name, under one header.
"""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.adapter import Adapter, AdapterFile, AdapterLayout, Array, encode_adapter
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.settings import Precision
from pubswap_protocol.tensors import (
    DTYPE_BYTES,
    MAX_HEADER_BYTES,
    TensorSpec,
    header_length,
    parse_header,
)
