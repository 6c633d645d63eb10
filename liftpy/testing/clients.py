"""Applications of a simulated cluster: publishers that count their answers, readers that believe nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy.client.outgoing import enveloped
from liftpy.client.progress import NotServedError, ReadProgress
from liftpy.config import AckPolicy
from liftpy.errors import DamagedBatchError, LiftError, LogTruncatedError, OffsetOutOfRangeError, ProtocolError
from liftpy.invariants import check
from liftpy.testing.cleaning_checks import read_all_keys
from liftpy.testing.clock import MS, S
from liftpy.testing.messages import (
    DELETED_TO,
    Ack,
    AckFrame,
    Message,
    Publish,
    ReadAnswer,
    ReadFrame,
    ids_in,
    is_delete,
    key_of,
)
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.runs import answered_by, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy.client.slices import BatchSlice
    from liftpy.ids import PartitionKey
    from liftpy.testing.world import World

PUBLISH_TIMEOUT_NS = 3 * S
_PB_POLICY = {AckPolicy.LEADER: client_pb2.LEADER, AckPolicy.ALL: client_pb2.ALL}
_COUNTED = 5
"""One of so many messages among those that count is no such message: no run goes over it."""
_POLICIES = (AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE)


class SimPublisher:
    """Publishes to one partition's subject at random intervals, as a client library or as plain NATS, and waits for each ack until it
    times out."""

    plain_every = 3
    """Every so many publishes are plain NATS messages with headers, the others are enveloped; 0: none."""
    counts_every = 2
    """Every so many of those that are enveloped are mostly of messages that count themselves: Acks of runs answer them; 0: none."""

    def __init__(self, cluster: World, name: str, interval_ns: int, key: PartitionKey) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.subject = f"{key.stream}.{key.partition}"
        self.interval_ns = interval_ns
        self.stopped = False
        self.waiting: dict[int, set[int]] = {}
        """Number -> indexes of its messages that are not answered, of the publishes that are neither answered nor timed out [L4]."""
        self.acked_all = 0
        """Publishes that were acknowledged with policy ALL."""
        self.asked_all = 0
        """Those that asked for it."""
        self.asked_ns: int | None = None
        """When it asked for ALL first since it was told that last; None: it has not since. Chance may ask for little for long."""
        self._number = 0
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        if self.stopped:
            return
        self.publish(self._rng.choice(_POLICIES), 1 + int(self._rng.random() ** 3 * 6))
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def publish(self, policy: AckPolicy = AckPolicy.ALL, count: int = 1) -> int:
        """Publish ``count`` messages in one go; return the publish's number."""
        number, self._number = self._number, self._number + 1
        ids = tuple(self.cluster.new_id(self.name, number) for _ in range(count))
        plain = policy is AckPolicy.NONE or (self.plain_every and number % self.plain_every == 0)
        message = Publish(self.name, number, ids, policy, ())
        message = replace(
            message,
            messages=tuple(
                (self._plain if plain and not self._deletes(message, i) else self._enveloped)(message, i) for i in range(count)
            ),
        )
        if policy is AckPolicy.NONE:
            self.cluster.network.publish(self.name, self.subject, message)
            return number
        if policy is AckPolicy.ALL:
            self.asked_all, self.asked_ns = self.asked_all + 1, self.asked_ns or self.cluster.clock.now_ns
        self.waiting[number] = set(range(count))
        self.cluster.network.request(self.name, self.subject, message, lambda answer: self._answered(number, policy, answer))
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))
        return number

    def _key(self, message_id: int) -> bytes | None:
        if not self.cluster.stream_configs[self.key.stream].is_cleaned:
            return None
        return b"%d" % key_of(message_id, deletes=self.cluster.plan.has_deletes(self.key.stream))

    def _deletes(self, publish: Publish, index: int) -> bool:
        """Whether it is a delete marker; one that waits for no answer could not be told from others."""
        has_deletes = self.cluster.plan.has_deletes(self.key.stream)
        return has_deletes and publish.policy is not AckPolicy.NONE and is_delete(publish.ids[index])

    def _plain(self, publish: Publish, index: int) -> Message:
        key, wants_answer = self._key(publish.ids[index]), publish.policy is not AckPolicy.NONE
        block = b"NATS/1.0\r\nLift-Ack: %b\r\n" % publish.policy.value.encode()
        if key is not None:
            block += b"Lift-Key: %b\r\n" % key
        elif publish.policy is AckPolicy.ALL:
            return publish.inbox(index), b"%d" % publish.ids[index], b""  # as the stream has it anyway
        return publish.inbox(index) if wants_answer else b"", b"%d" % publish.ids[index], block + b"\r\n"

    def _enveloped(self, publish: Publish, index: int) -> Message:
        key, of, deletes = self._key(publish.ids[index]), self.key, self._deletes(publish, index)
        if not deletes and self.counts_every and publish.number % self.counts_every == 0 and publish.ids[index] % _COUNTED:
            ack, inbox = AckPolicy(publish.policy), publish.inbox(index)
            payload = enveloped(of.stream, of.partition, of.uid, b"%d" % publish.ids[index], key, None, ack, runs=True)
            return inbox, payload, b""
        message = client_pb2.Message(
            value=b"" if deletes else b"%d" % publish.ids[index], tombstone=deletes,
            key=key or b"", keyed=key is not None, ackInbox=publish.inbox(index).decode(),
            correlationId=f"{publish.number}.{index}", ackPolicy=_PB_POLICY[publish.policy],
            stream=of.stream, streamUid=of.uid, partition=of.partition,
        )  # fmt: skip
        return b"", frames.encode(message), DELETED_TO + b"%d" % publish.ids[index] if deletes else b""

    def _answered(self, number: int, policy: AckPolicy, answer: Any) -> None:
        left = self.waiting.get(number)
        if left is None:
            return
        ack = answer.decoded() if isinstance(answer, AckFrame) else Ack(str(answer))
        if not ack.reason:
            left -= self._answered_by(number, answer.index, ack.record_count)
            if left:
                return
            if policy is AckPolicy.ALL:
                self.acked_all, self.asked_ns = self.acked_all + 1, None
        self.cluster.counters["publish refused" if ack.reason else "publish acknowledged"] += 1
        self._done(number, ack)

    def _answered_by(self, number: int, index: int, record_count: int) -> set[int]:
        """Indexes of the messages that an answer to one of them answers."""
        inbox = Publish(self.name, number, (), AckPolicy.ALL, ()).inbox(index)
        return {counted(request)[1] for request in answered_by(inbox, record_count)}

    def _done(self, number: int, ack: Ack | None) -> None:
        """``ack``: the last one, or the first that is negative; None: it timed out."""
        del self.waiting[number]

    def _timed_out(self, number: int) -> None:
        if number in self.waiting:
            self.cluster.counters["publish timed out"] += 1
            self._done(number, None)


