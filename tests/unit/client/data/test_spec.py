"""The specification of a split."""

from pathlib import Path
from typing import Any

import pytest

from pubswap_client.data.spec import DataSpec, SplitSizes, load_spec
from pubswap_protocol.errors import InvalidSettings


@pytest.mark.parametrize(
    ("source", "sizes", "total"),
    [
        ("math", SplitSizes(2500, 1250, 1250), 12_500),
        ("deepmath", SplitSizes(4000, 3000, 1000), 20_000),
        ("medical", SplitSizes(3956, 1977, 1977), 19_778),
    ],
)
def test_the_papers_sizes_are_the_defaults(source: Any, sizes: SplitSizes, total: int) -> None:
    """Naming a source alone gives the paper's four clients and its sizes."""
    spec = DataSpec(source=source)
    assert (spec.clients, spec.alpha, spec.sizes()) == (4, 0.3, sizes)
    assert spec.sizes().total(spec.clients) == total


def test_other_numbers_of_clients_share_the_same_private_problems() -> None:
    """Missing sizes follow from the paper's total; given ones are kept."""
    assert DataSpec(source="math", clients=8).sizes() == SplitSizes(1250, 1250, 1250)
    assert DataSpec(source="math", private_size=7, test_size=5).sizes() == SplitSizes(7, 1250, 5)


def test_a_jsonl_is_divided_in_shares() -> None:
    """Without sizes, 80, 10 and 10 per cent of a file's problems go to the private, public and test
    sets.
    """
    spec = DataSpec(source="jsonl", from_=Path("x.jsonl"))
    assert spec.sizes(1000) == SplitSizes(200, 100, 100)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"source": "maths"}, "source"),
        ({"source": "math", "alpha": 0}, "alpha"),
        ({"source": "math", "alpha": -0.3}, "alpha"),
        ({"source": "math", "alpha": float("inf")}, "alpha"),
        ({"source": "math", "clients": 0}, "clients"),
        ({"source": "math", "private_size": 0}, "private_size"),
        ({"source": "math", "seed": -1}, "seed"),
        ({"source": "math", "shards": 3}, "shards"),
        ({"source": "jsonl", "from": "x", "topic_column": "x"}, "topic_column: there is no such"),
        ({"source": "math", "verifier": "exact"}, "verifier is not for math"),
        ({"source": "jsonl"}, "from is needed"),
    ],
)
def test_what_is_not_possible_is_refused_with_its_key(values: dict[str, Any], named: str) -> None:
    """The message names keys that are unknown or of another source, and keys with values out of
    range.
    """
    with pytest.raises(InvalidSettings, match=named):
        load_spec(values)
