"""The floor: streaming PUT to a file, numpy's mean of memory-mapped files, streaming GET.

It has no database, checks, digests or fsync. It is started as a process of its own:

    python -m coordination.limits.floor --port P --folder F --clients N --parameters M
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

SLICE = 1 << 16  # numbers: a slice of every client stays in the processor's cache
PIECE = 1 << 20  # bytes of a download given to the socket at once
THREADS = 2


def create_floor(folder: Path, clients: int, parameters: int) -> FastAPI:
    """The application; it computes a round's mean when the last client's file is complete."""
    app = FastAPI()
    arrived: dict[int, int] = {}
    ready: dict[int, asyncio.Event] = {}

    @app.put("/{round_}/{client}")
    async def put(round_: int, client: int, request: Request) -> Response:
        descriptor = os.open(folder / f"{round_}-{client}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            # Writing to the page cache is cheaper than a trip to a thread.
            async for piece in request.stream():
                os.write(descriptor, piece)
        finally:
            os.close(descriptor)
        arrived[round_] = arrived.get(round_, 0) + 1
        if arrived[round_] == clients:
            await asyncio.to_thread(write_mean, folder, round_, clients, parameters)
            ready.setdefault(round_, asyncio.Event()).set()
        return Response(status_code=201)

    @app.get("/{round_}")
    async def get(round_: int) -> Response:
        await ready.setdefault(round_, asyncio.Event()).wait()
        path = folder / f"{round_}-mean"
        headers = {"Content-Length": str(4 * parameters)}
        return StreamingResponse(_pieces(path), headers=headers)

    return app


async def _pieces(path: Path) -> AsyncIterator[memoryview]:
    with path.open("rb") as file:
        view = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        for begin in range(0, len(view), PIECE):
            yield view[begin : begin + PIECE]


def write_mean(folder: Path, round_: int, clients: int, parameters: int) -> None:
    """Write the mean in float32, slice by slice, on two threads."""
    names = [folder / f"{round_}-{client}" for client in range(clients)]
    updates = [np.memmap(name, np.float32, "r", shape=(parameters,)) for name in names]
    mean = np.memmap(folder / f"{round_}-mean", np.float32, "w+", shape=(parameters,))

    def work(begins: Iterator[int]) -> None:
        for begin in begins:
            out = mean[begin : begin + SLICE]
            np.add(updates[0][begin : begin + SLICE], updates[-1][begin : begin + SLICE], out=out)
            for update in updates[1:-1]:
                np.add(out, update[begin : begin + SLICE], out=out)
            np.multiply(out, np.float32(1 / clients), out=out)

    with ThreadPoolExecutor(THREADS) as pool:
        step = SLICE * THREADS
        shares = [iter(range(SLICE * t, parameters, step)) for t in range(THREADS)]
        list(pool.map(work, shares))


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    options = parser.parse_args()
    app = create_floor(options.folder, options.clients, options.parameters)
    uvicorn.run(
        app,
        port=options.port,
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        timeout_keep_alive=3600,  # it is idle during the others' turns
    )


if __name__ == "__main__":
    main()