class SimReader:
    """The client library's ``ReadProgress``, each time over any node that answers; what it hands on is compared with the one true log
    [R1-R4, R6]. It waits at the end now and then, and gives up waiting as now and then."""

    def __init__(self, cluster: World, name: str, key: PartitionKey, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.subject = f"{key.stream}.{key.partition}"
        self.interval_ns = interval_ns
        self.progress = ReadProgress(key.stream, key.partition, 0)
        self.cut_at: int | None = None
        """It was told that what it read is gone from this offset on, and reads no more [R6]."""
        self._rng = random.Random(f"{cluster.seed}/{name}")
        cluster.clock.after(interval_ns, self._turn)

    @property
    def next_offset(self) -> int:
        """Exclusive: everything below has been read, or retention had deleted it."""
        return self.progress.next_offset

    def _turn(self) -> None:
        if self.cut_at is not None:
            return
        self._ask(self._rng.choice(sorted(self.cluster.nodes)))
        self.cluster.clock.after(MS + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _ask(self, node: str) -> None:
        asked = self.progress.next_offset
        request = self.progress.request(self._rng.choice((1, 500, 1 << 20)), self._rng.choice((0, 0, 20, 2000)))
        self._send(node, request, lambda answer: self._answered(asked, answer))

    def _send(self, node: str, request: client_pb2.ReadRequest, on_reply: Callable[[Any], None]) -> None:
        self.cluster.network.request(self.name, f"{self.subject}.read.{node}", ReadFrame(frames.encode(request)), on_reply)

    def _answered(self, asked: int, answer: Any) -> None:
        progress, counters = self.progress, self.cluster.counters
        if asked != progress.next_offset or self.cut_at is not None or not isinstance(answer, ReadAnswer):
            return  # of several answers to a question the first one counts, however late it comes
        was_held = progress.assembly.held.position > 0
        try:
            handed_on = progress.accept(answer.frame)
        except LogTruncatedError as error:
            counters["read: cut"] += 1
            self.cut_at = error.end_offset
            lost = self.cluster.checkers.lost_by_command(self.key)
            check(lost, "R6", self.name, "has read", (progress.last_offset, progress.leader_epoch), "told", error)
        except OffsetOutOfRangeError:
            counters["read: out of range"] += 1
            progress.next_offset = answer.decoded()[0].logStartOffset
            check(asked < progress.next_offset, "R2", self.name, "at", asked, "is sent back to", progress.next_offset)
        except NotServedError:
            counters["read: not served"] += 1
        except (DamagedBatchError, ProtocolError) as error:
            self._refused(error, was_held)
        else:
            counters["read: batch put together"] += was_held and bool(handed_on)
            counters["read answered"] += bool(handed_on)
            self._compare(asked, answer, handed_on)
            if not handed_on and progress.assembly.held.position and self._rng.random() < 0.9:
                self._ask(progress.node)

    def _refused(self, error: LiftError, in_pieces: bool) -> None:
        """Wrong bytes: only a node whose disk has lied sends such, and it is told; ``in_pieces``: parts of them came from others."""
        self.cluster.counters["read: damaged"] += 1
        node = self.progress.suspect[0] if self.progress.suspect is not None else ""
        complaint = self.progress.complaint()
        check(complaint is not None, "R2", self.name, "can't take", error)
        liars = [machine.node_id for machine in self.cluster.machines if machine.lost_data]
        check(node in liars or (in_pieces and bool(liars)), "R3", self.name, "is sent by", node, "whose disk is fine", error)
        assert complaint is not None
        self._send(node, complaint, lambda answer: None)

    def _compare(self, asked: int, answer: ReadAnswer, handed_on: list[BatchSlice]) -> None:
        """Committed records, in order, without a gap but those of compaction, the bytes of the one true log."""
        ghost = self.cluster.checkers.ghost(self.key)
        has_gaps = self.cluster.stream_configs[self.key.stream].is_cleaned or bool(ghost.purges)
        head, _ = answer.decoded()
        position = asked
        for piece in handed_on:
            batch = piece.batch
            key = (batch.leader_epoch, batch.last_offset)
            follows = piece.first_offset > position if has_gaps else False
            check(follows or piece.first_offset == position, "R2", self.name, "expects", position, "gets", piece.first_offset)
            check(batch.last_offset <= ghost.high_watermark, "R1", self.name, "reads", key, "HW", ghost.high_watermark)
            check(ghost.committed.get(batch.last_offset) == key, "R3", self.name, "reads", key, "at", head.node)
            same = batch.header.is_compacted or ghost.chains[key][1] == batch.header.crc
            check(same, "R3", self.name, "other bytes", key)
            position = piece.last_offset + 1
        check(
            position == self.progress.next_offset or (has_gaps and position < self.progress.next_offset),
            "R2",
            self.name,
            "handed on up to",
            position,
            "is at",
            self.progress.next_offset,
        )
        check(position <= head.highWatermark + 1 or not handed_on, "R1", self.name, position, head)


class SimTable:
    """Reads a compacted stream from its start to the end as of when it began, again and again, of any replica: of each key it has the
    newest record below where its reading ended [R11]. What delete markers took while it read makes a reading worth nothing [D30]."""

    def __init__(self, cluster: World, name: str, key: PartitionKey, interval_ns: int) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.interval_ns = interval_ns
        self._rng = random.Random(f"{cluster.seed}/{name}")
        self._progress: ReadProgress | None = None
        self._found: dict[int, tuple[int, int]] = {}
        cluster.clock.after(interval_ns, self._turn)

    def _turn(self) -> None:
        self.cluster.clock.after(MS + int(self._rng.random() * 2 * self.interval_ns), self._turn)
        ghost = self.cluster.checkers.ghost(self.key)
        if self.cluster.checkers.lost_by_command(self.key) or ghost.high_watermark < 0:
            self._progress = None
            return
        if self._progress is None:
            start, end = ghost.log_start_offset, ghost.high_watermark + 1
            self._progress = ReadProgress(self.key.stream, self.key.partition, start, end, floor_high_watermark=end - 1)
            self._progress.moves_end, self._found = True, {}
        progress, node = self._progress, self._rng.choice(sorted(self.cluster.nodes))
        request, subject = progress.request(self._rng.choice((500, 2000)), 0), f"{self.key.stream}.{self.key.partition}"
        asked = progress.next_offset
        self.cluster.network.request(
            self.name, f"{subject}.read.{node}", ReadFrame(frames.encode(request)), lambda a: self._answered(progress, asked, a)
        )

    def _answered(self, progress: ReadProgress, asked: int, answer: Any) -> None:
        if progress is not self._progress or asked != progress.next_offset or not isinstance(answer, ReadAnswer):
            return
        try:
            slices = progress.accept(answer.frame)
        except (NotServedError, DamagedBatchError, ProtocolError):
            return
        except LiftError:
            self._progress = None
            return
        deletes = self.cluster.checkers.ghost(self.key).deletes
        for piece in slices:
            ids = ids_in(piece.batch)[piece.first_index : piece.end_index]
            for offset, message_id in zip(piece.offsets().tolist(), ids, strict=True):
                self._found[key_of(message_id, deletes=deletes)] = offset, message_id
        if progress.missed_deletes:
            self.cluster.counters["table: deletes went while it was read"] += 1
            self._progress = None
        elif progress.done:
            config, ghost = self.cluster.stream_configs[self.key.stream], self.cluster.checkers.ghost(self.key)
            read_all_keys(self.name, self._found, ghost, progress.next_offset, config.max_per_subject)
            self.cluster.counters["table: read"] += 1
            self._progress = None
