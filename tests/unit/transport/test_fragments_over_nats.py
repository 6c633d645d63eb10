"""Test that every stored batch reaches followers and readers, in pieces where necessary."""

from __future__ import annotations

import pytest

from liftpy.client.progress import ReadProgress
from liftpy.core.replication import effects as do
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import Assembly
from liftpy.core.wire.envelope import MessageType
from tests.scripts.replication_bench import EPOCH, FakeBus, ReplicationBench

MAX_PAYLOAD = 1 << 20
KEY = b"k" * 60_000
WITH_KEY = b"NATS/1.0\r\nLift-Key: " + KEY + b"\r\n\r\n"


def replicate(bench: ReplicationBench, offset: int, assembly: Assembly) -> bytes:
    """Fetch what follows ``offset`` as a follower does; return the batches of the first answer that is whole."""
    for request_id in range(1, 1000):
        request = pb.ReplicationRequest(
            replicaID="n2", offset=offset, leaderEpoch=EPOCH, requestId=request_id, maxBytes=1 << 20,
            position=assembly.held.position, batchCrc=assembly.held.crc,
        )  # fmt: skip
        bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), f"liftpy.inbox.n2.f.{request_id}")
        event = bench.fetches.pop()
        effect = do.SendFetchResponse(
            token=event.token, from_offset=event.offset + 1, max_bytes=event.max_bytes, leader_epoch=EPOCH
        )
        bench.replication.send_response(effect, bench.log, bench.log.high_watermark)
        (frame,) = bench.bus.take("liftpy.inbox.n2.f")
        assert len(frame) <= bench.bus.max_payload
        if envelope.is_of(frame, MessageType.REPLICATION_PIECE):
            whole = assembly.add_piece(frames.decode_replication_piece(frame).piece)
            if whole is not None:
                return bytes(whole)
        else:
            return bytes(frames.decode_replication_response(frame).batches)
    raise AssertionError("no whole batch in 1,000 answers")


def read(bench: ReplicationBench) -> list[bytes | None]:
    """Everything committed, as a reader gets it."""
    progress = ReadProgress("orders", 0, 0, bench.log.high_watermark + 1)
    values: list[bytes | None] = []
    for _ in range(1000):
        if progress.done:
            return values
        bench.bus.deliver(bench.subjects.read_from("orders", 0, "n1"), frames.encode(progress.request(1 << 20, 0)), "_INBOX.r")
        (answer,) = bench.bus.take("_INBOX.r")
        assert len(answer) <= bench.bus.max_payload
        for piece in progress.accept(answer):
            values += piece.values()
    raise AssertionError("not read in 1,000 answers")


async def stored(bench: ReplicationBench, *messages: tuple[bytes, bytes]) -> list[bytes]:
    for payload, headers in messages:
        bench.publish(payload, headers=headers)
        await bench.turn()
    bench.commit()
    return [payload for payload, _ in messages]


@pytest.mark.parametrize("size_bytes", [1_040_385, 1_044_481, MAX_PAYLOAD - 1, MAX_PAYLOAD])
async def test_publish_of_max_payload_bytes_is_stored_replicated_and_read(size_bytes: int) -> None:
    bench = ReplicationBench()
    wanted = await stored(bench, (b"x" * size_bytes, b""), (b"after", b""))
    assert bench.values() == wanted, "it vanished"
    first = split_batches(replicate(bench, -1, Assembly()))
    assert first[0].values() == wanted[:1]
    assert read(bench) == wanted


async def test_producer_batch_with_repeated_keys_fits_max_payload_exactly() -> None:
    bench = ReplicationBench()
    wanted = await stored(bench, (b"v" * (MAX_PAYLOAD - len(WITH_KEY)), WITH_KEY), (b"after", b""))
    assert bench.batches()[0].header.size_bytes > MAX_PAYLOAD
    assert split_batches(replicate(bench, -1, Assembly()))[0].keys() == [KEY]
    assert read(bench) == wanted


async def test_batch_above_a_lowered_max_payload_is_replicated_and_read_in_fragments() -> None:
    bench = ReplicationBench()
    wanted = await stored(bench, (b"x" * 900_000, b""), (b"y" * 700_000, WITH_KEY), (b"after", b""))
    bench.bus.max_payload = 32 * 1024
    offset, batches = -1, []
    while offset < 2:
        found = split_batches(replicate(bench, offset, Assembly()))
        offset, batches = found[-1].last_offset, batches + found
    assert [value for batch in batches for value in batch.values()] == wanted
    assert read(bench) == wanted
    assert bench.bus.errors == {}


async def test_follower_that_does_not_support_fragments_gets_no_response_for_a_batch_above_max_payload() -> None:
    bench = ReplicationBench()
    await stored(bench, (b"x" * 900_000, b""))
    bench.bus.max_payload = 64 * 1024
    request = pb.ReplicationRequest(replicaID="n2", offset=-1, leaderEpoch=EPOCH, requestId=1, maxBytes=1 << 20)
    bench.bus.deliver(bench.subjects.replicate("orders", 0), frames.encode(request), "liftpy.inbox.n2.f.1")
    event = bench.fetches.pop()
    bench.replication.send_response(
        do.SendFetchResponse(token=event.token, from_offset=0, max_bytes=1 << 20, leader_epoch=EPOCH), bench.log, 0
    )
    assert bench.bus.take("liftpy.inbox.n2.f") == [], "an empty response would say: you are caught up"


async def test_publishes_with_a_small_max_payload_are_stored_in_smaller_batches_without_loss() -> None:
    bench = ReplicationBench(FakeBus(max_payload=16 * 1024))
    wanted = await stored(bench, *((bytes([number]) * 16_384, b"") for number in range(8)))
    assert bench.values() == wanted
    assert read(bench) == wanted
