"""A process that publishes single messages through a client library for some seconds, each of them acknowledged:
``python -m tests.bench.peer.client PORT STREAM SECONDS SIZE WINDOW HOW``.

HOW: ``publisher`` (``client.publisher``), ``ids`` (the same, each message with an id), ``gather`` (``client.publish``, a window of
calls at once), ``calls`` (``client.publish``, one after the other), ``nats-py`` (``js.publish_async``). Prints one line of JSON:
``acked``, ``took_s``, ``cpu_s``, the time of this process on a core from the first message to the last ack, and ``grown_mb``, by
which its resident memory grew from the middle to the end. Every ack is looked at: it names its message, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import nats

from liftpy.client import PublishOptions, connect

_BLOCK = 500
"""Messages between two looks at the clock."""
_STALL_S = 60.0


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Clock:
    """From when it is made."""

    def __init__(self, seconds: float) -> None:
        self._began, self._cpu, self._seconds = time.perf_counter(), time.process_time(), seconds
        self._resident_bytes = 0

    @property
    def goes_on(self) -> bool:
        """Whether the seconds are not over."""
        past_s = time.perf_counter() - self._began
        if past_s > self._seconds / 2 and not self._resident_bytes:
            self._resident_bytes = resident_bytes()
        return past_s < self._seconds

    def figures(self, acked: int) -> dict[str, float]:
        """As they are printed."""
        cpu_s, took_s = time.process_time() - self._cpu, time.perf_counter() - self._began
        grown_mb = (resident_bytes() - (self._resident_bytes or resident_bytes())) / 1e6
        return {"acked": acked, "took_s": took_s, "cpu_s": cpu_s, "grown_mb": grown_mb}


class Acks:
    """Looks at each as an application does: when it has come, in the order of the messages."""

    def __init__(self, before: int, named: Callable[[Any], int]) -> None:
        self._last, self._named = before, named
        self._coming: deque[asyncio.Future[Any]] = deque()
        self.count = 0

    def expect(self, coming: asyncio.Future[Any]) -> None:
        """The next message's."""
        self._coming.append(coming)

    def look(self) -> None:
        """At those that have come; SystemExit where one is not the next of the one before it."""
        coming, named, last, before = self._coming, self._named, self._last, self.count
        while coming and coming[0].done():
            self.count += 1
            if named(coming.popleft().result()) != last + self.count - before:
                raise SystemExit("the acks do not name the messages in their order")
        self._last = last + self.count - before


async def publisher(port: int, stream: str, seconds: float, size_bytes: int, window: int, ids: bool) -> dict[str, float]:
    """Ours, as long as the window has room."""
    value = b"x" * size_bytes
    async with connect(f"nats://127.0.0.1:{port}") as client:
        options = PublishOptions(window=window, message_ids=ids)
        async with await client.publisher(stream, options=options) as ours:
            acks = Acks((await ours.publish(value)).offset, attrgetter("offset"))
            clock = Clock(seconds)
            while clock.goes_on:
                for _ in range(_BLOCK):
                    acks.expect(await ours.send(value))
                acks.look()
            await ours.flush()
            acks.look()
            return clock.figures(acks.count)


async def calls(port: int, stream: str, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    """``client.publish``, so many at once."""
    value, count = b"x" * size_bytes, 0
    async with connect(f"nats://127.0.0.1:{port}") as client:
        first = (await client.publish(stream, value)).offset + 1
        clock = Clock(seconds)
        while clock.goes_on:
            acked = await asyncio.gather(*(client.publish(stream, value) for _ in range(window)))
            if [ack.offset for ack in acked] != [*range(first + count, first + count + window)]:
                raise SystemExit("the acks do not name the messages in their order")
            count += window
        return clock.figures(count)


async def nats_py(port: int, stream: str, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    """nats-py's asynchronous publishes."""
    value = b"x" * size_bytes
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    theirs = connection.jetstream(publish_async_max_pending=window)
    acks = Acks((await theirs.publish(stream, value)).seq, attrgetter("seq"))
    clock = Clock(seconds)
    while clock.goes_on:
        for _ in range(_BLOCK):
            acks.expect(await theirs.publish_async(stream, value, wait_stall=_STALL_S))
        acks.look()
    await theirs.publish_async_completed()
    acks.look()
    figures = clock.figures(acks.count)
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
