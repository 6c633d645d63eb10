"""``client.queue``: one worker of a work queue. Several take records of one stream, each record is with one of them at a time, and is
acknowledged, given back or rejected by itself, in any order.

async with client.queue("jobs", "workers") as queue:
    async for job in queue:
        await job.ack()

Who has what decides the coordinator (``liftpy.group.queue``); here records are fetched that were granted, and what became of them is
told, many in one command. An acknowledgement that has returned is committed: the record is never given again. A record is handed on
only while its wait lasts by the own clock, counted from before it was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Protocol

from liftpy.client.consumer import ReadOptions
from liftpy.client.group import GroupHome, GroupRefusedError, ask_coordinator
from liftpy.client.next_keys import NextKeys
from liftpy.client.positions import Bounds
from liftpy.client.slices import BatchSlice
from liftpy.cluster.image import StreamImage
from liftpy.errors import ConfigError, LiftError, OffsetOutOfRangeError
from liftpy.group import limits
from liftpy.group.commands import partition_of
from liftpy.ids import PartitionKey, check_name
from liftpy.ingest.recent_ids import MESSAGE_ID
from liftpy.wire._pb import group_pb2 as pb
from liftpy.wire.batch import Record
from liftpy.wire.headers import is_reserved

logger = logging.getLogger("liftpy.client")

_COMMAND_S = 10.0
_LOOK_S = 0.1
"""Between two looks where nothing was."""
_ASK_AGAIN_S = 1.0
"""What others have may come back at any time: so often it is asked for."""
_MARGIN_NS = 50_000_000
"""A record whose wait is as good as over is not handed on."""
_RANGES = 2000
"""Of one command: well below its bound in bytes."""
_HEADER = "Dead-Letter-"


class LeaseLostError(LiftError):
    """Records whose wait was over before they were settled: another worker has them, or gets them. ``jobs``: they; the others of the
    same call are settled."""

    code = "LEASE_LOST"

    def __init__(self, text: str, jobs: Sequence[Job] = ()) -> None:
        super().__init__(text)
        self.jobs = tuple(jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """``ack_wait_s``: so long a worker has a record, then it comes again. ``max_deliveries``: a record that was given so often, and is
    not acknowledged, goes to ``dead_letters``, a stream with a literal subject; '': it comes again for ever. ``max_ack_pending``:
    records out, of all workers on a partition; ``max_own_pending``: of this one. ``start``: where a queue begins that is new.
    ``ahead``: records that iterating takes at a time. ``order_by_key``: of one key at most one record is out, and they are done in
    order of offsets; a record without a key waits for nobody. ``read``: how what was granted is read. All workers of a queue are to say
    the same."""

    ack_wait_s: float = limits.ACK_WAIT_MS / 1000
    max_deliveries: int = limits.MAX_DELIVERIES
    dead_letters: str = ""
    max_ack_pending: int = limits.MAX_ACK_PENDING
    max_own_pending: int = limits.MAX_MEMBER_PENDING
    start: Literal["earliest", "new"] = "earliest"
    ahead: int = 64
    order_by_key: bool = False
    read: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        bounds = {
            "ack_wait_s": (limits.MIN_ACK_WAIT_MS / 1000, limits.MAX_ACK_WAIT_MS / 1000),
            "max_deliveries": (1, limits.MAX_MAX_DELIVERIES),
            "max_ack_pending": (1, limits.MAX_MAX_PENDING),
            "max_own_pending": (1, limits.MAX_MAX_PENDING),
            "ahead": (1, limits.MAX_TAKE),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} = {getattr(self, name)} is outside {low:g}..{high:g}")
        if self.start not in ("earliest", "new"):
            raise ConfigError(f"start = {self.start!r}: a queue begins at 'earliest' or 'new'")
        if self.dead_letters:
            check_name(self.dead_letters, "dead_letters")


class QueueHome(GroupHome, Protocol):
    """What a worker needs of its Client, besides what a member of a group does."""

    async def bounds(self, stream: str, partition: int, *, options: ReadOptions | None) -> Bounds:
        """As ``Client.bounds``."""
        ...

    def read_range(
        self, stream: str, partition: int, start_offset: int, end_offset: int, *, uid: str, options: ReadOptions | None
    ) -> Any:
        """As ``Client.read_range``."""
        ...

    async def publish(self, stream: str, value: bytes | None, **how: Any) -> Any:
        """As ``Client.publish``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One record that this worker has. ``deliveries``: how often it was given, this time included. ``until_ns``: monotonic; when
    another may get it."""

    record: Record
    key: PartitionKey
    deliveries: int
    lease: int
    until_ns: int
    queue: Queue = field(repr=False)

    async def ack(self) -> None:
        """It is done, and never comes again. Raises as ``Queue.ack``."""
        await self.queue.ack([self])

    async def nack(self, delay_s: float = 0.0) -> None:
        """It comes again, after ``delay_s``."""
        await self.queue.nack([self], delay_s)

    async def extend(self) -> None:
        """Its wait begins anew."""
        await self.queue.extend([self])

    async def reject(self, reason: str) -> None:
        """It goes to the dead letters."""
        await self.queue.reject([self], reason)


@dataclass(slots=True, eq=False)
class _Place:
    """One partition. ``ended``: where the log ended, exclusive, when nothing could be had; ``again_ns``: when to ask all the same.
    ``keys``: of an ordered queue, the keys of the next new records."""

    key: PartitionKey
    ended: int = -1
    again_ns: int = 0
    keys: NextKeys = field(default_factory=NextKeys)


@dataclass(slots=True, eq=False)
class _Telling:
    """A settlement that waits to be told: of ``jobs``, as ranges of one partition each."""

    jobs: Sequence[Job]
    settlements: list[pb.Settlement]
    done: asyncio.Future[list[Job]]
    """Those that are not this worker's any more."""


