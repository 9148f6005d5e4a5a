"""Sequences of requests, crashes and restarts, held against a small model after every step.

Members send, send again, send other bytes, in any order, early and late; the operator pauses,
resumes and revokes; time passes; and the coordinator is killed inside requests and between them.
"""

import contextlib
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pubswap_protocol import paths
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import RunView
from pubswap_protocol.schedule import public_batch
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_protocol.tensors.responses import Response, encode_responses
from support.coordinator.coordinator import (
    OPERATOR_TOKEN,
    TOKENIZER,
    Federation,
    begun,
    serving,
    settings_for,
)
from support.coordinator.in_process import InProcess, KilledServer, one_thread, quiet
from support.coordinator.run_model import ACCEPTED, LATE, Answer, RunModel

MEMBERS = ("a", "b", "c")
ROUNDS = 2
ROUND_SECONDS, EXCHANGE_SECONDS = 3600.0, 1800.0
STEPS = 11  # ten thousand sequences in a quarter of an hour
SETTINGS: dict[str, Any] = {
    "clients": len(MEMBERS),
    "rounds": ROUNDS,
    "seed": 13,
    "aggregation": {"deadline_seconds": ROUND_SECONDS},
    "method": {"deadline_seconds": EXCHANGE_SECONDS},
}
_RUN = "SELECT state, paused, round FROM runs WHERE id = ?"
_ADAPTERS = "SELECT round, adapter FROM rounds WHERE run_id = ? AND round > 0"
PUBLIC_PROBLEMS = 12  # of `support.coordinator.coordinator`

members = st.sampled_from(MEMBERS)
rounds = st.integers(0, ROUNDS + 1)
variants = st.integers(0, 1)
# The point in a request at which the coordinator is killed; mostly it is not.
deaths = st.one_of(st.none(), st.none(), st.integers(0, 5))


def run(
    count: int,
    seed: int,
    folder: Path,
    progress: Callable[[int], None] = lambda done: None,
    shrink: bool = True,
) -> dict[str, Any]:
    """Try `count` sequences; the first that breaks a promise ends it, made short if `shrink`.

    `steps` are all steps, `crashes` and `killed_inside` the crashes between and inside requests.
    """
    tally = Tally()
    broken: list[str] = []
    with quiet(), _prepared(folder) as world:
        try:
            _search(world, count, seed, tally, progress, shrink)
        except Exception:
            broken.append(traceback.format_exc(limit=-4))
    return {
        "tried": tally.sequences,
        "lost": len(broken),
        "steps": tally.steps,
        "crashes": tally.crashes,
        "killed_inside": tally.killed_inside,
        "finished": tally.finished,
        "broken": broken,
    }


def _search(
    world: "ModelWorld",
    count: int,
    seed_: int,
    tally: "Tally",
    progress: Callable[[int], None],
    shrink: bool,
) -> None:
    class Machine(RunMachine):
        def __init__(self) -> None:
            super().__init__(world, tally)

        def teardown(self) -> None:
            super().teardown()
            progress(tally.sequences)

    seed(seed_)(Machine)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            report_multiple_bugs=False,  # the first ends it
            phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
            suppress_health_check=list(HealthCheck),
        ),
    )


@dataclass
class Tally:
    """What the sequences did."""

    sequences: int = 0
    steps: int = 0
    crashes: int = 0
    killed_inside: int = 0
    finished: int = 0


