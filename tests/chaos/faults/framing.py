"""Bytes of one connection that two parsers might cut differently, and what is answered of them.

Each shot is a stream of requests: two that are harmless around one of `CASES`, or several whose
bodies spell requests, in random pieces, with more behind a body than is read in one go. Every
request carries an id, which its answer repeats. Lost is a shot in which an id is answered out of
order, that no request has, or behind what a reference framer (`support/framer.py`) refuses; in
which a request is not answered that it finds whole, and nothing was refused; or after which an
upload does not hold the bodies of its chunks. Each shot goes to the coordinator itself, and through
nginx where that is installed, whose own reading comes first then.
"""

import contextlib
import itertools
import re
import select
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from chaos.faults.cuts import LAYOUT
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateRun, SetKind
from pubswap_protocol.model import model_card
from support.chaos.framer import Framed, framed
from support.client.lives import Lives
from support.coordinator.certificates import Authority
from support.coordinator.coordinator import TOKENIZER, Federation, Server, jsonl, merged, problems
from support.coordinator.nginx import nginx

CASE_SHARE = 0.5  # of the shots; the others are pipelines
ENVIRONMENT = {"PUBSWAP_MEMBER_REQUESTS_PER_SECOND": "500000"}
EVIL = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Request-ID: evil\r\n\r\n"
POST = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nX-Request-ID: case\r\n"
GET = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Request-ID: case\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = b"Invalid HTTP request received."
_LENGTH = b"%d" % len(EVIL)
_CHUNK = b"%x\r\n%s\r\n" % (len(EVIL), EVIL)
_END = b"0\r\n\r\n"


def _with(*lines: bytes, body: bytes = EVIL) -> bytes:
    return POST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


