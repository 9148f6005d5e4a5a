"""HTTP request framing by RFC 9112, written without looking at the parser under test."""

import re
from dataclasses import dataclass

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
LARGEST = 1 << 62


class BadError(Exception):
    """A request that a server must refuse."""


class NotWholeError(Exception):
    """The data ends before the request does."""


@dataclass(frozen=True)
class Framed:
    """A parsed request."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    has_body: bool
    last: bool  # the connection ends after its response

    def all(self, name: bytes) -> list[bytes]:
        """A header's values."""
        return [value for key, value in self.headers if key == name]


def framed(data: bytes, lenient: bool) -> list[Framed]:
    """The requests in a connection's bytes, up to the last or the first that is bad or cut off.

    `lenient` accepts what a server may accept, beyond what it must. An upgrade is ignored and ends
    the connection.
    """
    requests: list[Framed] = []
    position = 0
    while position < len(data) and not (requests and requests[-1].last):
        try:
            request, position = _request(data, position, lenient)
        except (BadError, NotWholeError):
            break
        requests.append(request)
    return requests


def _request(data: bytes, position: int, lenient: bool) -> tuple[Framed, int]:
    while data.startswith(b"\r\n", position):
        position += 2
    lines, position = _lines(data, position, lenient)
    if lenient:
        words = lines[0].split()
        line = b" ".join(words)
    else:
        line = lines[0]
    start = re.fullmatch(rb"(%s) ([\x21-\x7e]+) HTTP/1\.([01])" % TOKEN, line)
    if start is None or start[1] == b"CONNECT":
        raise BadError
    headers = _headers(lines[1:], lenient)
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    old = start[3] == b"0"
    hosts = len(values.get(b"host", []))
    if (hosts > 1 or (hosts == 0 and not old)) and not lenient:  # a server may answer it
        raise BadError
    has_body, ends, position = _body(data, position, values, old, lenient)
    wishes = b",".join(values.get(b"connection", [])).lower().replace(b" ", b"").split(b",")
    upgrades = b"upgrade" in wishes and b"upgrade" in values
    last = ends or old or b"close" in wishes or upgrades
    return Framed(start[1], start[2], headers, has_body, last), position


def _lines(data: bytes, position: int, lenient: bool) -> tuple[list[bytes], int]:
    ending = rb"\r?\n" if lenient else rb"\r\n"
    end = re.compile(ending + ending).search(data, position)
    if end is None:
        raise NotWholeError
    return re.split(ending, data[position : end.start()]), end.end()


def _headers(lines: list[bytes], lenient: bool) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and headers and lenient:  # obsolete folding
            name, value = headers[-1]
            headers[-1] = (name, (value + b" " + line.strip(b" \t")).strip(b" "))
            continue
        match = re.fullmatch(rb"(%s):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*" % TOKEN, line)
        if match is None:
            raise BadError
        headers.append((match[1].lower(), match[2]))
    return headers


def _body(
    data: bytes, position: int, values: dict[bytes, list[bytes]], old: bool, lenient: bool
) -> tuple[bool, bool, int]:
    """Whether there is a body, whether the connection must end after it, and where it ends."""
    lengths, codings = values.get(b"content-length"), values.get(b"transfer-encoding")
    if codings is not None:
        coding = b",".join(codings).lower()
        if coding != b"chunked" and not (lenient and coding.endswith(b", chunked")):
            raise BadError
        if (old or lengths) and not lenient:
            raise BadError
        return True, bool(lengths), _chunked(data, position, lenient)
    if lengths is None:
        return False, False, position
    if lenient:
        lengths = list({length.strip(b" \t") for value in lengths for length in value.split(b",")})
    if len(lengths) != 1 or not re.fullmatch(rb"[0-9]+", lengths[0]) or int(lengths[0]) > LARGEST:
        raise BadError
    if position + int(lengths[0]) > len(data):
        raise NotWholeError
    return lengths[0].strip(b"0") != b"", False, position + int(lengths[0])


def _chunked(data: bytes, position: int, lenient: bool) -> int:
    extension = rb'(?:[ \t]*;[ \t]*%s(?:[ \t]*=[ \t]*(?:%s|"[^"\r\n]*"))?)*' % (TOKEN, TOKEN)
    while True:
        end = data.find(b"\r\n", position)
        if end < 0:
            raise NotWholeError
        size = re.fullmatch(rb"([0-9A-Fa-f]+)" + extension, data[position:end])
        if size is None or int(size[1], 16) > LARGEST:
            raise BadError
        position = end + 2
        if int(size[1], 16) == 0:
            break
        position += int(size[1], 16)
        if position + 2 > len(data):
            raise NotWholeError
        if data[position : position + 2] != b"\r\n":
            raise BadError
        position += 2
    if data.startswith(b"\r\n", position):
        return position + 2
    lines, position = _lines(data, position, lenient)
    names = {name for name, _ in _headers(lines, lenient)}
    if names & {b"content-length", b"transfer-encoding"} and not lenient:
        raise BadError
    return position
