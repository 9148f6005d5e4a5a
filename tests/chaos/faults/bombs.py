"""Answers that no verifier gets through, beside honest members on a real coordinator.

In every second attack the coordinator is killed while it verifies, and started again.
"""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil

from pubswap_client.demo.processes import free_port
from support.client.answers import BOMBS, answers, exchange_seconds, honest
from support.coordinator.coordinator import Federation, begun
from support.coordinator.serving import Serving

SETTINGS: dict[str, Any] = {
    "verifier": "math",
    "grpo": {"prompts_per_step": 4, "responses_per_prompt": 8, "max_response_tokens": 64},
}
MORE_SECONDS = 2.0  # that an honest member may wait beside bombs
GROWTH_BYTES = 128 << 20  # of the coordinator's own process, over all attacks
ENVIRONMENT = {
    "PUBSWAP_MEMBER_REQUESTS_PER_SECOND": "5000",
    "PUBSWAP_VERIFIER_SECONDS": "1",
}


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Send `count` submissions of bombs, each of a kind or of all kinds, and judge the others.

    `more_seconds` is the longest that honest members of another run waited more than without. On a
    machine that is busy with something else, they may wait twice as long as without.
    """
    random, broken, more, grown = Random(seed), [], 0.0, 0
    with _serving(folder) as service:
        service.wait_until_ready()
        _exchange(begun(service.server, **SETTINGS))  # its processes start with this one
        first = _bytes(service)
        for number in range(count):
            without = _exchange(begun(service.server, **SETTINGS))
            kinds = [random.choice(BOMBS)] if number % 3 else list(BOMBS)
            hostile = begun(service.server, **SETTINGS)
            own = answers(hostile, "b", honest)
            _send(
                hostile, "a", answers(hostile, "a", lambda k, _, kinds=kinds: kinds[k % len(kinds)])
            )  # type: ignore[misc]
            beside = _exchange(begun(service.server, **SETTINGS))
            more = max(more, beside - without)
            if beside > without + max(MORE_SECONDS, without):
                broken.append(f"{kinds}: honest members waited {beside:.1f} s, not {without:.1f}")
            _send(hostile, "b", own)
            grown = max(grown, _bytes(service) - first)
            if number % 2 == 0:
                service.process.kill()
                service.process.wait()
                service.start()
                service.wait_until_ready()
                first = _bytes(service)
            broken += _judged(hostile)
            progress(number + 1)
        if grown > GROWTH_BYTES:
            broken.append(f"the coordinator grew by {grown >> 20} MiB")
    return {
        "tried": count,
        "lost": len(broken),
        "more_seconds": round(more, 2),
        "grown_mib": grown >> 20,
        "broken": broken[:20],
    }


def _serving(folder: Path) -> Serving:
    url = f"sqlite:///{folder / 'data' / 'pubswap.sqlite'}"
    return Serving(folder, url, free_port(), env=ENVIRONMENT)


def _exchange(fed: Federation) -> float:
    return exchange_seconds(fed, "ab", {name: answers(fed, name, honest) for name in "ab"})


def _send(fed: Federation, name: str, body: bytes) -> None:
    began = time.monotonic()
    fed.members[name].submit_responses(fed.run.id, 1, 1, body)
    assert time.monotonic() - began < MORE_SECONDS * 5, "the receipt waited for the verifier"


def _judged(fed: Federation) -> list[str]:
    """What is wrong with the exchange that the bombs were in."""
    fed.members["b"].exchanged(fed.run.id, 1, 1)
    (public_step,) = fed.view().rounds[1].public_steps
    expected = {"a": 0.0, "b": 0.5}
    return (
        [] if public_step.correct_share == expected else [f"verdicts {public_step.correct_share}"]
    )


def _bytes(service: Serving) -> int:
    found: int = psutil.Process(service.process.pid).memory_info().rss
    return found
