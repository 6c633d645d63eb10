"""A response would be larger than the NATS server's max_payload.

A server closes the connection of a client that sends more than max_payload; a leader that did would lose its followers at
each catch-up, and a follower that is sent nothing, with the header that says "caught up", would join the ISR without the
records. So a response is made of as many whole batches as fit, and a batch that does not fit, because a record is stored with more
than it came with, or because the server's limit was lowered afterwards, goes in pieces, each of them asked for.

Shows A10, D5, D16, D19, D23, L3.
"""

from __future__ import annotations

from liftpy.core.replication import effects as do
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.chunking import NOTHING, Assembly, PartialBatch
from tests.scripts.replication_bench import FakeBus, ReplicationBench
from tests.scripts.stage import Stage
from tests.simulation.replica.messages import FetchResponse


def _fetch(bench: ReplicationBench, offset: int, held: PartialBatch = NOTHING) -> list[bytes]:
    """A follower's fetch that acknowledges ``offset``, and what it gets."""
    request = pb.ReplicationRequest(
        replicaID="n2", offset=offset, leaderEpoch=1, offsetEpoch=1, incarnation=1, requestId=1, maxBytes=1 << 20,
        streamUid=bench.key.uid, position=held.position, batchCrc=held.crc,
    )  # fmt: skip
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), "liftpy.inbox.n2.x.1.1")
    event: FetchRequest = bench.fetches.pop()
    effect = do.SendFetchResponse(token=event.token, from_offset=event.offset + 1, max_bytes=event.max_bytes, leader_epoch=1)
    bench.replication.send_response(effect, bench.log, bench.log.high_watermark)
    return bench.bus.take("liftpy.inbox.n2.x")


async def test_fetch_response_contains_as_many_whole_batches_as_fit_into_max_payload() -> None:
    bench = ReplicationBench(FakeBus(max_payload=64 * 1024))
    for number in range(40):
        bench.publish(bytes([number]) * 9000)
        await bench.turn()
    bench.commit()
    offset, responses = -1, 0
    while offset < 39:
        (frame,) = _fetch(bench, offset)
        assert len(frame) <= bench.bus.max_payload
        batches = split_batches(frames.decode_replication_response(frame).batches)
        assert batches[0].base_offset == offset + 1
        offset, responses = batches[-1].last_offset, responses + 1
    assert responses > 40 * 9000 // bench.bus.max_payload
    assert bench.bus.errors == {}


def _fetch_large(bench: ReplicationBench, offset: int) -> list[RecordBatch]:
    """The batch after ``offset``, which needs several answers."""
    assembly = Assembly()
    while True:
        (frame,) = _fetch(bench, offset, assembly.held)
        assert len(frame) <= bench.bus.max_payload
        whole = assembly.add_piece(frames.decode_replication_piece(frame).piece)
        if whole is not None:
            return split_batches(whole)


async def test_fetch_response_with_a_record_above_max_payload_is_sent_in_fragments() -> None:
    bench = ReplicationBench(FakeBus(max_payload=64 * 1024))
    bench.publish(b"x" * (64 * 1024), "large")
    for _ in range(12):
        bench.publish(b"y" * 9000, "small")
    await bench.turn()
    bench.commit()
    assert [answer["seq"] for answer in bench.answers("large")] == [1]
    assert _fetch_large(bench, -1)[0].values() == [b"x" * (64 * 1024)]
    offset = 0
    while offset < 12:
        (frame,) = _fetch(bench, offset)
        offset = split_batches(frames.decode_replication_response(frame).batches)[-1].last_offset
    assert bench.bus.errors == {}


async def test_fetch_response_after_a_lowered_max_payload_sends_stored_batches_in_fragments() -> None:
    bench = ReplicationBench()
    bench.publish(b"x" * 500_000)
    await bench.turn()
    bench.commit()
    bench.bus.max_payload = 64 * 1024
    assert _fetch_large(bench, -1)[0].values() == [b"x" * 500_000]
    assert bench.bus.errors == {}
    (frame,) = _fetch(bench, 0)
    assert not frames.decode_replication_response(frame).batches, "a follower that has it is told that it is caught up"


def test_follower_with_a_small_max_payload_catches_up() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(30)
        s.cluster.network.max_payload_bytes = 600
        sizes: list[int] = []
        gate = s.cluster.network.gate
        assert gate is not None

        def watch(sender: str, receiver: str, message: object, arrive: object) -> bool:
            if isinstance(message, FetchResponse):
                sizes.append(len(message.batches))
            return gate(sender, receiver, message, arrive)  # type: ignore[arg-type]

        s.cluster.network.gate = watch
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.end(c) == 31
        assert 0 < max(sizes) <= 600


def test_follower_assembles_a_batch_larger_than_max_payload() -> None:
    with Stage(min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(1, records=6)
        s.cluster.network.max_payload_bytes = 128  # the operator lowers max_payload below what is stored
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.end(c) == 7
        assert s.counted("batch put together") >= 1


def test_follower_restarts_a_partial_batch_after_a_leader_change() -> None:
    """The kept pieces are of one leader's epoch. The follower fetches the batch of the next leader from the beginning."""
    with Stage(min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.cluster.network.max_payload_bytes = 128
        s.publish(1, records=6)
        pieces: list[str] = []
        gate = s.cluster.network.gate
        assert gate is not None

        def after_one_piece(sender: str, receiver: str, message: object, arrive: object) -> bool:
            if isinstance(message, FetchResponse) and receiver == c and message.piece is not None:
                pieces.append(sender)
                if len(pieces) == 2:
                    return True  # lost, and its sender with it
            return gate(sender, receiver, message, arrive)  # type: ignore[arg-type]

        s.cluster.network.gate = after_one_piece
        s.reconnect(c)
        s.until(lambda: len(pieces) == 2)
        s.crash(a)
        s.until(lambda: s.leader == b and s.end(c) >= 7)
        assert pieces[0] == a
        assert b in pieces
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
