"""A process that publishes single messages through a client library for some seconds, each of them acknowledged:
``python -m tests.bench.peer.client PORT STREAM SECONDS SIZE WINDOW HOW``.

HOW: ``publisher`` (``client.publisher``), ``ids`` (the same, each message with an id), ``gather`` (``client.publish``, a window of
calls at once), ``calls`` (``client.publish``, one after the other), ``nats-py`` (``js.publish_async``). Prints one line of JSON:
``acked``, ``took_s``, and ``cpu_s``, the time of this process on a core from the first message to the last ack. Every ack is looked
at: it names its message, in order.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import nats

from liftpy.client import PublishOptions, connect

_BLOCK = 500
"""Messages between two looks at the clock."""
_STALL_S = 60.0


class Clock:
    """From when it is made."""

    def __init__(self, seconds: float) -> None:
        self._end, self._began, self._cpu = time.perf_counter() + seconds, time.perf_counter(), time.process_time()

    @property
    def goes_on(self) -> bool:
        """Whether the seconds are not over."""
        return time.perf_counter() < self._end

    def figures(self, acked: int) -> dict[str, float]:
        """As they are printed."""
        return {"acked": acked, "took_s": time.perf_counter() - self._began, "cpu_s": time.process_time() - self._cpu}


def rising(sequences: list[int]) -> int:
    """How many there are; SystemExit where one is not the next of the one before it."""
    if sequences != list(range(sequences[0], sequences[0] + len(sequences))):
        raise SystemExit("the acks do not name the messages in their order")
    return len(sequences)


async def publisher(port: int, stream: str, seconds: float, size_bytes: int, window: int, ids: bool) -> dict[str, float]:
    """Ours, as long as the window has room."""
    value = b"x" * size_bytes
    async with connect(f"nats://127.0.0.1:{port}") as client:
        options = PublishOptions(window=window, message_ids=ids)
        async with await client.publisher(stream, options=options) as ours:
            await ours.publish(value)
            clock, coming = Clock(seconds), []
            while clock.goes_on:
                for _ in range(_BLOCK):
                    coming.append(await ours.send(value))
            await ours.flush()
            figures = clock.figures(len(coming))
            rising([answer.result().offset for answer in coming])
    return figures


async def calls(port: int, stream: str, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    """``client.publish``, so many at once."""
    value, acked = b"x" * size_bytes, []
    async with connect(f"nats://127.0.0.1:{port}") as client:
        await client.publish(stream, value)
        clock = Clock(seconds)
        while clock.goes_on:
            acked += await asyncio.gather(*(client.publish(stream, value) for _ in range(window)))
        figures = clock.figures(len(acked))
    rising([ack.offset for ack in acked])
    return figures


async def nats_py(port: int, stream: str, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    """nats-py's asynchronous publishes."""
    value = b"x" * size_bytes
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    theirs = connection.jetstream(publish_async_max_pending=window)
    await theirs.publish(stream, value)
    clock, coming = Clock(seconds), []
    while clock.goes_on:
        for _ in range(_BLOCK):
            coming.append(await theirs.publish_async(stream, value, wait_stall=_STALL_S))
    await theirs.publish_async_completed()
    figures = clock.figures(len(coming))
    rising([answer.result().seq for answer in coming])
    await connection.close()
    return figures


HOW: dict[str, Callable[..., Any]] = {
    "publisher": lambda *given: publisher(*given, ids=False),
    "ids": lambda *given: publisher(*given, ids=True),
    "gather": calls,
    "calls": lambda *given: calls(*given[:-1], 1),
    "nats-py": nats_py,
}


def main() -> None:
    """See the docstring above."""
    port, stream, seconds, size_bytes, window, how = sys.argv[1:]
    print(json.dumps(asyncio.run(HOW[how](int(port), stream, float(seconds), int(size_bytes), int(window)))))


if __name__ == "__main__":
    main()
