"""A relay that delays TCP connections: ``python -m sidecar.bench.delay_relay DELAY_MS BYTES_PER_S PORT...``.

For each PORT it listens on a port of its own on 127.0.0.1, and passes the bytes of each connection to and from PORT. So the
relay stands for the network link of one host. Each direction of a link passes at most BYTES_PER_S bytes per second (0: no
limit), for all its connections together. Bytes arrive DELAY_MS milliseconds after they were sent. A sender with too many bytes
waits, as on a full link. Nothing is lost.

It prints its ports as one line of JSON, in the order of the PORTs, and runs until it is killed. ``tests.bench.versions``
runs this file with other versions of liftpy, so it imports only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import math
import selectors
import sys
from asyncio import StreamReader, StreamWriter
from functools import partial

_HOST = "127.0.0.1"
_READ_BYTES = 64 * 1024
_QUEUE_S = 0.01
"""Time that a full link needs for the bytes that wait for it, in seconds. Further bytes wait at their sender."""


class _Link:
    """One direction of the network link of a host. ``bytes_per_s``: its bandwidth. 0: no limit."""

    def __init__(self, delay_s: float, bytes_per_s: float) -> None:
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        """Time at which the last byte so far has left the sender, in seconds of the event loop."""

    def transmit(self, size_bytes: int, now_s: float) -> tuple[float, float]:
        """Send ``size_bytes`` at ``now_s``. Return the time of their arrival, and for how long the link is busy, in seconds."""
        self._free_at_s = max(self._free_at_s, now_s) + (size_bytes / self._bytes_per_s if self._bytes_per_s else 0.0)
        return self._free_at_s + self._delay_s, self._free_at_s - now_s


async def _pass_on(link: _Link, reader: StreamReader, writer: StreamWriter) -> None:
    """Pass the bytes of one direction of a connection until its end, and then the end."""
    loop = asyncio.get_running_loop()
    arrival_s = 0.0
    try:
        while data := await reader.read(_READ_BYTES):
            sent_s, busy_s = link.transmit(len(data), loop.time())
            arrival_s = max(sent_s, math.nextafter(arrival_s, math.inf))  # timers of equal times may change places
            loop.call_at(arrival_s, writer.write, data)
            await writer.drain()
            if busy_s > _QUEUE_S:
                await asyncio.sleep(busy_s - _QUEUE_S)
    except ConnectionError:
        pass
    finally:
        loop.call_at(max(link.transmit(0, loop.time())[0], math.nextafter(arrival_s, math.inf)), writer.close)


async def _accepted(port: int, there: _Link, back: _Link, reader: StreamReader, writer: StreamWriter) -> None:
    try:
        target_reader, target_writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pass_on(there, reader, target_writer), _pass_on(back, target_reader, writer))


async def _serve(delay_s: float, bytes_per_s: float, ports: list[int]) -> None:
    servers = []
    for port in ports:
        there, back = _Link(delay_s, bytes_per_s), _Link(delay_s, bytes_per_s)
        servers.append(await asyncio.start_server(partial(_accepted, port, there, back), _HOST, 0))
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with exact timers. epoll rounds each wait up to a millisecond, and select does not."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(float(sys.argv[1]) / 1000, float(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