CASES: dict[str, bytes] = {
    "length": _with(b"Content-Length: " + _LENGTH),
    "length 0": _with(b"Content-Length: 0", body=b""),
    "length with leading zeros": _with(b"Content-Length: 000" + _LENGTH),
    "length with spaces around": _with(b"Content-Length: \t " + _LENGTH + b" \t"),
    "length twice, alike": _with(*[b"Content-Length: " + _LENGTH] * 2),
    "length twice, 0 first": _with(b"Content-Length: 0", b"Content-Length: " + _LENGTH),
    "length twice, 0 last": _with(b"Content-Length: " + _LENGTH, b"Content-Length: 0"),
    "length as a list": _with(b"Content-Length: " + _LENGTH + b", " + _LENGTH),
    "length as an unlike list": _with(b"Content-Length: 0, " + _LENGTH),
    "length with a sign": _with(b"Content-Length: +" + _LENGTH),
    "length below 0": _with(b"Content-Length: -1"),
    "length in hexadecimal": _with(b"Content-Length: 0x10"),
    "length with a point": _with(b"Content-Length: " + _LENGTH + b".0"),
    "length with a space inside": _with(b"Content-Length: 1 2"),
    "length that is empty": _with(b"Content-Length:"),
    "length of 2^64": _with(b"Content-Length: 18446744073709551616"),
    "length of 2^64 and more": _with(b"Content-Length: 1844674407370955161%d" % (6 + len(EVIL))),
    "length of 100 digits": _with(b"Content-Length: " + b"9" * 100),
    "length in other digits": _with("Content-Length: ٣".encode()),
    "length with an underscore": _with(b"Content-Length: 1_0"),
    "space before the colon": _with(b"Content-Length : " + _LENGTH),
    "tab before the colon": _with(b"Content-Length\t: " + _LENGTH),
    "underscore in the name": _with(b"Content_Length: " + _LENGTH, body=b""),
    "NUL in the name": _with(b"Content-\x00Length: " + _LENGTH),
    "chunked": CHUNKED + _CHUNK + _END,
    "chunked in capitals": _with(b"TRANSFER-ENCODING: CHUNKED", body=_CHUNK + _END),
    "chunked, with a trailer": CHUNKED + _CHUNK + b"0\r\nX-Request-ID: evil\r\n\r\n",
    "chunked, with framing as a trailer": CHUNKED + _CHUNK + b"0\r\nContent-Length: 9\r\n\r\n",
    "chunked, with an extension": CHUNKED + _CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + _END,
    "chunked, with a quoted extension": CHUNKED + b'5;a="b;c"\r\nhello\r\n' + _END,
    "chunked, with a bare LF in an extension": CHUNKED + b"5;a\nhello\r\n0\r\n\r\n",
    "chunked, with a bare CR in an extension": CHUNKED + b"5;a\rhello\r\n" + _END,
    "chunked, with leading zeros": CHUNKED + b"0000" + _CHUNK + _END,
    "chunked, in small letters and capitals": CHUNKED + b"1A\r\n" + b"x" * 26 + b"\r\n" + _END,
    "chunked, size with 0x": CHUNKED + b"0x" + _CHUNK + _END,
    "chunked, size with a sign": CHUNKED + b"+" + _CHUNK + _END,
    "chunked, size below 0": CHUNKED + b"-1\r\n" + EVIL,
    "chunked, size with a space before": CHUNKED + b" " + _CHUNK + _END,
    "chunked, size with an underscore": CHUNKED + b"1_0\r\n" + b"x" * 16 + b"\r\n" + _END,
    "chunked, no size": CHUNKED + b"\r\n" + EVIL,
    "chunked, size of 2^64": CHUNKED + b"10000000000000000\r\n" + EVIL + _END,
    "chunked, size of 2^64 and more": CHUNKED + b"1000000000000000%x\r\n" % 5 + b"hello\r\n" + _END,
    "chunked, bare LF after the size": CHUNKED + b"5\nhello\r\n" + _END,
    "chunked, bare LF after the data": CHUNKED + b"5\r\nhello\n" + _END,
    "chunked, bare LF at the end": CHUNKED + b"5\r\nhello\r\n0\n\n",
    "chunked, nothing after the data": CHUNKED + b"5\r\nhello0\r\n\r\n",
    "chunked, more data than its size": CHUNKED + b"3\r\nhello\r\n" + _END,
    "chunked and a length": _with(
        b"Transfer-Encoding: chunked", b"Content-Length: 5", body=_CHUNK + _END
    ),
    "a length and chunked": _with(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=_CHUNK + _END
    ),
    "chunked and length 0": _with(
        b"Transfer-Encoding: chunked", b"Content-Length: 0", body=_CHUNK + _END
    ),
    "chunked twice": _with(*[b"Transfer-Encoding: chunked"] * 2, body=_CHUNK + _END),
    "chunked, then identity": _with(b"Transfer-Encoding: chunked, identity", body=_CHUNK + _END),
    "identity, and a length": _with(b"Transfer-Encoding: identity", b"Content-Length: " + _LENGTH),
    "gzip, then chunked": _with(b"Transfer-Encoding: gzip, chunked", body=_CHUNK + _END),
    "xchunked": _with(b"Transfer-Encoding: xchunked", body=_CHUNK + _END),
    "chunked in quotes": _with(b'Transfer-Encoding: "chunked"', body=_CHUNK + _END),
    "chunked after a vertical tab": _with(b"Transfer-Encoding: \x0bchunked", body=_CHUNK + _END),
    "chunked after NUL": _with(b"Transfer-Encoding: \x00chunked", body=_CHUNK + _END),
    "chunked, folded": _with(b"Transfer-Encoding:\r\n chunked", body=_CHUNK + _END),
    "chunked, space before the colon": _with(b"Transfer-Encoding : chunked", body=_CHUNK + _END),
    "chunked in HTTP/1.0": _with(b"Transfer-Encoding: chunked", body=_CHUNK + _END).replace(
        b"HTTP/1.1", b"HTTP/1.0", 1
    ),
    "a folded header": GET + b"X-A: b\r\n c\r\n\r\n",
    "a fold as the first header": GET.replace(b"Host", b" X-A: b\r\nHost") + b"\r\n",
    "bare LFs": GET.replace(b"\r\n", b"\n") + b"\n",
    "one bare LF": GET.replace(b"Host: x\r\n", b"Host: x\n") + b"\r\n",
    "bare CR in a value": GET + b"X-A: b\rX-B: c\r\n\r\n",
    "bare CR for a line end": GET.replace(b"Host: x\r\n", b"Host: x\r") + b"\r\n",
    "LF CR": GET.replace(b"Host: x\r\n", b"Host: x\n\r") + b"\r\n",
    "NUL in a value": GET + b"X-A: b\x00c\r\n\r\n",
    "a line without a colon": GET + b"nothing\r\n\r\n",
    "a header without a name": GET + b": x\r\n\r\n",
    "empty lines before": b"\r\n\r\n" + GET + b"\r\n",
    "two spaces in the request line": GET.replace(b"GET ", b"GET  ", 1) + b"\r\n",
    "a tab in the request line": GET.replace(b"GET ", b"GET\t", 1) + b"\r\n",
    "no version": b"GET /v1/version\r\nHost: x\r\n\r\n",
    "HTTP/0.9": GET.replace(b"HTTP/1.1", b"HTTP/0.9", 1) + b"\r\n",
    "HTTP/2.0": GET.replace(b"HTTP/1.1", b"HTTP/2.0", 1) + b"\r\n",
    "HTTP/1.10": GET.replace(b"HTTP/1.1", b"HTTP/1.10", 1) + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": GET.replace(b"Host: x\r\n", b"") + b"\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "CONNECT": GET.replace(b"GET /v1/version", b"CONNECT x:1", 1) + b"\r\n",
    "an upgrade": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + EVIL,
    "an upgrade to h2c": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + EVIL,
    "an upgrade with a body": _with(
        b"Connection: Upgrade", b"Upgrade: x", b"Content-Length: " + _LENGTH
    ),
    "a close": GET + b"Connection: close\r\n\r\n" + EVIL,
    "a GET with a body": GET + b"Content-Length: " + _LENGTH + b"\r\n\r\n" + EVIL,
    "a body that nobody reads": _with(b"Content-Length: " + _LENGTH).replace(
        b"/v1/enroll", b"/nowhere", 1
    ),
}
# nginx takes a bare LF for a line's end, leaves out lines that are no header, and never upgrades.
# It sends its own reading on, well framed, and keeps its client when the coordinator closes.
NGINX_READS_OTHERWISE = {
    "chunked, with a bare LF in an extension",
    "chunked, bare LF after the size",
    "chunked, bare LF after the data",
    "chunked, bare LF at the end",
    "a line without a colon",
    "HTTP/1.10",
    "an upgrade",
    "an upgrade to h2c",
    "an upgrade with a body",
}


