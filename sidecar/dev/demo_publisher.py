"""Publisher of the demo: a process that publishes with plain nats-py and uses no part of liftpy.

A publish without reply subject gets no answer, so the publisher must not be faster than the sidecars. The demo controls its
pace: each line on the standard input is the number of messages that may have been sent by now. The process prints the
number that it has sent in the same way.
"""

from __future__ import annotations

import asyncio
import sys

import click
import nats
import uvloop
from nats.aio.client import Client as NatsConnection

from sidecar.dev.demo_flights import FLIGHT_COUNT, read_flights

_BURST = 2000


async def publish_at_pace(connection: NatsConnection, subject: str, lines: list[bytes], pace: asyncio.StreamReader) -> int:
    """Publish ``lines`` in order, as far as ``pace`` allows. Return the number of sent lines.

    It is lower if the pace ends early.
    """
    sent = 0
    while sent < len(lines):
        word = await pace.readline()
        if not word:
            break
        allowed = min(int(word), len(lines))
        while sent < allowed:
            burst = lines[sent : min(sent + _BURST, allowed)]
            for line in burst:
                await connection.publish(subject, line)
            await connection.flush()
            sent += len(burst)
            print(sent, flush=True)
    return sent


async def _run(urls: list[str], subject: str, first: int, records: int) -> None:
    lines = read_flights(first + records)[first:]
    pace = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pace), sys.stdin)
    connection = await nats.connect(urls, name="demo-publisher")
    try:
        await publish_at_pace(connection, subject, lines, pace)
    finally:
        await connection.close()


@click.command()
@click.option("--nats", "urls", required=True)
@click.option("--subject", required=True)
@click.option("--first", type=int, default=0)
@click.option("--records", type=int, default=FLIGHT_COUNT)
def main(urls: str, subject: str, first: int, records: int) -> None:
    """Publish the flights on SUBJECT."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(urls.split(","), subject, first, records))


if __name__ == "__main__":
    main()
