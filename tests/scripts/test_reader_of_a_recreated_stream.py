"""A stream is deleted and created again while a reader of the old stream is active.

The name is the same, the offsets begin anew, and the old reader is at offset 7 of something that does not exist any more. If
names were all, it would wait until the new stream gets there and go on reading the middle of another story. A stream is its
unique id: reads and fetches name it, another one is refused, and the reader hears an error that says what happened; it is
never reset in silence. A replica of the old stream gets nothing from the new one either.

Shows R3, R5, R9, M11.
"""

from __future__ import annotations

import pytest

from liftpy.client.progress import ReadProgress
from liftpy.core.replication.messages import EpochQuery, FetchRefusal, FetchRequest, RefusalReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import NotFoundError
from tests.scripts.replication_bench import FakeBus, ReplicationBench
from tests.scripts.stage import Stage


def _read(bench: ReplicationBench, progress: ReadProgress) -> list[bytes | None]:
    bench.bus.deliver(bench.subjects.read_from("orders", 0, "n1"), frames.encode(progress.request(1 << 20, 0)), "_INBOX.r")
    (answer,) = bench.bus.take("_INBOX.r")
    return [value for piece in progress.accept(answer) for value in piece.batch.values()]


async def _filled(bus: FakeBus, uid: str, text: str, count: int) -> ReplicationBench:
    bench = ReplicationBench(bus, uid=uid)
    for number in range(count):
        bench.publish(f"{text} {number}".encode())
    await bench.turn()
    bench.commit()
    return bench


async def test_reader_of_a_deleted_and_recreated_stream_gets_an_error() -> None:
    bus = FakeBus()
    old = await _filled(bus, "uid-1", "old", 7)
    reader = ReadProgress("orders", 0, 0)
    assert _read(old, reader)[-1] == b"old 6"
    assert (reader.next_offset, reader.uid) == (7, "uid-1")
    old.reads.close()
    old.ingest.stop()
    old.replication.stop()

    for count in (2, 20):  # whether the new stream has reached its offset or not
        new = await _filled(bus, "uid-2", "new", count)
        with pytest.raises(NotFoundError, match="created again"):
            _read(new, reader)
        assert (reader.next_offset, reader.uid) == (7, "uid-1")
    assert _read(new, ReadProgress("orders", 0, 0))[:2] == [b"new 0", b"new 1"], "one that begins anew reads the new one"


async def test_long_poll_reader_of_a_deleted_and_recreated_stream_gets_no_such_partition() -> None:
    bus = FakeBus()
    old = await _filled(bus, "uid-1", "old", 3)
    request = client_pb2.ReadRequest(offset=3, waitMs=30_000, streamUid="uid-1")
    bus.deliver(old.subjects.read_from("orders", 0, "n1"), frames.encode(request), "_INBOX.r")
    assert old.reads.waiting_count == 1
    old.reads.close()
    (answer,) = bus.take("_INBOX.r")
    head, body = frames.decode_read_response(answer)
    assert (head.error, bytes(body)) == (client_pb2.ReadResponse.NO_SUCH_PARTITION, b"")


async def test_publisher_to_a_recreated_stream_is_acked_by_the_new_stream() -> None:
    bus = FakeBus()
    old = await _filled(bus, "uid-1", "old", 3)
    old.ingest.stop()
    new = await _filled(bus, "uid-2", "new", 0)
    new.publish(b"first", "p")
    await new.turn()
    new.commit()
    assert new.answers("p") == [{"stream": "orders", "seq": 1}]
    assert old.log.log_end_offset == 3


def test_leader_of_a_recreated_stream_rejects_fetches_of_replicas_of_the_old_stream() -> None:
    with Stage() as s:
        s.publish(3)
        s.settle()
        leader = s.replica(s.leader)
        position, end = s.position(s.followers[0]), s.end(s.leader)
        fetch = FetchRequest(
            token=99, replica=s.followers[0], offset=-1, leader_epoch=s.leader_epoch, offset_epoch=0, incarnation=1,
            request_id=1 << 60, max_bytes=1 << 20, stream_uid="000001-another",
        )  # fmt: skip
        (refusal,) = leader.replica.step(fetch, s.cluster.clock.now_ns)
        assert isinstance(refusal, FetchRefusal)
        assert refusal.reason is RefusalReason.WRONG_STREAM
        query = EpochQuery(
            token=100,
            replica=s.followers[0],
            request_id=1,
            requested_epoch=1,
            current_epoch=s.leader_epoch,
            stream_uid="000001-another",
        )
        (refusal,) = leader.replica.step(query, s.cluster.clock.now_ns)
        assert isinstance(refusal, FetchRefusal)
        assert (s.position(s.followers[0]), s.end(s.leader)) == (position, end)
