"""A record feeder with its service machine over a log in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from liftpy.client.batch_view import BatchSlice
from liftpy.client.progress import NotServedError, ReadProgress
from liftpy.core.services.bad_records import SkipDecision
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record, parse_batch
from liftpy.errors import LogTruncatedError, OffsetOutOfRangeError
from liftpy.service import Identity, Outbox, Role, Service, ServiceMachine
from liftpy.service.record_feeder import Feeder
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import SnapshotKeeper, SnapshotStore
from tests.batches import build_batch
from tests.until import until

WHO = Identity("sum", "in", "u1", 0)


EVERY = 10


class Sum(Service):
    """Remembers all values, emits one output per record."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.values: list[str] = json.loads(snapshot) if snapshot else []

    def on_record(self, record: Record) -> None:
        self.values.append((record.value or b"").decode())
        self.emit(record.value or b"")

    def take_snapshot(self) -> bytes:
        return json.dumps(self.values).encode()


class FakeLog:
    """A log with one record per batch. ``fetch`` has the interface of PartitionReader."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start = 0
        self.compacted: set[int] = set()
        """Offsets without a record."""
        self.committed = asyncio.Event()
        self.highest_read = -1
        self.truncated: LogTruncatedError | None = None
        self.fetches = 0
        self.deaf = False

    def append(self, count: int, epoch: int = 1, prefix: str = "v") -> None:
        for _ in range(count):
            offset = len(self.batches)
            self.batches.append(build_batch([f"{prefix}{offset}".encode()], base_offset=offset, leader_epoch=epoch))
        self.committed.set()

    async def fetch(self, progress: ReadProgress) -> list[BatchSlice]:
        self.fetches += 1
        if self.deaf:
            await asyncio.Event().wait()  # a request to a node that was down, in its longest wait
        while True:
            if self.truncated is not None:
                raise self.truncated
            if progress.next_offset < self.log_start:
                raise OffsetOutOfRangeError("gone")
            if progress.next_offset > len(self.batches):
                await asyncio.sleep(0.005)
                raise NotServedError("past HW")
            if progress.next_offset < len(self.batches):
                break
            self.committed.clear()
            await self.committed.wait()
        end = min(progress.next_offset + 7, len(self.batches))
        found = [parse_batch(self.batches[at]) for at in range(progress.next_offset, end) if at not in self.compacted]
        progress.next_offset = end
        self.highest_read = max(self.highest_read, end - 1)
        return [s for s in (BatchSlice.between(batch, 0, None) for batch in found) if s]


class Node:
    """A record feeder with its service machine, as a host creates them."""

    who = WHO

    def __init__(
        self, log: Any, data: Path, factory: Callable[[], Any] = Sum, kept: int = 2, fetcher: Any = None, **bounds: int
    ) -> None:
        self.log, self.factory = log, factory
        self.machine: ServiceMachine
        self.services: list[Any] = []
        self.role, self.epoch, self.stops = Role.FOLLOWER, 1, 0
        self.settings = ServiceSettings(self.who.service, "in", "n1", data, snapshot_interval_records=EVERY, step_s=0.001)
        self.store = SnapshotStore(data, self.who, kept=kept, max_bytes=1 << 20)
        self.outbox = Outbox("u1/0", **bounds)
        self.outbox.known = True  # that nothing is written
        self.keeper = SnapshotKeeper(self.store, self.settings, self.outbox, fetcher)
        orders: Any = self
        self.feeder = Feeder(
            reader=log,
            settings=self.settings,
            keeper=self.keeper,
            factory=self._make,
            emitter=None,
            orders=orders,
            decisions=orders,
            started=lambda machine, snapshot: self.machine_started(machine, snapshot),
        )
        self.task: asyncio.Task[None] | None = None

    def _make(self) -> Any:
        self.services.append(self.factory())
        return self.services[-1]

    def machine_started(self, machine: ServiceMachine, snapshot: Any) -> None:
        self.machine = machine
        machine.change_role(self.role, self.epoch)

    def acknowledge(self) -> None:
        self.stops += 1

    is_beside_leader = False
    last = pb.JoinLog(leaderEpoch=1)

    @property
    def log_start_offset(self) -> int:
        return int(self.log.log_start)

    async def pass_over(self, identity: Identity, decision: SkipDecision, record: Record, error: str) -> None:
        raise AssertionError("it is no leader")

    async def start(self) -> None:
        await self.feeder.restart(self.log.log_start)
        self.task = asyncio.create_task(self.feeder.run())

    def become(self, role: Role, epoch: int) -> None:
        self.role, self.epoch = role, epoch
        self.machine.change_role(role, epoch)
        self.feeder.verify(self.log.log_start)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                assert self.task is not None
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.002)

    async def at(self, position: int) -> None:
        await self.until(lambda: self.machine.position == position)

    async def stored(self, *positions: int) -> None:
        """A snapshot is written by a thread, after the position has moved."""
        await until(lambda: self.store.positions() == list(positions))

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


class EndlessSearch:
    """Finds no snapshot on other nodes, and ends when no snapshot is needed any more."""

    problem = tried = ""

    def __init__(self) -> None:
        self.is_searching = False

    async def fetch(self, lowest: int, wanted: Any, needed: Callable[[], bool]) -> bool:
        self.is_searching = True
        while needed():
            await asyncio.sleep(0.001)
        return False
