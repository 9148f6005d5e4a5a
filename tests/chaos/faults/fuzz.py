"""Fuzzing of what reads files from outside: headers, adapters, responses.

    PYTHONPATH=tests python tests/chaos/fuzz.py COUNT SEED FOLDER

Each input is made from a valid file by a few changes, of the header's meaning, of its text, or of
the bytes, all drawn from (seed, number), so that one number is enough to see an input again. An
input is lost if a reader does anything but accept it or raise InvalidAdapter or InvalidResponses,
if it accepts what the safetensors library does not read as the same tensors, if it refuses a file
that was not changed, or if it takes a second of processor time or more than 200 MB of memory.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from pubswap_protocol.errors import InvalidAdapter, InvalidResponses
from pubswap_protocol.tensors.adapter import AdapterFile, decode_adapter, encode_adapter
from pubswap_protocol.tensors.responses import decode_responses
from pubswap_protocol.tensors.safetensors_header import read_header
from support.chaos.mutations import LAYOUT, RULES, Input, make

MOST_SECONDS = 1.0
MOST_MB = 200
KEPT_EXAMPLES = 10
NUMPY = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"}


def library(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What the safetensors library reads; raises SafetensorError."""
    return {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in deserialize(data)
    }


def check_header(data: bytes) -> bool:
    """Whether `read_header` accepts; raises AssertionError unless the library agrees then."""
    try:
        specs, start = read_header(data)
    except InvalidAdapter:
        return False
    try:
        theirs = library(data)
    except SafetensorError as error:
        raise AssertionError(f"the library does not read what we accept: {error}") from None
    ours = {
        name: (spec.dtype, spec.shape, data[start + spec.begin : start + spec.end])
        for name, spec in specs.items()
    }
    assert ours == theirs, "the library reads other tensors"
    return True


def check_adapter(data: bytes, path: Path) -> bool:
    """Whether an adapter is accepted, by both of its readers alike and with the same tensors."""
    header = check_header(data)
    path.write_bytes(data)
    try:
        file = AdapterFile(path, LAYOUT)
        file.digest()
    except InvalidAdapter:
        accepted = False
    else:
        accepted = True
    try:
        decoded = decode_adapter(LAYOUT, data)
    except InvalidAdapter:
        assert not accepted, "only one of the two readers accepts"
        return False
    assert accepted and header, "only one of the two readers accepts"
    theirs = {
        name: np.frombuffer(raw, "<f4").reshape(shape)
        for name, (_, shape, raw) in library(data).items()
    }
    assert set(theirs) == set(LAYOUT.tensors)
    for name, array in file.load().items():
        assert np.array_equal(array, theirs[name]) and np.array_equal(array, decoded[name])
        assert np.isfinite(array).all()
    assert data == encode_adapter(LAYOUT, theirs)
    return True


def check_responses(data: bytes, path: Path) -> bool:
    """Whether responses are accepted; each must then obey the rules, as the library reads it."""
    header = check_header(data)
    try:
        groups = decode_responses(data, RULES)
    except InvalidResponses:
        return False
    assert header
    read = {
        name: np.frombuffer(raw, f"<{NUMPY.get(dtype, 'u1')}").reshape(shape)
        for name, (dtype, shape, raw) in library(data).items()
    }
    assert read["prompts"].tolist() == list(RULES.prompts)
    assert len(groups) == 2 and all(len(group) == 2 for group in groups)
    flat = [response for group in groups for response in group]
    assert [len(r.tokens) for r in flat] == read["lengths"].reshape(-1).tolist()
    assert np.array_equal(np.concatenate([r.tokens for r in flat]), read["tokens"])
    assert np.array_equal(np.concatenate([r.logprobs for r in flat]), read["logprobs"])
    for response in flat:
        assert 1 <= len(response.tokens) <= 4
        assert all(0 <= token < 50 for token in response.tokens.tolist())
        assert 9 not in response.tokens[:-1].tolist()
        assert len(response.tokens) == 4 or response.tokens[-1] == 9
        assert all(-np.inf < logprob <= 1e-4 for logprob in response.logprobs.tolist())
    return True


def outcome(made: Input, path: Path) -> str | None:
    """What is wrong with how an input is read; None if nothing is."""
    started = time.thread_time()
    try:
        accepted = (check_adapter if made.adapter else check_responses)(made.data, path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if made.valid and not accepted:
        return "a valid file was refused"
    seconds = time.thread_time() - started
    return f"it took {seconds:.1f} s" if seconds > MOST_SECONDS else None


def fuzz(count: int, seed: int, folder: Path) -> dict[str, float]:
    """Try `count` inputs in this process; lost ones are kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path, lost, slowest = folder / "input", 0, 0.0
    for number in range(count):
        made = make(seed, number)
        started = time.thread_time()
        wrong = outcome(made, path)
        slowest = max(slowest, time.thread_time() - started)
        if wrong is not None:
            lost += 1
            if lost <= KEPT_EXAMPLES:
                (folder / f"lost-{seed}-{number}").write_bytes(made.data)
                sys.stderr.write(f"input {number} of seed {seed}: {wrong}\n")
    peak_mb = _peak_kilobytes() / 1024
    if peak_mb > MOST_MB:
        lost = max(lost, 1)
    return {"tried": count, "lost": lost, "slowest_seconds": slowest, "peak_mb": peak_mb}


def _peak_kilobytes() -> int:
    """Of this program: getrusage's would count the process that it was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Try `count` inputs in a process of their own, whose memory is theirs alone."""
    command = [sys.executable, str(Path(__file__)), str(count), str(seed), str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
