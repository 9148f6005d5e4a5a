"""A public step, from the last submission's first byte to the last client's whole reply."""

from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

from coordination.donor import Donor
from coordination.fleet import MeasuredFleet
from coordination.serving import opened, seated, serving, start
from coordination.telling import Tell

VERIFIERS = ("choice", "exact")
SIZES, QUICK_SIZES = (4, 64), (2,)
REPEATS, QUICK_REPEATS = 5, 2
GRPO = {"prompts_per_step": 8, "responses_per_prompt": 8, "max_response_tokens": 2048}


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Seconds of each exchange after a warm-up."""
    return {
        str(clients): {
            verifier: _exchanges(
                clients, verifier, QUICK_REPEATS if quick else REPEATS, scratch, tell
            )
            for verifier in VERIFIERS
        }
        for clients in (QUICK_SIZES if quick else SIZES)
    }


def _exchanges(
    clients: int, verifier: str, repeats: int, scratch: Path, tell: Tell
) -> dict[str, Any]:
    folder = scratch / f"exchange-{clients}-{verifier}"
    public_steps = 1 + repeats
    steps = {"local_steps": public_steps, "method": {"period": 1, "deadline_seconds": 3600}}
    seconds, went = [], None
    with serving(folder) as coordinator:
        run = opened(
            coordinator,
            1,
            method="pubswap",
            verifier=verifier,
            clients=clients,
            grpo=GRPO,
            **steps,
        )
        makers = [partial(Donor, seat, run, n) for n, seat in enumerate(seated(coordinator, run))]
        with MeasuredFleet(makers) as fleet:
            start(coordinator, run)
            for public_step in range(1, 1 + public_steps):
                tell(f"{clients} clients: exchange by {verifier}, {public_step} of {public_steps}")
                went = fleet.race(public_step)
                (sent,) = (one["sent"] for one in went.measured if one["sent"])
                seconds.append(max(went.through) - sent)
                fleet.check()
    rmtree(folder)
    return {
        "seconds": seconds[1:],
        "median": median(seconds[1:]),
        "warm_up": seconds[0],
        "bytes_up": went.measured[0]["up"] if went else 0,
        "bytes_down": went.measured[0]["down"] if went else 0,
    }


def figures(sizes: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The slower verifier's median, by number of clients."""
    return {
        "exchange_seconds": {
            clients: max(entry["median"] for entry in by_verifier.values())
            for clients, by_verifier in sizes.items()
            if isinstance(by_verifier, dict)
        }
    }
