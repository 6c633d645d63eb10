"""A relay that delays TCP connections: ``python -m sidecar.bench.delay_relay DELAY_MS PORT...``.

For each PORT it listens on a port of its own on 127.0.0.1, and passes the bytes of each connection to and from PORT.
Bytes leave DELAY_MS milliseconds after they have arrived, in both directions. So the relay stands for the network between
two hosts. It has no limit of bandwidth and loses nothing.

It prints its ports as one line of JSON, in the order of the PORTs, and runs until it is killed. ``tests.bench.versions``
runs this file with other versions of liftpy, so it imports only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys
from asyncio import StreamReader, StreamWriter
from functools import partial

_HOST = "127.0.0.1"
_READ_BYTES = 256 * 1024


async def _pass_on(delay_s: float, reader: StreamReader, writer: StreamWriter) -> None:
    """Pass the bytes of one direction until its end, and then the end."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(_READ_BYTES):
            loop.call_later(delay_s, writer.write, data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        loop.call_later(delay_s, writer.close)


async def _accepted(delay_s: float, port: int, reader: StreamReader, writer: StreamWriter) -> None:
    """Open a connection to ``port`` for a connection of a client, and pass the bytes of both directions."""
    try:
        target_reader, target_writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pass_on(delay_s, reader, target_writer), _pass_on(delay_s, target_reader, writer))


async def _serve(delay_s: float, ports: list[int]) -> None:
    servers = [await asyncio.start_server(partial(_accepted, delay_s, port), _HOST, 0) for port in ports]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with exact timers. epoll rounds each wait up to a millisecond, and select does not."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(float(sys.argv[1]) / 1000, [int(port) for port in sys.argv[2:]]))
