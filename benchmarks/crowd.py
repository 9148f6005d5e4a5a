"""Whole rounds of up to 1,000 members: public steps, uploads, heartbeats, long polls.

Each member has a connection of its own, and reports the evidence on its donors. A few threads send
for all members. Whatever members wait for is a long poll on one event loop, one for each member.
Meanwhile one thread sends heartbeats for one member after another and times the replies.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self

import httpx
import numpy as np
from coordination.serving import LETTERS, Seat
from safetensors.numpy import load

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.draws import response_seed
from pubswap_protocol.messages import (
    DonorEvidence,
    Progress,
    RunView,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import initial_file
from pubswap_protocol.tensors.responses import NOBODY, Response, encode_responses

STEPS = 4  # all of them public
PROMPTS, RESPONSES, TOKENS = 8, 8, 32
THREADS = 16
# Members that share a pool of connections; a pool looks at all of its connections at each request.
POOL = 16
BEAT_SECONDS = 0.1
HONEST = -3.0  # nats of evidence for each response of an honest donor
Until = Callable[[httpx.Response], bool]


class MeasuredCrowd:
    """All members of a run, each with its connection, until the block ends."""

    def __init__(self, seats: Sequence[Seat], run: RunView) -> None:
        self._run = run
        self._seats = seats
        self._clients = [CoordinatorClient(s.url, s.token, Backoff(tries=5)) for s in seats]
        self._waits = Waits()
        self._tokenizer = load_tokenizer((MODEL / "tokenizer.json").read_bytes())
        self._groups: dict[tuple[int, int, bool], list[list[Response]]] = {}
        self._gifts = [Counter[int]() for _ in seats]  # by the donor's number, in this round
        self._making = threading.Lock()
        self.beats: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.__exit__()
        self._waits.close()

    def round(self, number: int) -> None:
        """Run a round of all members, until they get the next round's task."""
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over, number))
        beating.start()
        try:
            for public_step in range(1, 1 + STEPS):
                self._all(partial(self._answer, number, public_step))
                self._receive(number, public_step)
            self._all(partial(self._hand_in, number))
            path = paths.TASK.format(run=self._run.id)
            self._waits.all(self._seats, path, lambda reply: reply.json()["round"] > number)
        finally:
            over.set()
            beating.join()

    def _all(self, work: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(len(self._seats))))

    def _answer(self, number: int, public_step: int, member: int) -> None:
        """Hand in the responses of a public step; every second member's are mostly right."""
        client, run = self._clients[member], self._run.id
        asked = client.public_step_prompts(run, number, public_step)
        with self._making:
            key = (number, public_step, bool(member % 2))
            if key not in self._groups:
                answers = [entry.problem.answer for entry in asked.prompts]
                self._groups[key] = [self._group(answer, key[2]) for answer in answers]
        groups = [
            [replace(one, seed=response_seed(asked.sampling_seed, p, k)) for k, one in enumerate(g)]
            for p, g in enumerate(self._groups[key])
        ]
        indexes = tuple(entry.index for entry in asked.prompts)
        client.submit_responses(run, number, public_step, encode_responses(indexes, groups))

    def _receive(self, number: int, public_step: int) -> None:
        """Wait for the exchange, and count the responses each member got from each donor."""
        path = paths.PUBLIC_STEP_EXCHANGED.format(
            run=self._run.id, round=number, public_step=public_step
        )
        replies = self._waits.all(
            self._seats, path, lambda reply: reply.status_code == 200, seeds=True
        )
        for gifts, reply in zip(self._gifts, replies, strict=True):
            gifts.update(load(reply.content).get("donors", np.empty(0)).ravel().tolist())

    def _group(self, answer: str, right: bool) -> list[Response]:
        wrong = LETTERS[(LETTERS.index(answer) + 1) % len(LETTERS)]
        count = RESPONSES - 2 if right else 1
        return [self._response(answer if k < count else wrong) for k in range(RESPONSES)]

    def _response(self, answer: str) -> Response:
        text = self._tokenizer.encode(f"\nAnswer: {answer}").ids
        tokens = np.array([*text, self._run.model.eos_token_ids[0]], np.int32)[-TOKENS:]
        return Response(tokens, np.full(len(tokens), -0.5, np.float32))

    def _hand_in(self, number: int, member: int) -> None:
        client, run = self._clients[member], self._run.id
        data = b"".join(initial_file(self._run.model.layout, 1000 * number + member))
        gifts, self._gifts[member] = self._gifts[member], Counter()
        evidence = [
            DonorEvidence(number=donor, responses=count, other_noise=HONEST * count)
            for donor, count in gifts.most_common()
            if donor != NOBODY
        ]
        metrics = UpdateMetrics(examples=1, steps=STEPS, donors=evidence)
        update = SubmitUpdate(adapter=client.put_blob(run, data), metrics=metrics)
        client.submit_update(run, number, update)

    def _beat(self, over: threading.Event, number: int) -> None:
        progress = Progress(round=number, step=1, steps=STEPS)
        for beat in range(1 << 30):
            if over.wait(BEAT_SECONDS):
                return
            seat = self._seats[beat % len(self._seats)]
            with CoordinatorClient(seat.url, seat.token, Backoff(tries=1)) as client:
                began = time.monotonic()
                client.heartbeat(self._run.id, progress)
                self.beats.append(time.monotonic() - began)


class Waits:
    """Long polls on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def all(
        self, seats: Sequence[Seat], path: str, until: Until, **query: Any
    ) -> list[httpx.Response]:
        """Have all members ask until `until` holds; returns each one's reply."""
        asking = self._all(seats, path, until, query)
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()

    async def _all(
        self, seats: Sequence[Seat], path: str, until: Until, query: dict[str, Any]
    ) -> list[httpx.Response]:
        async with AsyncExitStack() as stack:
            pools = [
                await stack.enter_async_context(httpx.AsyncClient(timeout=60, verify=False))
                for _ in range(0, len(seats), POOL)
            ]
            waits = (
                self._poll(pools[number // POOL], seat, path, until, query)
                for number, seat in enumerate(seats)
            )
            return await asyncio.gather(*waits)

    async def _poll(
        self, http: httpx.AsyncClient, seat: Seat, path: str, until: Until, query: dict[str, Any]
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {seat.token}"}
        while True:
            wait = {"wait": LONG_POLL_SECONDS, **query}
            reply = await http.get(seat.url + path, params=wait, headers=headers)
            if until(reply.raise_for_status()):
                return reply

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)


def settings() -> dict[str, Any]:
    """The run's settings, except its size."""
    grpo = {
        "prompts_per_step": PROMPTS,
        "responses_per_prompt": RESPONSES,
        "max_response_tokens": TOKENS,
    }
    public_step = {"period": 1, "deadline_seconds": 3600}
    return {"local_steps": STEPS, "grpo": grpo, "method": public_step}