@dataclass(frozen=True)
class Upload:
    """A member's upload, whose chunks are in the pipelines, and the file that they go to."""

    path: str
    token: str
    file: Path


@dataclass
class Shot:
    """A connection's bytes; the last request ends the connection."""

    name: str
    data: bytes = b""
    chunks: dict[str, bytes] = field(default_factory=dict)  # bodies of an upload, by their ids
    ends: list[int] = field(default_factory=list)  # where large bodies end


@dataclass(frozen=True)
class Peer:
    """Where shots go."""

    url: str
    context: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """A connection whose small pieces are segments of their own."""
        host, port = self.url.split("://")[1].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is None:
                yield raw
            else:
                with self.context.wrap_socket(raw, server_hostname=host) as secure:
                    yield secure


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Send `count` shots, each directly and by way of nginx."""
    lost: list[str] = []
    answered = proxied = 0
    folder.mkdir(parents=True, exist_ok=True)
    with Lives(folder / "coordinator", ENVIRONMENT) as lives, lives.server() as server:
        lives.begin()
        lives.wait_ready()
        fed = _begun(server)
        with _behind_nginx(folder, lives.url) as proxy:
            for number in range(count):
                for peer in filter(None, (Peer(lives.url), proxy)):
                    rng, directly = Random(f"{seed} {number}"), peer.context is None
                    with _upload(fed, lives.data_dir, number) as upload:
                        shot = _shot(rng, number, upload)
                        if not directly and shot.name in NGINX_READS_OTHERWISE:
                            continue
                        got, wrong = _fire(peer, shot, rng, directly)
                        wrong = wrong or _stored(shot, upload, got, directly)
                    answered += directly * len(got)
                    proxied += (not directly) * len(got)
                    lost += [f"{number}, {shot.name}, {peer.url}: {wrong}"] if wrong else []
                progress(number + 1)
        lost += lives.failures()
    return {
        "tried": count,
        "lost": len(lost),
        "cases": len(CASES),
        "answered": answered,
        "answered_through_nginx": proxied,
        "broken": lost[:20],
    }


@contextlib.contextmanager
def _behind_nginx(folder: Path, url: str) -> Iterator[Peer | None]:
    if shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        yield None
        return
    authority = Authority(folder / "ca", "CA")
    served, tls = authority.issue("localhost"), folder / "tls"
    tls.mkdir()
    shutil.copy(served.certificate, tls / "server.pem")
    shutil.copy(served.key, tls / "server.key")
    upstream = url.removeprefix("http://")
    with nginx(folder / "nginx", upstream, tls) as proxy:
        yield Peer(proxy, authority.files().context())


def _begun(server: Server) -> Federation:
    """A run of one member, whose adapters are large."""
    settings = merged({"clients": 1})
    card = model_card(MODEL, settings.lora, "small", None).model_copy(update={"layout": LAYOUT})
    operator = server.client()
    run = operator.create_run(CreateRun(name="framing", settings=settings, model=card))
    operator.put_tokenizer(run.id, TOKENIZER)
    for kind in SetKind:
        operator.put_set(run.id, kind, jsonl(problems(12)))
    operator.move_run(run.id, paths.RUN_OPEN)
    fed = Federation(server, run, operator)
    fed.enroll("a")
    return fed


@contextlib.contextmanager
def _upload(fed: Federation, data_dir: Path, number: int) -> Iterator[Upload]:
    body = {"digest": f"blake3:{number:064x}", "size": LAYOUT.file_bytes}
    with fed.server.http(fed.tokens["a"]) as http:
        opened = http.post(paths.UPLOADS.format(run=fed.run.id), json=body).json()["upload"]
        path = paths.UPLOAD.format(run=fed.run.id, upload=opened)
        yield Upload(path, fed.tokens["a"], data_dir / "uploads" / opened)
        assert http.delete(path).status_code == 204


def _shot(rng: Random, number: int, upload: Upload) -> Shot:
    first = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Request-ID: first\r\n\r\n"
    last = first.replace(b"first\r\n", b"last\r\nConnection: close\r\n")
    if rng.random() < CASE_SHARE:
        name = list(CASES)[number % len(CASES)]
        return Shot(name, first + CASES[name] + last)
    shot = Shot("pipeline", rng.choice((first, b"")))
    for n in range(rng.randint(1, 5)):
        _add_spelling(rng, f"r{n}", upload, shot)
    shot.data += last
    return shot


def _add_spelling(rng: Random, name: str, upload: Upload, shot: Shot) -> None:
    """A request whose body is requests, of a size that is read at once or in many pieces."""
    kind = rng.choice(("chunk", "chunk", "json", "nobody reads"))
    most = 3_000_000 if kind == "chunk" else 300_000
    size = int(most ** rng.choice((rng.random(), rng.uniform(0.74, 0.8))))
    body = b"x" * rng.randint(0, 80) + EVIL * (size // len(EVIL) + 1)
    line = "POST /nowhere HTTP/1.1\r\n"
    if kind == "json":
        line = "POST /v1/enroll HTTP/1.1\r\n"
    elif kind == "chunk":
        begin = sum(map(len, shot.chunks.values()))
        line = f"PATCH {upload.path} HTTP/1.1\r\nAuthorization: Bearer {upload.token}\r\n"
        line += f"Content-Range: {begin}-{begin + len(body) - 1}\r\n"
        shot.chunks[name] = body
    shot.data += f"{line}Host: x\r\nX-Request-ID: {name}\r\n".encode() + _framed(rng, body)
    if len(body) > 2000:
        shot.ends.append(len(shot.data))


def _framed(rng: Random, body: bytes) -> bytes:
    if rng.random() < 0.5:
        return b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces, place = [], 0
    while place < len(body):
        step = rng.choice((7, 1000, 100_000)) if len(pieces) < 50 else len(body)
        piece = body[place : place + step]
        pieces.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        place += step
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + _END


def _fire(peer: Peer, shot: Shot, rng: Random, directly: bool) -> tuple[list[str], str | None]:
    """The ids that were answered, and what is wrong with that."""
    answers = _exchanged(peer, shot, rng)
    form = rb"HTTP/1\.1 \d{3} (?:[^\r]*\r\n)+?x-request-id: (\S+)\r\n"
    got = [found[1].decode() for found in re.finditer(form, answers)]
    must, may = (_ids(framed(shot.data, lenient), directly) for lenient in (False, True))
    # An answer that was not asked for by an id has one of the coordinator's own.
    got = [name for name in got if not re.fullmatch(r"[0-9a-f]{32}", name)]
    if got != may[: len(got)]:
        return got, f"answered {got}, and there are {may}"
    # uvicorn refuses bytes that it cannot parse at once, before the answers to earlier requests.
    if directly and got[: len(must)] != must and REFUSED not in answers:
        return got, f"answered {got} of {must}"
    return got, None


def _stored(shot: Shot, upload: Upload, got: list[str], directly: bool) -> str | None:
    """What is wrong with the bytes that the chunks have left."""
    bodies = [body for name, body in shot.chunks.items() if name in got]
    if not bodies and not directly:
        return None
    wanted, found = b"".join(bodies), upload.file.read_bytes() if upload.file.exists() else b""
    return None if found == wanted else f"{len(found)} bytes of {len(wanted)} are stored, or others"


def _ids(requests: list[Framed], directly: bool) -> list[str]:
    """The ids that are answered: the coordinator closes when it left some of a body."""
    ids = []
    for request in requests:
        ids += [name.decode() for name in request.all(b"x-request-id")]
        if (
            directly
            and request.has_body
            and (request.target == b"/nowhere" or request.method == b"GET")
        ):
            break
    return ids


def _exchanged(peer: Peer, shot: Shot, rng: Random) -> bytes:
    """All answers to bytes that are sent in random pieces, from one thread: TLS is for one."""
    answers, pieces = bytearray(), list(_pieces(shot, rng))
    pauses = [rng.random() * 0.1 / len(pieces) if rng.random() < 0.5 else 0.0 for _ in pieces]
    deadline, go_on = time.monotonic() + 60, 0.0
    with peer.connected() as connection:
        connection.setblocking(False)
        while time.monotonic() < deadline:
            try:
                while piece := connection.recv(1 << 16):
                    answers += piece
                break
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except OSError:
                break
            if pieces and time.monotonic() >= go_on:
                try:
                    pieces[0] = pieces[0][connection.send(pieces[0]) :]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                except OSError:
                    pieces.clear()  # what was answered before may still be read
                if pieces and not pieces[0]:
                    pieces.pop(0)
                    go_on = time.monotonic() + pauses.pop(0)
            writing = [connection] if pieces and time.monotonic() >= go_on else []
            select.select([connection], writing, [], 0.01 if pieces else 1.0)
    return bytes(answers)


def _pieces(shot: Shot, rng: Random) -> Iterator[bytes]:
    """All at once, cut twice shortly before the bodies' ends, or cut in some dozen places."""
    data, kind = shot.data, rng.choice(("whole", "ends", "ends", "anywhere"))
    cuts = [rng.randrange(len(data)) for _ in range(rng.randint(1, 40))]
    if kind != "anywhere":
        before = [rng.randint(1, most) for most in (2000, 8000)] if kind == "ends" else []
        cuts = [max(0, end - bytes_) for end in shot.ends for bytes_ in before]
    for begin, end in itertools.pairwise(sorted({0, *cuts, len(data)})):
        yield data[begin:end]
