"""`pubswap relay`: a member without a network, through the files of a shared folder."""

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.coordinator.spool import Answered, Asked, write
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, RoundClosed, Unreachable
from pubswap_protocol.messages import CreateInvite, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.coordinator import (
    Federation,
    Server,
    create,
    good_hello,
    serving,
    settings_for,
)
from support.eventually import until
from support.forked import Forked, pubswap
from support.networks.recording import Recording, recording
from support.privacy import namespace

MISSING = namespace.missing()
NAME = "0123456789abcdef" * 2


@dataclass
class Relaying:
    """A relay's processes, one after another, and their folder."""

    folder: Path
    url: str
    process: Forked

    def start(self) -> None:
        command = ["relay", str(self.folder), "--coordinator", self.url]
        self.process = Forked(command, self.log)

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(10) == -signal.SIGKILL

    def left(self) -> set[str]:
        """The files in the folder that are not the relay's own."""
        return {path.name for path in self.folder.iterdir()} - {"done", "lock"}


@pytest.fixture
def relaying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Relaying]]:
    """Start a relay to a coordinator, and send this process's requests through it."""
    started: list[Relaying] = []

    def begin(url: str) -> Relaying:
        folder = tmp_path / "relay"
        monkeypatch.setenv("PUBSWAP_RELAY", str(folder))
        command = ["relay", str(folder), "--coordinator", url]
        started.append(Relaying(folder, url, Forked(command, folder.with_suffix(".log"))))
        return started[-1]

    yield begin
    for each in started:
        each.process.terminate()
        assert each.process.wait(10) in (130, -signal.SIGTERM)  # it may not have started yet


