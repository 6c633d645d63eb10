"""Test reads of a service in the process of the node: a local call with the same answers as over NATS."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftpy.client.consumer import ReadOptions
from liftpy.client.progress import ReadProgress
from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import UnavailableError
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError
from sidecar.groups.coordinators import LocalReader
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.runtime.timers import Timers
from tests.batches import build_batch

KEY = PartitionKey("_groups", "u1", 0)
OPTIONS = ReadOptions(node="n1", wait_s=0.0, answer_timeout_s=0.05, patience_s=0.1)


class Bus:
    max_payload = 1 << 20
    has_room = True

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def listen(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(close=lambda: None)

    def send(self, *message: Any) -> None:
        self.sent.append(message)


def reads(bus: Bus, may_serve: bool = True, log: Log | None = None) -> ReadSubjects:
    """Source of reads with a log whose records are all committed. The log is empty by default."""
    log = log or Log.open(MemoryStorage(), StreamConfig())[0]
    source = SimpleNamespace(
        log=log, compacted=False, high_watermark=log.newest_offset, leader_epoch=1, leader="n1", leads=True, may_serve=may_serve
    )
    tools = ReadTools(cast(Any, bus), Subjects("liftpy"), InboxRule(("_INBOX.",)), Timers(), Counter())
    return ReadSubjects(tools, KEY, "n1", cast(Any, source))


def reader(found: ReadSubjects | None) -> LocalReader:
    transport = SimpleNamespace(max_payload_bytes=1 << 20, counters=Counter())
    return LocalReader(cast(Any, transport), Subjects("liftpy"), KEY, OPTIONS, lambda key: found if key == KEY else None)


async def test_local_partition_read_is_answered_without_nats() -> None:
    bus = Bus()
    progress = ReadProgress("_groups", 0, 0, uid="u1")
    assert await reader(reads(bus)).fetch(progress) == []
    assert (progress.node, progress.leader, bus.sent) == ("n1", "n1", [])


async def test_local_partition_read_without_nats_connection_returns_records() -> None:
    bus = Bus()
    bus.has_room = False
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    log.append(build_batch([b"x"], leader_epoch=1))
    progress = ReadProgress("_groups", 0, 0, uid="u1")
    (part,) = await reader(reads(bus, log=log)).fetch(progress)
    assert part.values() == [b"x"]


async def test_local_partition_read_that_waits_is_answered_when_the_partition_closes() -> None:
    found = reads(Bus())
    request = pb.ReadRequest(stream="_groups", partition=0, waitMs=30_000, minHighWatermark=-1)
    asking = asyncio.create_task(found.answer_local_read(frames.seal(request)))
    await asyncio.sleep(0)
    assert found.waiting_count == 1
    found.close()
    head, _ = frames.decode_read_response(await asking)
    assert head.error == pb.ReadResponse.NO_SUCH_PARTITION
    gone = asyncio.create_task(found.answer_local_read(frames.seal(request)))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    found.close()  # nobody is told


@pytest.mark.parametrize(("found", "error"), [(None, NoRespondersError), (reads, RequestTimeoutError)])
async def test_local_partition_read_of_a_missing_or_silent_partition_raises(found: Any, error: type[Exception]) -> None:
    made = found if found is None else found(Bus())
    if made is not None:
        made._reads = SimpleNamespace(answer_request=lambda *_: None)
    request = pb.ReadRequest(stream="_groups", partition=0, minHighWatermark=-1)
    with pytest.raises(error):
        await reader(made)._ask("n1", request, 0.0)
    with pytest.raises((error, UnavailableError)):
        await reader(made).fetch(ReadProgress("_groups", 0, 0, uid="u1"))
