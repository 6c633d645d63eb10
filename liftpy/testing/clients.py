"""Applications of a simulated cluster: publishers that count their answers, readers that believe nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from liftpy.config import AckPolicy
from liftpy.errors import DamagedBatchError
from liftpy.invariants import check
from liftpy.testing.clock import MS, S
from liftpy.testing.messages import Ack, Publish, ReadRequest, ReadResponse
from liftpy.wire.batch import split_batches
from liftpy.wire.pieces import NOTHING, Assembly

if TYPE_CHECKING:
    from liftpy.ids import PartitionKey
    from liftpy.testing.cluster import Cluster

PUBLISH_TIMEOUT_NS = 3 * S
_POLICIES = (AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE)


class Publisher:
    """Publishes to one partition's subject at random intervals, and waits for each ack until it times out."""

    def __init__(self, cluster: Cluster, name: str, subject: str, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.subject = subject
        self.interval_ns = interval_ns
        self.stopped = False
        self.waiting: set[int] = set()
        """Numbers of the publishes that are neither answered nor timed out [L4]."""
        self.acked_all = 0
        """Publishes that were acknowledged with policy ALL."""
        self._number = 0
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        if self.stopped:
            return
        self.publish(self._rng.choice(_POLICIES), 1 + int(self._rng.random() ** 3 * 6))
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def publish(self, policy: AckPolicy = AckPolicy.ALL, count: int = 1) -> int:
        """Publish ``count`` messages as one; return its number."""
        number, self._number = self._number, self._number + 1
        ids = tuple(self.cluster.new_id(self.name, number) for _ in range(count))
        message = Publish(self.name, number, ids, policy)
        if policy is AckPolicy.NONE:
            self.cluster.network.publish(self.name, self.subject, message)
            return number
        self.waiting.add(number)
        self.cluster.network.request(self.name, self.subject, message, lambda ack: self._answered(number, policy, ack))
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))
        return number

    def _answered(self, number: int, policy: AckPolicy, ack: Any) -> None:
        if number not in self.waiting:
            return
        self.waiting.discard(number)
        if isinstance(ack, Ack) and not ack.reason:
            self.acked_all += policy is AckPolicy.ALL
            self.cluster.counters["publish acknowledged"] += 1
        else:
            self.cluster.counters["publish refused"] += 1

    def _timed_out(self, number: int) -> None:
        if number in self.waiting:
            self.waiting.discard(number)
            self.cluster.counters["publish timed out"] += 1


class Reader:
    """Reads one partition from its start, each time from any node that answers, and compares with the one true log [R1-R4, R6]."""

    def __init__(self, cluster: Cluster, name: str, key: PartitionKey, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.subject = f"{key.stream}.{key.partition}"
        self.interval_ns = interval_ns
        self.next_offset = 0
        """Exclusive: everything below has been read, or retention had deleted it."""
        self.last = (-1, 0)
        """(offset, LeaderEpoch) of the last record that was read."""
        self.cut_at: int | None = None
        """It was told that what it read is gone from this offset on, and reads no more [R6]."""
        self._assembly = Assembly()
        self._assembled = 0
        """Offset at which the batch was asked for that is being put together."""
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        if self.cut_at is not None:
            return
        self._ask(self._rng.choice(sorted(self.cluster.nodes)))
        self.cluster.clock.after(MS + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _ask(self, node: str) -> None:
        asked = self.next_offset
        held = self._assembly.held if asked == self._assembled else NOTHING
        request = ReadRequest(asked, self._rng.choice((1, 500, 1 << 20)), False, *self.last, held=held)
        self.cluster.network.request(self.name, f"{self.subject}.read.{node}", request, lambda r: self._answered(asked, r))

    def _answered(self, asked: int, answer: Any) -> None:
        if not isinstance(answer, ReadResponse):
            return
        if answer.error:
            self.cluster.counters[f"read: {answer.error}"] += 1
            if answer.error == "cut" and asked == self.next_offset:
                self.cut_at = answer.next_offset
                check(self.cluster.checkers.lost_by_command(self.key), "R6", self.name, "has read", self.last, "told", answer)
            if answer.error == "out of range" and asked == self.next_offset < answer.log_start_offset:
                self.next_offset = answer.log_start_offset
            return
        data = self._together(asked, answer)
        if data is None:
            return
        try:
            next_offset, last = self._compare(asked, answer, data)
        except DamagedBatchError as error:
            self.cluster.counters["read: damaged"] += 1
            complaint = ReadRequest(asked, 1, bad_offset=max(error.offset, asked))
            self.cluster.network.request(self.name, f"{self.subject}.read.{answer.node}", complaint, lambda r: None)
            return
        if asked == self.next_offset:
            self.next_offset, self.last = next_offset, last
        self.cluster.counters["read answered"] += bool(data)

    def _together(self, asked: int, answer: ReadResponse) -> bytes | memoryview | None:
        """The batches of an answer, or those whose last piece it was; None: there is more to ask for. Pieces come from all replicas."""
        if answer.piece is None:
            return answer.batches
        if asked != self.next_offset:
            return None
        if asked != self._assembled:
            self._assembly.forget()
            self._assembled = asked
        whole = self._assembly.take(answer.piece)
        self.cluster.counters["read: batch put together"] += whole is not None
        if whole is None and self._rng.random() < 0.9:
            self._ask(answer.node)
        return whole

    def _compare(self, asked: int, answer: ReadResponse, data: bytes | memoryview) -> tuple[int, tuple[int, int]]:
        """Whole committed batches, in order, without a gap, the bytes of the one true log."""
        ghost = self.cluster.checkers.ghost(self.key)
        next_offset, last = asked, self.last
        for batch in split_batches(data):
            key = (batch.leader_epoch, batch.last_offset)
            if batch.base_offset > next_offset and self.cluster.nodes[answer.node].lost_data:
                raise DamagedBatchError("a flipped bit hides a batch", next_offset)
            check(batch.base_offset <= next_offset <= batch.last_offset, "R2", self.name, "expects", next_offset, "gets", key)
            check(batch.last_offset <= ghost.high_watermark, "R1", self.name, "reads", key, "HW", ghost.high_watermark)
            check(ghost.committed.get(batch.last_offset) == key, "R3", self.name, "reads", key, "at", answer.node)
            check(ghost.chains[key][1] == batch.header.crc, "R3", self.name, "other bytes", key)
            next_offset, last = batch.next_offset, (batch.last_offset, batch.leader_epoch)
        check(next_offset <= answer.high_watermark + 1 or not data, "R1", self.name, next_offset, answer)
        return next_offset, last
