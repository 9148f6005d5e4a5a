"""A federation on a private corpus of 1,000 canaries: none of them leaves, in any form."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pubswap_client.consent.ledger import described, entries, ledger_folder
from pubswap_client.demo.demos import MODEL
from pubswap_client.state.history import HISTORY, RoundFigures
from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import CreateInvite, Role
from pubswap_protocol.problems import Problem, write_problems
from support.chaos.proxy import FaultProxy
from support.chaos.raw_http import requests_in
from support.coordinator.processes import (
    ONE_THREAD,
    Coordinator,
    client_command,
    create_run,
    enroll,
    serve,
    start,
    sums,
    wait_finished,
)
from support.eventually import until
from support.forked import Forked, ForkedProcesses
from support.privacy import namespace
from support.privacy.canaries import Search, draw_canaries
from support.privacy.leaky import LEAKS

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

CANARIES = draw_canaries(1000, seed=1)
# Three private steps of 16 prompts in each of two rounds: 96 of a client's problems.
SETTINGS = {
    "local_steps": 4,
    "method.period": 4,
    "grpo.prompts_per_step": 16,
    "grpo.responses_per_prompt": 2,
    "grpo.max_response_tokens": 8,
}
CORPORA = {"alpha": CANARIES[:800], "beta": CANARIES[800:]}
MISSING = namespace.missing()


def private_problems(canaries: list[str], seed: int) -> list[Problem]:
    """Sums with a canary in every text of a problem; every tenth also has it as its answer."""
    return [
        Problem(
            id=canary,
            prompt=f"{canary} {problem.prompt}",
            answer=canary if number % 10 == 0 else problem.answer,
            topic=canary,
            verifier="math",
            metadata={"source": canary},
        )
        for number, (canary, problem) in enumerate(
            zip(canaries, sums(seed, len(canaries)), strict=True)
        )
    ]


@pytest.fixture(scope="module")
def search() -> Search:
    tokenizer = load_tokenizer((MODEL / "tokenizer.json").read_bytes())
    return Search(CANARIES, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass
class LivedWithCanaries:
    """All that a federation sent through the proxy, one piece for each connection."""

    folder: Path
    proxy: tuple[str, int]
    network: namespace.Network | None
    streams: list[bytes]


@dataclass
class Members:
    """The organisations' processes, which know the coordinator by the proxy's address."""

    coordinator: Coordinator
    url: str
    install: list[str | None]

    def run(self, *arguments: str) -> str:
        """Run a command to its end; returns its output."""
        folder = self.coordinator.folder / "commands"
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        out, err = folder / f"{number}.out", folder / f"{number}.err"
        command = Forked(arguments, out, err, install=self.install)
        assert command.wait() == 0, f"{arguments}: {err.read_text()}{out.read_text()}"
        return out.read_text()

    def enroll(self, run: str, name: str, role: Role) -> Path:
        """Enrol by the command."""
        invite = self.coordinator.api.invite(run, CreateInvite(name=name, role=role)).invite
        state = self.coordinator.folder / name
        options = ["--coordinator", self.url, "--invite", invite, "--state", str(state)]
        self.run("client", "enroll", *options)
        return state


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivedWithCanaries]:
    """A federation from enrolment to the final adapter's audit, with all of a member's commands."""
    folder = tmp_path_factory.mktemp("canaries")
    with ExitStack() as stack:
        network = None if MISSING else stack.enter_context(namespace.network())
        install = ["support.privacy.namespace", network.name] if network else []
        outside = stack.enter_context(ForkedProcesses(folder / "logs"))
        inside = stack.enter_context(ForkedProcesses(folder / "daemons", install))
        coordinator = serve(outside, folder)
        stack.enter_context(coordinator.api)
        port = httpx.URL(coordinator.api.url).port
        assert port is not None
        host = network.host if network else "127.0.0.1"
        proxy = stack.enter_context(FaultProxy(port, keeps=True, host=host))
        federate(Members(coordinator, proxy.url, install), inside)
        yield LivedWithCanaries(
            folder, (host, proxy.port), network, [bytes(sent) for sent in proxy.sent]
        )


def federate(members: Members, daemons: ForkedProcesses) -> None:
    """Run two clients and an evaluator, from enrolment to the audit."""
    coordinator = members.coordinator
    run = create_run(coordinator, SETTINGS, count=16)
    states = {name: members.enroll(run.id, name, Role.CLIENT) for name in CORPORA}
    commands = {}
    for seed, (name, state) in enumerate(states.items(), start=3):
        commands[name] = client_command(state, seed)
        write_problems(state / "private.jsonl", private_problems(CORPORA[name], seed))
    options = commands["beta"][2:]
    members.run("client", "doctor", *options)
    for name, command in commands.items():
        daemons.start(name, command, ONE_THREAD)
    judge = members.enroll(run.id, "judge", Role.EVALUATOR)
    command = ["evaluate", "--state", str(judge), "--model", str(MODEL), "--threads", "1"]
    daemons.start("judge", command, ONE_THREAD)
    start(coordinator, run)
    wait_finished(coordinator, run)
    until(lambda: all((state / "adapter").exists() for state in states.values()))
    own = ["--state", str(states["beta"])]
    members.run("client", "status", "--json", *own)
    members.run("client", "adapter", *own, "--out", str(coordinator.folder / "adapter"))
    audited = json.loads(members.run("client", "privacy", "audit", "--json", *options))
    assert (audited["members"], audited["others"]) == (96, 104)


def test_no_canary_leaves(lived: LivedWithCanaries, search: Search) -> None:
    """In no form that the search knows, in all the data sent, although they were trained on."""
    bodies = [request.body for stream in lived.streams for request in requests_in(stream)]
    kinds = Counter(
        str(described(request.method, request.target)["kind"])
        for stream in lived.streams
        for request in requests_in(stream)
    )
    assert {"enrolment", "hello", "heartbeat", "adapter", "update", "responses", "evaluation"} <= (
        kinds.keys()
    )
    assert not any(b"transfer-encoding" in stream.lower() for stream in lived.streams)
    assert sum(map(len, lived.streams)) > 500_000
    assert search(b"\n\n".join(lived.streams)) == set()
    assert set().union(*(search(body) for body in set(bodies))) == set()
    for name in CORPORA:
        state = lived.folder / name
        lines = (state / HISTORY).read_text().splitlines()
        rounds = [RoundFigures.model_validate_json(line) for line in lines]
        assert len(rounds) == 2
        # Prompts with canaries have moved the adapter.
        assert all(each.zero_variance_share is not None for each in rounds)
        assert any(float(each.zero_variance_share or 0) < 1 for each in rounds), rounds


def test_all_that_a_member_asks_is_in_its_ledger(lived: LivedWithCanaries) -> None:
    """For the daemons and each command, from `enroll` to the audit."""
    asked = Counter(
        (request.method, request.target, digest_of(request.body))
        for stream in lived.streams
        for request in requests_in(stream)
    )
    recorded = Counter(
        (entry.method, entry.target, entry.digest)
        for name in (*CORPORA, "judge")
        for entry in entries(ledger_folder(lived.folder / name))
    )
    assert asked - recorded == Counter()


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_no_packet_goes_anywhere_else(lived: LivedWithCanaries) -> None:
    """From enrolment to the audit, no process of a member contacted another address or name."""
    network = lived.network
    assert network is not None and network.lost == 0
    host, port = lived.proxy
    assert network.sent["TCP", host, port] > 200
    allowed = {("TCP", host, port), ("ARP", host, 0)}
    assert {key for key in network.sent if key not in allowed} == set()


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_packet_to_anywhere_else_is_seen() -> None:
    """To an address, to a name server, and to a daemon on the machine itself."""
    program = (
        "import contextlib, socket\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:\n"
        "    for address in ('192.0.2.1', '127.0.0.1', '10.255.255.53'):\n"
        "        udp.sendto(b'x', (address, 53))\n"
        "with socket.socket() as tcp, contextlib.suppress(OSError):\n"
        "    tcp.settimeout(0.1)\n"
        "    tcp.connect(('192.0.2.2', 443))\n"
    )
    with namespace.network() as network:
        command = ["ip", "netns", "exec", network.name, sys.executable, "-c", program]
        subprocess.run(command, check=True)
        wanted = {
            *(("UDP", address, 53) for address in ("192.0.2.1", "127.0.0.1", "10.255.255.53")),
            ("TCP", "192.0.2.2", 443),
        }
        until(lambda: wanted <= network.sent.keys())


def heartbeats(proxy: FaultProxy) -> int:
    """Number of requests that are heartbeats, or leaks sent with one."""
    requests = (request for sent in proxy.sent for request in requests_in(bytes(sent)))
    return sum("/heartbeat" in request.target for request in requests)


def test_a_leaky_build_is_found(tmp_path: Path, search: Search) -> None:
    """Each of its leaks is found, with the canaries that leaked and no others."""
    canaries = tmp_path / "canaries"
    leaked = CANARIES[: len(LEAKS)]
    canaries.write_text("\n".join(leaked))
    with ExitStack() as stack:
        outside = stack.enter_context(ForkedProcesses(tmp_path / "logs"))
        install = ["support.privacy.leaky", str(canaries)]
        inside = stack.enter_context(ForkedProcesses(tmp_path / "daemons", install))
        coordinator = serve(outside, tmp_path)
        stack.enter_context(coordinator.api)
        port = httpx.URL(coordinator.api.url).port
        assert port is not None
        proxy = stack.enter_context(FaultProxy(port, keeps=True))
        run = create_run(coordinator, {"clients": 1, "rounds": 1})
        state = enroll(coordinator, run, "alpha", url=proxy.url)
        inside.start("alpha", client_command(state, seed=3), ONE_THREAD)
        start(coordinator, run)
        wait_finished(coordinator, run)
        until(lambda: heartbeats(proxy) > len(LEAKS))
        streams = [bytes(sent) for sent in proxy.sent]
    bodies = [request.body for stream in streams for request in requests_in(stream)]
    found = set().union(*map(search, streams), *(search(body) for body in bodies))
    assert {canary for canary, _ in found} == set(leaked)
