import numpy as np
import pytest

from benchmarks.coordination.payload import Payload, error, shapes, tensors
from benchmarks.peers.outcome import PeerOutcome


@pytest.mark.parametrize("megabytes", [1, 35, 140])
def test_an_adapter_has_392_tensors_of_the_wanted_size_in_all(megabytes):
    """28 layers x 7 modules x (A, B), within 3 % of the bytes that were asked for."""
    found = shapes(megabytes)
    assert len(found) == 392
    assert list(found) == sorted(found)
    numbers = sum(rows * columns for rows, columns in found.values())
    assert 4 * numbers == pytest.approx(megabytes * 1e6, rel=0.03)
    assert all(16 in shape for shape in found.values())


def test_one_wrong_number_of_a_mean_is_seen(tmp_path):
    """The error is the largest difference of any of the 392 tensors."""
    payload = Payload(0.5, 3, tmp_path).write()
    mean = np.load(payload.mean)
    drawn = [np.load(payload.update(client)) for client in range(3)]
    found = tensors(np.mean(drawn, axis=0), 0.5)
    assert error(found, mean, 0.5) < 1e-6
    list(found.values())[200][-1, -1] += 0.25
    assert error(found, mean, 0.5) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize(
    ("warm_up", "rounds", "unfinished", "seconds", "is_lower_bound"),
    [
        (9.0, [4.0, 6.0, 5.0], None, 5.0, False),
        (9.0, [4.0], 100.0, 4.0, False),
        (200.0, [], 150.0, 200.0, True),
        (None, [], 600.0, 600.0, True),
        (None, [], None, None, True),
    ],
)
def test_a_peer_that_ran_out_of_time_is_counted_by_its_longest_wait(
    warm_up, rounds, unfinished, seconds, is_lower_bound
):
    """Finished rounds go first; without one, the figure is said to be a bound."""
    outcome = PeerOutcome(warm_up, rounds, unfinished, checked=None, bytes_each_way=None)
    assert outcome.seconds == seconds
    assert outcome.is_lower_bound is is_lower_bound
    assert outcome.entry()["seconds"] == seconds