def running(server: Server) -> tuple[Federation, str]:
    """A run in round 1, and its member's token."""
    fed = create(server, method="fedavg", clients=1, rounds=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    token = fed.join("a")
    fed.start()
    return fed, token


@pytest.mark.full
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_member_without_a_network_takes_part(
    tmp_path: Path, relaying: Callable[[str], Relaying]
) -> None:
    """From enrolment to its update, without any network, while the relay is killed repeatedly."""
    with (
        serving(settings_for(tmp_path / "data")) as server,
        server.closing,
        namespace.without_network() as alone,
        ThreadPoolExecutor(2, initializer=namespace.enter, initargs=(alone,)) as inside,
    ):
        fed = create(server, method="fedavg", clients=1, rounds=1)
        fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
        invite = fed.operator.invite(fed.run.id, CreateInvite(name="a")).invite
        data = encode_adapter(fed.run.model.layout, fed.adapter(1))
        relay = relaying(server.url)
        patient = Backoff(base_seconds=0.05)

        def member() -> str:
            with CoordinatorClient(server.url, None, patient) as api:
                token = api.enroll(invite).token
            with CoordinatorClient(server.url, token, patient) as api:
                api.hello(fed.run.id, good_hello(fed.run))
                task = api.task(fed.run.id, 25)
                while not task.round:
                    task = api.task(fed.run.id, 25)
                assert api.blob(fed.run.id, api.put_blob(fed.run.id, data)) == data
                metrics = UpdateMetrics(examples=1, steps=2)
                update = SubmitUpdate(adapter=digest_of(data), metrics=metrics)
                assert api.submit_update(fed.run.id, task.round, update).status == "accepted"
                with pytest.raises(RoundClosed):  # the coordinator's own refusal
                    api.submit_update(fed.run.id, 9, update)
            return token

        working = inside.submit(member)
        random, lives = Random(1), 0
        while not working.done():
            # Ever longer, so that even on a busy machine one of them makes progress.
            time.sleep(random.uniform(0.1, 0.8) + 0.02 * lives)
            lives += 1
            relay.kill()
            relay.start()
            if fed.operator.members(fed.run.id).members and fed.view().state == "open":
                fed.start()
        token = working.result()
        fed.wait_for(1)
        until(lambda: relay.left() == set())
        for path in relay.folder.iterdir():
            assert token.encode() not in path.read_bytes()
        assert stat.S_IMODE(relay.folder.stat().st_mode) == 0o700


def ask(relaying: Relaying) -> str:
    """Make an honest request."""
    with CoordinatorClient(relaying.url, "secret", ONCE) as api:
        return api.version().protocol


@pytest.fixture
def record() -> Iterator[Recording]:
    with recording() as record:
        yield record


def asked(**changes: object) -> Asked:
    message = Asked(name=NAME, method="GET", target="/v1/version", headers=[])
    return message.model_copy(update=changes)


def put(path: Path, message: Asked | Answered, body: bytes = b"", mode: int = 0o600) -> None:
    write(path, [body], message)
    path.chmod(mode)


def foreign(kind: str, path: Path, spare: Path) -> None:
    """A file that no member wrote, or not completely, but is otherwise valid."""
    good = asked(name=path.stem)
    if kind == "link":
        put(spare, good)
        path.symlink_to(spare)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "half":
        put(spare, good)
        path.write_bytes(spare.read_bytes()[:-1])
    elif kind == "garbage":
        path.write_bytes(b"x" * 40 + b"00000020 pubswap")
    elif kind == "others may write":
        put(path, good, mode=0o622)
    elif kind == "another name":
        put(path, asked(name="f" * 32))
    elif kind == "another host":
        put(path, asked(name=path.stem, target="//127.0.0.1:1/v1/version"))
    elif kind == "another service":
        put(path, asked(name=path.stem, target="/admin"))
    elif kind == "another service by a way up":
        put(path, asked(name=path.stem, target="/v1/../healthz"))
    elif kind == "an encoded way up":
        put(path, asked(name=path.stem, target="/v1/%2e%2E/admin"))
    elif kind == "a way up behind an encoded slash":
        put(path, asked(name=path.stem, target="/v1/..%2fadmin"))
    elif kind == "a fragment":
        put(path, asked(name=path.stem, target="/v1/version?a=b#c"))
    elif kind == "a letter in a header":
        put(path, asked(name=path.stem, headers=[("User-Agent", "é")]))
    elif kind == "another method":
        put(path, asked(name=path.stem, method="TRACE"))
    elif kind == "two requests":
        put(path, asked(name=path.stem, headers=[("Accept", "x\r\n\r\nGET /v1/runs HTTP/1.1")]))
    elif kind == "a longer body":
        put(path, asked(name=path.stem, method="POST", headers=[("Content-Length", "3")]), b"four")
    elif kind == "a body of no length":
        put(path, asked(name=path.stem, method="POST"), b"four")
    else:
        put(path, good)
        os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "kinds",
    [
        *(("link", "pipe", "half", "garbage"), ("others may write", "another name")),
        *(("another host", "another service", "another method"), ("two requests",)),
        ("another service by a way up", "an encoded way up", "a way up behind an encoded slash"),
        ("a fragment", "a letter in a header"),
        ("a longer body", "a body of no length"),
        pytest.param(
            ("another owner",),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away"),
        ),
    ],
    ids=lambda kinds: kinds[0],
)
def test_a_file_of_another_is_not_forwarded(
    kinds: tuple[str, ...],
    record: Recording,
    relaying: Callable[[str], Relaying],
    tmp_path: Path,
) -> None:
    """It is reported once, stays where it is, and does not block other requests."""
    relay = relaying(record.url)
    until(relay.folder.exists)
    names = [f"{number:032x}.request" for number in range(len(kinds))]
    for name, kind in zip(names, kinds, strict=True):
        making = tmp_path / name
        foreign(kind, making, making.with_suffix(".spare"))
        making.rename(relay.folder / name)
    until(lambda: all(name in relay.log.read_text() for name in names))
    assert ask(relay) == "1"
    assert [path for _, path, _, _ in record.asked] == ["/v1/version"]
    assert relay.left() == set(names)
    assert all(relay.log.read_text().count(name) == 1 for name in names)


def test_a_request_is_forwarded_as_it_was_asked(
    record: Recording, relaying: Callable[[str], Relaying], tmp_path: Path
) -> None:
    """Once it is whole, with its token, and without headers that members do not send."""
    relay = relaying(record.url)
    until(relay.folder.exists)
    more = [("Authorization", "Bearer t"), ("Host", "evil"), ("X-Forwarded-For", "1.2.3.4")]
    made, path = tmp_path / "made", relay.folder / f"{NAME}.request"
    put(made, asked(method="POST", headers=[("Content-Length", "4"), *more]), b"body")
    path.write_bytes(made.read_bytes()[:-3])  # as during a copy
    path.chmod(0o600)
    until(lambda: path.name in relay.log.read_text())
    path.write_bytes(made.read_bytes())
    until(lambda: record.asked != [])
    ((method, target, headers, body),) = record.asked
    assert (method, target, body) == ("POST", "/v1/version", b"body")
    assert headers["Authorization"] == "Bearer t"
    assert "X-Forwarded-For" not in headers
    assert headers["Host"] == record.url.removeprefix("http://")