class Queue:
    """One worker; made by ``client.queue``. ``counters``: what went wrong and was tried again."""

    def __init__(self, client: QueueHome, stream: str, group: str, options: QueueOptions) -> None:
        self.stream = check_name(stream, "stream")
        self.name = check_name(group, "group")
        self._client, self._options = client, options
        self._member = secrets.token_hex(16)
        self._partition = 0
        self._places: deque[_Place] = deque()
        self._ahead: deque[Job] = deque()
        self._told: deque[_Telling] = deque()
        self._telling: asyncio.Task[None] | None = None
        self._number = 0
        self._closed = False
        self.counters: Counter[str] = Counter()

    # ---- life --------------------------------------------------------------------------------------------------------
    async def open(self) -> Queue:
        """Find the stream and the coordinator. Raises NotFoundError (no such stream), and as ``groups_stream``."""
        home = await self._client.groups_stream()
        self._partition = partition_of(self.name, len(home.partitions))
        if self._options.dead_letters:
            await self._client.stream(self._options.dead_letters)
        self._know(await self._client.stream(self.stream))
        return self

    def _know(self, stream: StreamImage) -> None:
        known = {place.key for place in self._places}
        found = [stream.key(partition.partition) for partition in stream.partitions]
        self._places = deque(place for place in self._places if place.key in found)
        self._places.extend(_Place(key) for key in found if key not in known)

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what was taken ahead, and tell what is to be told. Records that the application has come again when their wait is
        over, unless they are settled before. Idempotent."""
        if self._closed:
            return
        self._closed = True
        ahead, self._ahead = list(self._ahead), deque()
        try:
            if ahead:
                await self._settle(pb.SETTLE_RELEASE, ahead)
            if self._telling is not None:
                await self._telling
        except LiftError as error:  # they come again all the same, later
            self.counters["unsaid"] += 1
            logger.warning("queue %s: not left in order: %s", self.name, error)

    # ---- taking ------------------------------------------------------------------------------------------------------
    def __aiter__(self) -> Queue:
        return self

    async def __anext__(self) -> Job:
        """The next record, whenever there is one. Raises as ``take``."""
        while True:
            while self._ahead:
                job = self._ahead.popleft()
                if _now_ns() < job.until_ns - _MARGIN_NS:
                    return job
                self.counters["expired"] += 1  # the application was slow: another has it by now
            if self._closed:
                raise StopAsyncIteration
            self._ahead.extend(await self.take(self._options.ahead))

    async def take(self, max_records: int = 64, timeout_s: float = 5.0) -> list[Job]:
        """Up to ``max_records`` of one partition, as soon as there are some; none after ``timeout_s``.

        Raises GroupRefusedError where a bound of the coordinator keeps new records back, NotFoundError (the stream was deleted),
        UnavailableError, OutcomeUnknownError (what was granted comes again when its wait is over).
        """
        if not 1 <= max_records <= limits.MAX_TAKE:
            raise ConfigError(f"max_records = {max_records} is outside 1..{limits.MAX_TAKE}")
        give_up_ns, refused = _now_ns() + round(timeout_s * 1e9), ""
        while not self._closed:
            for _ in range(len(self._places)):
                place = self._places[0]
                self._places.rotate(-1)
                try:
                    jobs = await self._take_of(place, max_records)
                except GroupRefusedError as error:
                    refused = str(error)
                else:
                    if jobs:
                        return jobs
            if _now_ns() >= give_up_ns:
                break
            await asyncio.sleep(_LOOK_S)
        if refused:
            raise GroupRefusedError(refused)
        return []

    async def _take_of(self, place: _Place, max_records: int) -> list[Job]:
        key, options = place.key, self._options
        bounds = await self._client.bounds(key.stream, key.partition, options=options.read)
        if bounds.uid != key.uid:
            self._know(await self._client.stream(self.stream))
            return []
        if bounds.end_offset == place.ended and _now_ns() < place.again_ns:
            return []
        sent_ns = _now_ns()
        answer = await self._ask(place, bounds, max_records)
        if answer.code == pb.GROUP_STALE:
            self._know(await self._client.stream(self.stream))
            return []
        if answer.granted:
            place.ended = -1
            return await self._fetch(key, list(answer.granted), sent_ns + answer.waitMs * limits.NS_PER_MS)
        place.ended = bounds.end_offset
        ready_s = answer.nextReadyMs / 1000 if answer.nextReadyMs >= 0 else _ASK_AGAIN_S
        place.again_ns = _now_ns() + round(min(ready_s, _ASK_AGAIN_S) * 1e9)
        if answer.code:
            raise GroupRefusedError(f"queue {self.name}: {answer.detail}")
        return []

    async def _ask(self, place: _Place, bounds: Bounds, max_records: int) -> pb.GroupAnswer:
        """The answer to a take. Of an ordered queue to one that is told of the keys behind those that are all held, or were taken."""
        while True:
            asked = self._asked(place.key, bounds, max_records)
            if not self._options.order_by_key:
                return await self._say(take=asked)
            await place.keys.read_on(self._client, place.key, bounds, max_records, self._options.read)
            asked.ordered, asked.keysFrom = True, place.keys.start
            asked.keys.extend(place.keys.digests)
            answer = await self._say(take=asked)
            if answer.code != pb.GROUP_OK:
                return answer
            moved = place.keys.begin(answer.takenBelow)
            if answer.granted or not moved or answer.takenBelow >= bounds.end_offset:
                return answer

    def _asked(self, key: PartitionKey, bounds: Bounds, max_records: int) -> pb.TakeRecords:
        options = self._options
        begin = bounds.end_offset if options.start == "new" else bounds.log_start_offset
        return pb.TakeRecords(
            member=self._member, stream=key.stream, uid=key.uid, partition=key.partition, maxRecords=max_records,
            logStart=bounds.log_start_offset, logEnd=bounds.end_offset, begin=begin,
            ackWaitMs=round(options.ack_wait_s * 1000),
            maxDeliveries=options.max_deliveries if options.dead_letters else limits.MAX_MAX_DELIVERIES,
            maxAckPending=options.max_ack_pending, maxMemberPending=options.max_own_pending,
        )  # fmt: skip

    async def _fetch(self, key: PartitionKey, granted: list[pb.GrantedRange], until_ns: int) -> list[Job]:
        """The records of what was granted. Those that compaction or retention has taken are done; dead ones are buried. Where reading
        fails, everything is given back."""
        found: list[Job] = []
        settled: list[tuple[Any, pb.RecordRange]] = []
        try:
            for part in granted:
                records = await self._read(key, part)
                jobs = [Job(record, key, part.deliveries, part.lease, until_ns, self) for record in records]
                if part.dead:
                    await self._bury(key, part, jobs)
                    settled.append((pb.SETTLE_ACK, pb.RecordRange(start=part.start, end=part.end, lease=part.lease)))
                    continue
                settled += [(pb.SETTLE_ACK, gap) for gap in _gaps(part, [record.offset for record in records])]
                found += jobs
        except BaseException:
            rest = [pb.RecordRange(start=part.start, end=part.end, lease=part.lease) for part in granted]
            self._tell((), [_settlement(pb.SETTLE_RELEASE, key, rest)])
            raise
        if settled:
            gone = [part for _, part in settled]
            self.counters["gone or dead"] += sum(part.end - part.start for part in gone)
            self._tell((), [_settlement(pb.SETTLE_ACK, key, gone)])
        return found

    async def _read(self, key: PartitionKey, part: pb.GrantedRange) -> list[Record]:
        start, records = part.start, list[Record]()
        while start < part.end:
            try:
                piece: BatchSlice
                async for piece in self._client.read_range(
                    key.stream, key.partition, start, part.end, uid=key.uid, options=self._options.read
                ):
                    records += piece.records()
                    start = piece.last_offset + 1
                return records
            except OffsetOutOfRangeError:  # retention was faster
                bounds = await self._client.bounds(key.stream, key.partition, options=self._options.read)
                start = max(start + 1, bounds.log_start_offset)
        return records

    async def _bury(self, key: PartitionKey, part: pb.GrantedRange, jobs: Sequence[Job]) -> None:
        """To the dead letters, each once within their window of message ids; then it is done."""
        for job in jobs:
            record = job.record
            said = {
                "Group": self.name, "Stream": key.stream, "Partition": str(key.partition), "Offset": str(record.offset),
                "Deliveries": str(part.deliveries), "Reason": part.reason or "delivered too often", "Subject": record.subject,
            }  # fmt: skip
            kept = [pair for pair in record.headers if not is_reserved(pair[0]) and pair[0] != MESSAGE_ID]
            headers = [*kept, *((_HEADER + name, value.encode()) for name, value in said.items() if value)]
            name = f"{self.name}/{key.stream}/{key.uid}/{key.partition}/{record.offset}"
            await self._client.publish(
                self._options.dead_letters, record.value, key=record.key, headers=headers,
                msg_id=sha256(name.encode()).hexdigest()[:32],
            )  # fmt: skip
            self.counters["buried"] += 1

    # ---- settling ----------------------------------------------------------------------------------------------------
    async def ack(self, jobs: Iterable[Job]) -> None:
        """They are done. When this returns that is committed, and none of them is ever given again.

        Raises LeaseLostError for those that are another's by now, UnavailableError, OutcomeUnknownError (say it again: that does no
        harm).
        """
        await self._settle(pb.SETTLE_ACK, list(jobs))

    async def nack(self, jobs: Iterable[Job], delay_s: float = 0.0) -> None:
        """They come again, after ``delay_s``. Raises as ``ack``."""
        if not 0 <= delay_s <= limits.MAX_DELAY_MS / 1000:
            raise ConfigError(f"delay_s = {delay_s} is outside 0..{limits.MAX_DELAY_MS / 1000:g}")
        await self._settle(pb.SETTLE_NACK, list(jobs), delay_s=delay_s)

    async def extend(self, jobs: Iterable[Job]) -> None:
        """Their wait begins anew, for the coordinator: ``until_ns`` of a job stays as it was. Raises as ``ack``."""
        await self._settle(pb.SETTLE_EXTEND, list(jobs))

    async def reject(self, jobs: Iterable[Job], reason: str) -> None:
        """They go to the dead letters. Raises as ``ack``; ConfigError where there are none."""
        if not self._options.dead_letters:
            raise ConfigError("name a stream for dead letters: QueueOptions(dead_letters=...)")
        if not 0 < len(reason.encode()) <= limits.MAX_REASON_BYTES:
            raise ConfigError(f"a reason has 1 to {limits.MAX_REASON_BYTES} bytes")
        await self._settle(pb.SETTLE_REJECT, list(jobs), reason=reason)

    async def _settle(self, kind: Any, jobs: list[Job], *, delay_s: float = 0.0, reason: str = "") -> None:
        by_key: dict[PartitionKey, list[Job]] = {}
        for job in jobs:
            by_key.setdefault(job.key, []).append(job)
        asked = [
            _settlement(kind, key, ranges[at : at + _RANGES], delay_s, reason)
            for key, some in by_key.items()
            for ranges in [_ranges(some)]
            for at in range(0, len(ranges), _RANGES)
        ]
        if not asked:
            return
        lost = await self._tell(jobs, asked)
        if lost:
            self.counters["lost"] += len(lost)
            raise LeaseLostError(f"queue {self.name}: the wait of {len(lost)} of {len(jobs)} records was over", lost)

    def _tell(self, jobs: Sequence[Job], asked: list[pb.Settlement]) -> Awaitable[list[Job]]:
        told = _Telling(jobs, asked, asyncio.get_running_loop().create_future())
        told.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        self._told.append(told)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_all(), name=f"settlements of {self.name}")
        return told.done

    async def _tell_all(self) -> None:
        """What has come together meanwhile goes with one command, one after the other."""
        while self._told:
            some, ranges = [self._told.popleft()], 0
            while self._told:
                ranges = sum(len(one.ranges) for told in (*some, self._told[0]) for one in told.settlements)
                count = sum(len(told.settlements) for told in (*some, self._told[0]))
                if ranges > _RANGES or count > limits.MAX_SETTLEMENTS:
                    break
                some.append(self._told.popleft())
            try:
                lost = await self._tell_some([one for told in some for one in told.settlements])
            except BaseException as error:
                for told in some:
                    if not told.done.done():
                        told.done.set_exception(error if isinstance(error, LiftError) else asyncio.CancelledError())
                if not isinstance(error, LiftError):
                    raise
                continue
            for told in some:
                if not told.done.done():
                    told.done.set_result([job for job in told.jobs if _is_in(job, lost)])

    async def _tell_some(self, settlements: list[pb.Settlement]) -> list[pb.LostRange]:
        lost: list[pb.LostRange] = []
        for at in range(0, len(settlements), limits.MAX_SETTLEMENTS):
            some = settlements[at : at + limits.MAX_SETTLEMENTS]
            answer = await self._say(settle=pb.SettleRecords(member=self._member, settlements=some))
            if answer.code not in (pb.GROUP_OK, pb.GROUP_STALE):
                raise GroupRefusedError(f"queue {self.name}: {answer.detail}")
            lost += answer.lost
        if self._options.order_by_key:
            settled = {(one.stream, one.partition) for one in settlements}
            for place in self._places:
                if (place.key.stream, place.key.partition) in settled:
                    place.ended = -1  # the next records of their keys are free
        return lost

    async def _say(self, **what: Any) -> pb.GroupAnswer:
        self._number += 1
        command = pb.GroupCommand(group=self.name, number=self._number, **what)
        return await ask_coordinator(self._client, self._partition, command, _COMMAND_S)


def _now_ns() -> int:
    return time.monotonic_ns()


def _settlement(
    kind: Any, key: PartitionKey, ranges: Sequence[pb.RecordRange], delay_s: float = 0.0, reason: str = ""
) -> pb.Settlement:
    return pb.Settlement(
        kind=kind, stream=key.stream, uid=key.uid, partition=key.partition, ranges=ranges,
        delayMs=round(delay_s * 1000), reason=reason,
    )  # fmt: skip


def _ranges(jobs: Sequence[Job]) -> list[pb.RecordRange]:
    """Neighbours of one lease together."""
    found: list[pb.RecordRange] = []
    for offset, lease in sorted((job.record.offset, job.lease) for job in jobs):
        last = found[-1] if found else None
        if last is not None and last.end == offset and last.lease == lease:
            last.end = offset + 1
        elif last is None or offset >= last.end:
            found.append(pb.RecordRange(start=offset, end=offset + 1, lease=lease))
    return found


def _gaps(part: pb.GrantedRange, offsets: Sequence[int]) -> list[pb.RecordRange]:
    """What of ``part`` lies between ``offsets``, ascending."""
    found, at = [], part.start
    for offset in (*offsets, part.end):
        if offset > at:
            found.append(pb.RecordRange(start=at, end=offset, lease=part.lease))
        at = offset + 1
    return found


def _is_in(job: Job, lost: Iterable[pb.LostRange]) -> bool:
    place = job.key.stream, job.key.partition
    return any((one.stream, one.partition) == place and one.start <= job.record.offset < one.end for one in lost)
