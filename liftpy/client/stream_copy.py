"""``group.into``: copies the records of a group into another stream exactly once, in order per source partition.

Goal: exactly once in every partition of the target, also if members and leaders fail at any time. Constraint: there are
no transactions, and a paused member may send long after another member owns its partition.

Algorithm (docs/publishing.md, "From stream to stream"):

- Each owned partition has its own producer. Its name consists of the group and the source partition. Each batch
  contains the generation of the ownership, and the offset of the last source record in the batch.
- Opening the producer fences members of earlier generations. The answers say which source records each target partition
  has. The member does not send their results again.
- The member commits a batch of source records when all of its results are acked. So the next member can begin at the
  committed position, also if a target partition got no record, or no longer has the state of the producer.
- The member opens the producer again if a newer process has fenced it, or if a member of an earlier generation has used
  its sequence numbers. It sends everything without an ack again, as long as it owns the partition. After that, the next
  owner sends it.
- If the target is paused or read-only, the member retries in the same way, for at most ``patience_s`` without an ack.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from liftpy.client.client_home import ClientMethods
from liftpy.client.consumed import GroupBatch
from liftpy.client.partition_sender import ManyReceipt, ProducerOptions, Source
from liftpy.client.producer import Producer
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import LiftError, NotFoundError, PublishRejectedError
from liftpy.nats.cancellation import end_tasks

PartitionFor = Callable[[bytes | None, int], int]
Transform = Callable[[Record], Iterable[tuple[bytes | None, bytes | None]]]
"""Function of a source record. It returns (key, value) of each result, possibly none."""
MOST_IN_HAND = 32
"""Maximum number of source batches without acks, over all partitions of a member."""
_AGAIN_S = 0.25
_CHECK_INTERVAL_S = 0.5
"""Interval at which an idle producer checks that its member still owns the partition, in seconds."""
_ANOTHERS = ("PRODUCER_FENCED", "DIVERGED_PRODUCER", "OUT_OF_ORDER")
_NOT_NOW = ("PAUSED", "READ_ONLY")
"""Rejections that last until an operator changes the stream."""
_FAREWELLS = 3
"""Number of sessions for which the member retries after such a rejection while it owns the partition."""


class CopySource(Protocol):
    """Methods and attributes of a group member that a copy uses."""

    name: str
    counters: Counter[str]

    async def take(self) -> GroupBatch | None: ...

    def finished(self, part: GroupBatch) -> None: ...

    def generation_of(self, key: PartitionKey) -> int | None: ...


class GroupCopy:
    """The work of ``Group.into``: copies the records of a group member to another stream, until ``run`` is canceled.

    ``transform``: returns the results of a record. ``partition_for``: function of (key, number of partitions) that returns the
    target partition. It must return an equal result in every run.
    """

    def __init__(
        self, client: ClientMethods, group: CopySource, target: str, transform: Transform, *,
        partition_for: PartitionFor | None, options: ProducerOptions | None, session_s: float,
    ) -> None:  # fmt: skip
        self.client, self.group, self.target, self.transform = client, group, target, transform
        self.partition_for, self.options = partition_for, options
        self.patience_s = _FAREWELLS * session_s
        self.room = asyncio.Event()
        self.in_hand = 0
        self.left: list[GroupBatch] = []
        """After ``run``, the batches that were taken and are not finished."""
        self._running: dict[tuple[PartitionKey, int], tuple[_PartitionCopy, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run until the group is closed. Raises the errors of reads, the transform and the producers."""
        taking: asyncio.Task[GroupBatch | None] | None = None
        try:
            while True:
                self.room.clear()
                if taking is None and self.in_hand < MOST_IN_HAND:
                    taking = asyncio.create_task(self.group.take(), name=f"{self.group.name} takes")
                waiting = asyncio.create_task(self.room.wait())
                running = [task for _, task in self._running.values()]
                try:
                    some = [waiting, *running, *([] if taking is None else [taking])]
                    await asyncio.wait(some, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                for which, (_, task) in list(self._running.items()):
                    if task.done():
                        del self._running[which]
                        task.result()
                if taking is not None and taking.done():
                    part, taking = taking.result(), None
                    if part is None:
                        return
                    self._assign(part)
        finally:
            left: list[asyncio.Task[Any]] = [task for _, task in self._running.values()]
            left += [] if taking is None else [taking]
            await end_tasks(left)  # one error is raised, the others are of the same kind
            if taking is not None and not taking.cancelled() and taking.exception() is None and (part := taking.result()):
                self.left.append(part)

    def _assign(self, part: GroupBatch) -> None:
        which = part.key, part.generation
        if which not in self._running:
            copy = _PartitionCopy(self, *which)
            name = f"{self.group.name} copies {part.key.stream}/{part.key.partition}"
            self._running[which] = copy, asyncio.create_task(copy.run(), name=name)
        self.in_hand += 1
        self._running[which][0].add(part)


class _PartitionCopy:
    """Copy of one source partition while this member owns it: its batches without acks, and its producer.

    ``generation``: number of the ownership.
    """

    def __init__(self, home: GroupCopy, key: PartitionKey, generation: int) -> None:
        self._home = home
        self._key = key
        self._generation = generation
        self._parts: deque[GroupBatch] = deque()
        self._receipts: deque[asyncio.Task[None]] = deque()
        """Tasks that wait for the acks of the first batches, in order."""
        self._finished = 0
        """Number of batches whose results are acked."""
        self._changed = asyncio.Event()

    def add(self, part: GroupBatch) -> None:
        self._parts.append(part)
        self._changed.set()

    @property
    def _is_owner(self) -> bool:
        return self._home.group.generation_of(self._key) == self._generation

    async def run(self) -> None:
        """Send the results of the queued batches until another member owns the source partition."""
        loop, home, refused_until = asyncio.get_running_loop(), self._home, 0.0
        try:
            while self._is_owner:
                before = self._finished
                try:
                    await self._copy()
                    return
                except PublishRejectedError as error:
                    if error.reason not in _ANOTHERS + _NOT_NOW:
                        raise
                    home.group.counters["target closed" if error.reason in _NOT_NOW else "copied anew"] += 1
                    if not refused_until or self._finished > before:
                        refused_until = loop.time() + home.patience_s
                    if loop.time() >= refused_until and self._is_owner:
                        text = f"{home.target} has taken nothing of {self._key} for {home.patience_s:g} s: {error}"
                        raise PublishRejectedError(text, error.reason) from error
                await asyncio.sleep(_AGAIN_S)
        finally:
            home.in_hand -= len(self._parts)
            home.left += self._parts if self._is_owner else ()
            self._parts.clear()
            home.room.set()

    async def _copy(self) -> None:
        home, key = self._home, self._key
        opening = home.client.producer(
            home.target,
            id=f"{home.group.name}/{key.stream}-{key.partition}/{key.uid}",
            options=home.options,
            partitioner=home.partition_for or self._partition,
            source=Source(key.stream, key.partition, self._generation),
        )
        producer = await opening
        try:
            if producer.source_uid != key.uid:
                raise NotFoundError(f"Stream {key.stream} was deleted and created again during the copy. Start the copy again.")
            await self._send_all(producer)
        except LiftError as error:
            raise producer.failure or error from None
        finally:
            await end_tasks(self._receipts)
            self._receipts.clear()
            await producer.close()

    async def _send_all(self, producer: Producer) -> None:
        """Send the results of all queued batches in order, several at once.

        Batches that an earlier producer has sent are sent again. The producer skips the stored results.
        """
        home = self._home
        while self._is_owner:
            self._changed.clear()
            while len(self._receipts) < len(self._parts):
                receipt = await self._send(producer, self._parts[len(self._receipts)])
                acknowledged = asyncio.create_task(_wait_for_ack(receipt))
                acknowledged.add_done_callback(lambda _: self._changed.set())
                self._receipts.append(acknowledged)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await self._changed.wait()
            while self._receipts and self._receipts[0].done():
                self._receipts.popleft().result()
                home.group.finished(self._parts.popleft())
                self._finished += 1
                home.in_hand -= 1
                home.room.set()

    async def _send(self, producer: Producer, part: GroupBatch) -> ManyReceipt:
        """Send the results of one batch and return their future acks. The producer skips results that are stored already."""
        known, transform = producer.begin_after, self._home.transform
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        positions: list[int] = []
        for record in part.slice.records():
            if record.offset > known:
                for key, value in transform(record):
                    keys.append(key)
                    values.append(value)
                    positions.append(record.offset)
        return await producer.send_many(values, keys=keys, positions=positions)

    def _partition(self, key: bytes | None, count: int) -> int:
        """Return the target partition of a result with this ``key``. Without a key, the source partition decides.

        ``count``: number of partitions of the target.
        """
        return self._key.partition % count if key is None else partition_of(key, count)


async def _wait_for_ack(receipt: ManyReceipt) -> None:
    await receipt