@dataclass
class ModelWorld:
    """The coordinator, the run that its folder begins with, and the members' files."""

    coordinator: InProcess
    run: RunView
    tokens: dict[str, str]
    _adapters: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _means: dict[tuple[tuple[str, int], ...], str] = field(default_factory=dict)

    def adapter(self, member: str, variant: int) -> bytes:
        """A member's adapter file."""
        if (member, variant) not in self._adapters:
            layout = self.run.model.layout
            arrays = {n: _numbers(shape, member, variant) for n, shape in layout.tensors.items()}
            self._adapters[member, variant] = encode_adapter(layout, arrays)
        return self._adapters[member, variant]

    def responses(self, member: str, round_: int, variant: int) -> bytes:
        """A member's file of responses, some of them right."""
        prompts = public_batch(self.run.settings, PUBLIC_PROBLEMS, max(1, round_), 1)
        count = self.run.settings.grpo.responses_per_prompt
        groups = [
            [
                _say(str(index) if k <= variant else f"no-{member}-{k}", self._eos)
                for k in range(count)
            ]
            for index in prompts
        ]
        return encode_responses(prompts, groups)

    def mean(self, parts: tuple[tuple[str, int], ...]) -> str:
        """The digest of some adapters' mean, in their order."""
        if parts not in self._means:
            layout, mean = self.run.model.layout, {}
            for name, shape in layout.tensors.items():
                stack = np.stack([_numbers(shape, *part) for part in parts])
                mean[name] = stack.astype(np.float64).mean(axis=0).astype(np.float32)
            self._means[parts] = digest_of(encode_adapter(layout, mean))
        return self._means[parts]

    @property
    def _eos(self) -> int:
        return self.run.model.eos_token_ids[0]


@cache
def _numbers(shape: tuple[int, int], member: str, variant: int) -> "np.ndarray[Any, Any]":
    rng = np.random.default_rng([ord(member), variant])
    return rng.normal(size=shape).astype(np.float32)


@cache
def _say(text: str, eos: int) -> Response:
    tokens = load_tokenizer(TOKENIZER).encode(f"Answer: {text}").ids
    return Response(
        np.array([*tokens[:15], eos], dtype=np.int32),
        np.full(min(len(tokens), 15) + 1, -0.5, dtype=np.float32),
    )


@contextmanager
def _prepared(folder: Path) -> Iterator[ModelWorld]:
    """A world whose run was made by a real coordinator."""
    template, data = folder / "template", folder / "data"
    with serving(settings_for(template)) as server, server.closing:
        federation: Federation = begun(server, **SETTINGS)
    shutil.rmtree(template / "incoming")
    with contextlib.closing(sqlite3.connect(template / "pubswap.sqlite")) as connection:
        connection.execute("UPDATE members SET last_seen = NULL")  # the model knows no earlier life
        connection.commit()
    with one_thread(settings_for(data), template) as coordinator:
        yield ModelWorld(coordinator, federation.run, federation.tokens)