def test_a_request_that_was_answered_is_not_forwarded_again(
    record: Recording, relaying: Callable[[str], Relaying], tmp_path: Path
) -> None:
    """Even if someone or a restored backup puts it back, or the relay was killed."""
    relay = relaying(record.url)
    until(relay.folder.exists)
    path, kept = relay.folder / f"{NAME}.request", tmp_path / "kept"
    put(kept, asked())
    for again in range(3):
        shutil.copy(kept, tmp_path / "copy").rename(path)
        until(lambda: not path.exists())
        path.with_suffix(".answer").unlink(missing_ok=True)
        # The line in the log follows the removal, and a relay killed in between writes none.
        until(lambda again=again: relay.log.read_text().count("was answered before") == again)
        if again:
            relay.kill()
            relay.start()
    assert len(record.asked) == 1


def test_an_answer_of_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed, damaged or not a file at all: the error is retryable, and no file is left."""
    folder = tmp_path / "relay"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("PUBSWAP_RELAY", str(folder))
    put(tmp_path / "old", Answered(name=NAME, status=200, headers=[]))
    (tmp_path / "half").write_bytes(b"half")
    (tmp_path / "link").symlink_to(tmp_path / "old")

    def answers(kind: str) -> None:
        until(lambda: list(folder.glob("*.request")) != [])
        (request,) = folder.glob("*.request")
        (tmp_path / kind).rename(request.with_suffix(".answer"))

    kinds = {
        "link": "Too many levels|not a regular file of ours",
        "old": f"it belongs to {NAME}",
        "half": "it has 4 bytes",
    }
    with ThreadPoolExecutor(1) as thread:
        for kind, said in kinds.items():
            answering = thread.submit(answers, kind)
            with (
                pytest.raises(Unreachable, match=said),
                CoordinatorClient("http://c", None, ONCE) as api,
            ):
                api.version()
            answering.result()
            assert list(folder.iterdir()) == []


def test_a_relay_that_does_not_come_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is withdrawn; neither side uses a folder that others may read."""
    folder = tmp_path / "relay"
    monkeypatch.setenv("PUBSWAP_RELAY", str(folder))
    monkeypatch.setattr("pubswap_client.coordinator.connection.RELAY_SECONDS", 0.1)
    said = r"no relay has answered.*pubswap relay"
    with CoordinatorClient("http://c", None, ONCE) as api, pytest.raises(Unreachable, match=said):
        api.version()
    assert list(folder.iterdir()) == []
    folder.chmod(0o750)
    with pytest.raises(InvalidSettings, match="chmod 700"):
        CoordinatorClient("http://c", None, ONCE)
    ended = pubswap("relay", str(folder), "--coordinator", "http://127.0.0.1:1")
    assert (ended.returncode, "chmod 700" in ended.stderr) == (1, True)


def test_cron_starts_a_relay_for_what_is_asked(
    record: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when there are no more requests."""
    folder = tmp_path / "relay"
    monkeypatch.setenv("PUBSWAP_RELAY", str(folder))
    with ThreadPoolExecutor(1) as thread, CoordinatorClient(record.url, None, ONCE) as api:
        asking = thread.submit(api.version)
        until(lambda: list(folder.glob("*.request")) != [])
        command = ["relay", str(folder), "--coordinator", record.url, "--once"]
        cron = Forked(command, tmp_path / "cron.log")
        asking.result(20)
        assert cron.wait(20) == 0


def test_a_second_relay_is_refused_and_one_of_cron_ends(
    relaying: Callable[[str], Relaying], record: Recording
) -> None:
    """While another one is running."""
    relay = relaying(record.url)
    ask(relay)
    command = ["relay", str(relay.folder), "--coordinator", record.url]
    assert pubswap(*command, "--once").returncode == 0
    refused = pubswap(*command)
    assert refused.returncode == 1
    assert "has a relay" in refused.stderr
    assert relay.process.poll() is None


def test_a_coordinator_that_the_relay_does_not_reach_is_said(
    relaying: Callable[[str], Relaying],
) -> None:
    """In the caller's error, which is retryable."""
    relay = relaying("http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="The relay cannot reach the coordinator"):
        ask(relay)
    with (
        pytest.raises(Unreachable, match="cannot reach elsewhere"),
        CoordinatorClient("http://127.0.0.1:1", None, ONCE) as api,
    ):
        api.once("GET", "http://elsewhere/v1/version")
