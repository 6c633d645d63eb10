"""Records past HW on a real cluster: seen by who asks for them, and missed by their reader when their leader dies with them [R6]."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from liftpy.client import Consumer, EventKind, ReadEvent, ReadOptions
from liftpy.config import AckPolicy, StreamConfig
from liftpy.errors import LiftError, LogTruncatedError
from liftpy.wire.batch import Record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NODES = ("n1", "n2", "n3")
WAIT_S = 60.0


async def whole(bench: Any, name: str) -> str:
    """Wait until all are in sync; return who leads."""

    async def ready() -> bool:
        return await bench.isr(name) == set(NODES) and await bench.ready(name)

    await bench.until(ready, "all nodes are in sync")
    return str(await bench.leader(name))


def signalled(bench: Any, leader: str, number: signal.Signals) -> None:
    """All nodes but the leader."""
    for node in NODES:
        if node != leader:
            bench.cluster.nodes[node].send(number)


async def read_past_hw(bench: Any, name: str, value: bytes, options: ReadOptions) -> tuple[Consumer, Record, str] | None:
    """(a reader that has just read ``value``, its record, its leader), which no follower has, because they are stopped; None: the
    leader had to step aside before it was read, on a busy machine, and they go on."""
    leader = await whole(bench, name)
    reading = bench.client.consume(name, start="new", options=options)
    await reading.begin()
    signalled(bench, leader, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5), await bench.client.publisher(name) as publisher:
            for number in (0, 1, 2):  # the first ones answer fetches that were under way: they come where nobody looks yet
                await (await publisher.send(value if number == 2 else b"before", ack=AckPolicy.LEADER))
                await asyncio.sleep(0.05)
            while (record := await reading.getone()).value != value:
                pass
        return reading, record, leader
    except (TimeoutError, LiftError):
        signalled(bench, leader, signal.SIGCONT)
        return None


async def test_what_its_leader_takes_along_is_missed(fragile: Any, stream_name: str) -> None:
    await fragile.create(stream_name, config=StreamConfig(min_isr=2))
    await whole(fragile, stream_name)
    await fragile.publish_acked(f"data.{stream_name}", [b"kept"])
    told: list[ReadEvent] = []
    options = ReadOptions(isolation="uncommitted", on_event=told.append, patience_s=WAIT_S)
    found, tries = None, 0
    while found is None:
        tries += 1
        found = await read_past_hw(fragile, stream_name, b"lost %d" % tries, options)
    reading, lost, leader = found
    await asyncio.to_thread(fragile.cluster.nodes[leader].kill)
    signalled(fragile, leader, signal.SIGCONT)
    with pytest.raises(LogTruncatedError) as error:
        await reading.getone(WAIT_S)
    assert 0 < error.value.end_offset <= lost.offset
    await reading.seek(error.value.end_offset)
    await fragile.publish_acked(f"data.{stream_name}", [b"instead"])
    while (instead := await reading.getone(WAIT_S)) is not None and instead.value == b"before":
        pass
    assert instead is not None
    assert (instead.value, instead.leader_epoch > lost.leader_epoch) == (b"instead", True)
    assert {EventKind.ANSWERED, EventKind.FAILED, EventKind.MOVED} <= {event.kind for event in told}
    committed = [record.value async for record in fragile.client.consume(stream_name, until="end")]
    assert lost.value not in committed
    assert b"instead" in committed