class RunMachine(RuleBasedStateMachine):
    """Hypothesis draws the steps; each answer must be the model's."""

    def __init__(self, world: ModelWorld, tally: Tally) -> None:
        super().__init__()
        self.world, self.tally = world, tally
        self.coordinator = world.coordinator
        self.model = RunModel(frozenset(MEMBERS), ROUNDS, ROUND_SECONDS, EXCHANGE_SECONDS)
        self.exchanged: dict[tuple[str, int], bytes] = {}
        self.coordinator.begin()

    # What members do

    @rule(member=members, variant=variants, death=deaths, half=st.booleans())
    def upload(self, member: str, variant: int, death: int | None, half: bool) -> None:
        """Send an adapter, all of it or a half that another upload goes on from."""
        send = self._half if half else self._upload
        expected = self.model.upload(member, variant, half)
        assert self._surviving(death, lambda: send(member, variant), member) == expected

    @rule(member=members, round_=rounds, variant=variants, death=deaths)
    def update(self, member: str, round_: int, variant: int, death: int | None) -> None:
        """Hand an adapter in, for any round."""
        expected = self.model.update(member, round_, variant)
        answer = self._surviving(death, lambda: self._update(member, round_, variant), member)
        assert answer == expected

    @rule(member=members, variant=variants)
    def work(self, member: str, variant: int) -> None:
        """Do what a member does in an ordinary round, as far as it is let."""
        for expected, found in (
            (self.model.upload(member, variant), lambda: self._upload(member, variant)),
            (
                self.model.update(member, self.model.round, variant),
                lambda: self._update(member, self.model.round, variant),
            ),
        ):
            assert found() == expected

    @rule(variant=variants)
    def work_of_all(self, variant: int) -> None:
        """An ordinary round of all that take part, and its end."""
        for member in sorted(self.model.active):
            self.work(member, variant)
        self.conduct(None)

    @rule(member=members, round_=rounds, variant=variants, death=deaths)
    def respond(self, member: str, round_: int, variant: int, death: int | None) -> None:
        """Hand responses in, for any round's public step."""
        expected = self.model.respond(member, round_, variant)
        answer = self._surviving(death, lambda: self._respond(member, round_, variant), member)
        assert answer == expected

    @rule(member=members, round_=rounds)
    def exchange(self, member: str, round_: int) -> None:
        """Ask what to train on; whenever there is an answer, it is the same."""
        path = paths.PUBLIC_STEP_EXCHANGED.format(
            run=self.world.run.id, round=round_, public_step=1
        )
        reply = self._ask("GET", path, member)
        words = {200: "groups", 204: "open"}
        found = reply.status_code, words.get(reply.status_code) or _word(reply)
        assert found == self.model.exchanged(member, round_)
        if reply.status_code == 200:
            assert self.exchanged.setdefault((member, round_), reply.content) == reply.content

    @rule(member=members)
    def task(self, member: str) -> None:
        """Ask what to do."""
        reply = self._ask("GET", paths.TASK.format(run=self.world.run.id), member)
        body = reply.json()
        found = reply.status_code, body.get("kind") or body["code"], body.get("round", 0)
        assert found == self.model.task(member)

    # What the operator and time do

    @rule(paused=st.booleans(), death=deaths)
    def pause(self, paused: bool, death: int | None) -> None:
        """Pause or resume the run."""
        expected = self.model.pause(paused)
        path = (paths.RUN_PAUSE if paused else paths.RUN_RESUME).format(run=self.world.run.id)

        def asked() -> Answer:
            reply = self._ask("POST", path, None)
            return reply.status_code, reply.json().get("code") or reply.json()["state"]

        assert self._surviving(death, asked) == expected

    @rule(member=members, death=deaths)
    def revoke(self, member: str, death: int | None) -> None:
        """Revoke a member."""
        self.model.active.discard(member)
        path = paths.RUN_MEMBER.format(run=self.world.run.id, member=member)
        reply = self._surviving(death, lambda: self._ask("DELETE", path, None))
        assert reply.status_code == 204

    @rule(minutes=st.sampled_from((10, 40, 70)))
    def pass_by(self, minutes: int) -> None:
        """Let time go on."""
        self.model.now += 60 * minutes
        self.coordinator.pass_by(60 * minutes)

    @rule(death=deaths)
    def conduct(self, death: int | None) -> None:
        """The conductor looks at the run."""
        self.model.conduct()
        self._surviving(death, lambda: self.coordinator.conduct(self.world.run.id))

    @rule()
    def crash(self) -> None:
        """The coordinator is gone, and comes back."""
        self._crash()
        self.tally.crashes += 1

    def _crash(self) -> None:
        self.model.crash()
        self.coordinator.crash()
        self.coordinator.start()

    # What must hold after each

    @invariant()
    def state_is_the_models(self) -> None:
        """State, round, and each round's adapter: the mean of exactly what was accepted."""
        self.tally.steps += 1
        run_ = self.world.run.id
        ((state, paused, number),) = self.coordinator.rows(_RUN, run_)
        assert (state, number) == (self.model.state, self.model.round)
        assert bool(paused) == (self.model.paused and state != "finished")
        adapters = dict(self.coordinator.rows(_ADAPTERS, run_))
        expected = {r: self.world.mean(parts) for r, parts in self.model.means.items()}
        assert {r: digest for r, digest in adapters.items() if digest} == expected

    def teardown(self) -> None:
        """At the end every receipt that was given is given again."""
        try:
            for (member, round_), (variant, status, _) in self.model.updates.items():
                if member in self.model.active:
                    assert self._update(member, round_, variant) == (200, status)
            for (member, round_), (variant, status) in self.model.responses.items():
                if member in self.model.active:
                    assert self._respond(member, round_, variant) == (200, status)
            for member, variant in self.model.blobs:
                if member in self.model.active:
                    self._download(member, variant)
            self._view()
        finally:
            self.coordinator.crash()
            self.tally.sequences += 1
            self.tally.finished += self.model.state == "finished"

    def _view(self) -> None:
        """What the operator is shown: each update is counted once, in its own round."""
        page = self._ask("GET", paths.ROUNDS.format(run=self.world.run.id), None).json()
        counted = {summary["round"]: summary["updates"] for summary in page["rounds"]}
        for number, parts in self.model.means.items():
            assert counted[number] == len(parts)

    # How it is asked

    def _surviving(
        self, death: int | None, call: Callable[[], Any], member: str | None = None
    ) -> Any:
        """The answer to a member; if the coordinator dies before it gives it, of its next life."""
        self.coordinator.points_left = death
        try:
            return call()
        except KilledServer:
            self.tally.killed_inside += 1
            self._crash()
            if member is not None:
                self.model.asks(member)
            return call()
        finally:
            self.coordinator.points_left = None

    def _ask(self, method: str, path: str, member: str | None, **options: Any) -> httpx.Response:
        token = OPERATOR_TOKEN if member is None else self.world.tokens[member]
        return self.coordinator.request(method, path, token, **options)

    def _open(self, member: str, data: bytes) -> httpx.Response:
        body = {"digest": digest_of(data), "size": len(data)}
        path = paths.UPLOADS.format(run=self.world.run.id)
        return self._ask("POST", path, member, json=body)

    def _send(self, member: str, upload: str, data: bytes, first: int, end: int) -> None:
        path = paths.UPLOAD.format(run=self.world.run.id, upload=upload)
        headers = {"Content-Range": f"{first}-{end - 1}"}
        reply = self._ask("PATCH", path, member, content=data[first:end], headers=headers)
        assert reply.status_code == 202, reply.text

    def _half(self, member: str, variant: int) -> Answer:
        data = self.world.adapter(member, variant)
        reply = self._open(member, data)
        if reply.status_code >= 400:
            return reply.status_code, _word(reply)
        session = reply.json()
        if session["stored"]:
            return 201, "stored"
        if session["offset"] < len(data) // 2:
            self._send(member, session["upload"], data, session["offset"], len(data) // 2)
        return 202, "begun"

    def _upload(self, member: str, variant: int) -> Answer:
        data = self.world.adapter(member, variant)
        reply = self._open(member, data)
        if reply.status_code >= 400:
            return reply.status_code, _word(reply)
        session = reply.json()
        if session["stored"]:
            return 201, "stored"
        if session["offset"] < len(data):
            self._send(member, session["upload"], data, session["offset"], len(data))
        path = paths.UPLOAD.format(run=self.world.run.id, upload=session["upload"])
        done = self._ask("PUT", path, member, params={"digest": digest_of(data)})
        assert done.json() == {"digest": digest_of(data), "size": len(data)}
        return done.status_code, "stored"

    def _update(self, member: str, round_: int, variant: int) -> Answer:
        digest = digest_of(self.world.adapter(member, variant))
        path = paths.UPDATE.format(run=self.world.run.id, round=round_)
        metrics = {"examples": 1, "steps": self.world.run.settings.local_steps}
        body = {"adapter": digest, "metrics": metrics}
        return _receipt(self._ask("POST", path, member, json=body), digest)

    def _respond(self, member: str, round_: int, variant: int) -> Answer:
        data = self.world.responses(member, round_, variant)
        path = paths.PUBLIC_STEP_RESPONSES.format(
            run=self.world.run.id, round=round_, public_step=1
        )
        headers = {"Content-Type": paths.TENSORS_TYPE}
        reply = self._ask("POST", path, member, content=data, headers=headers)
        return _receipt(reply, digest_of(data))

    def _download(self, member: str, variant: int) -> None:
        data = self.world.adapter(member, variant)
        path = paths.BLOB.format(run=self.world.run.id, digest=digest_of(data))
        assert self._ask("GET", path, member).content == data


def _word(reply: httpx.Response) -> str:
    return str(reply.json()["code"])


def _receipt(reply: httpx.Response, digest: str) -> Answer:
    body = reply.json()
    if reply.status_code != 200:
        return reply.status_code, str(body["code"])
    assert body["digest"] == digest
    assert body["status"] in (ACCEPTED, LATE)
    return 200, str(body["status"])
