"""Test filters, backward reads, positions, seek and lag of a consumer over the read rules of a node in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.client import Position
from liftpy.client.progress import BackwardProgress, ReadProgress
from liftpy.core.log import range_reads
from liftpy.core.partition.reads import Chunks
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record
from liftpy.core.wire.filters import Filter
from liftpy.errors import ConfigError, NotFoundError, OffsetOutOfRangeError, ProtocolError
from tests.batches import build_batch
from tests.unit.client.memory_node import BEGAN, Node, consumer, offsets

batches = st.lists(
    st.tuples(
        st.lists(st.sampled_from([b"a", b"b", None]), min_size=1, max_size=6),
        st.sampled_from(["o.eu", "o.us"]),
        st.integers(0, 1500),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60)
@given(
    batches,
    st.sampled_from([Filter(), Filter(keys=(b"a",)), Filter(subjects=("*.us",)), Filter(subjects=("o.eu",), keys=(b"b",))]),
    st.booleans(),
    st.integers(0, 120),
    st.integers(0, 120),
    st.sampled_from([4096, 1 << 20]),
    st.sampled_from([6000, 1 << 20]),
    st.integers(1, 9),
)
def test_consumer_with_any_filter_and_start_returns_the_records_of_a_naive_filter(
    rows: list[Any], wanted: Filter, backwards: bool, start: int, until: int, max_bytes: int, payload: int, at_once: int
) -> None:
    async def run() -> None:
        node = Node(payload)
        for keys, subject, size in rows:
            node.append(*keys, subject=subject, size=size)
        last = node.log.newest_offset
        begin, end = min(start, last), min(until, last)
        expected = [
            record
            for record in node.records
            if (end <= record.offset <= begin if backwards else begin <= record.offset <= end)
            and (not wanted.keys or record.key in wanted.keys)
            and (not wanted.subjects or record.subject == wanted.subjects[0].replace("*", "o"))
        ]
        if backwards:
            expected.reverse()
        made = {"wanted": wanted, "backwards": backwards, "max_bytes": max_bytes}
        assert [record async for record in consumer(node, begin, end, **made)] == expected
        pieces = [piece async for piece in consumer(node, begin, end, **made).batches()]
        assert sorted(offset for piece in pieces for offset in piece.offsets().tolist()) == sorted(offsets(expected))
        found: list[Record] = []
        position = begin if not backwards else Position("u1", begin + 1)
        while True:  # each part by another consumer, from the stored position of the one before
            one = consumer(node, position, end, **made)
            some = await one.getmany(at_once)
            position = Position.parse(str(await one.position()))
            found += some
            if not some:
                break
        assert found == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reads, "SCAN_BYTES", 3000)
        asyncio.run(run())


@pytest.fixture
async def node() -> Node:
    made = Node()
    for number in range(40):
        made.append(b"a" if number % 2 else b"b", None, b"c")
    return made


async def test_consumer_start_accepts_relative_offsets_and_times(node: Node) -> None:
    async def first(start: Any, **more: Any) -> int:
        found = await consumer(node, start, **more).getone(0.3)
        return -1 if found is None else found.offset

    assert await first("-7") == 113
    assert await first("-500") == 0
    assert await first(BEGAN + timedelta(seconds=30)) == 30
    ago = datetime.now(UTC) - BEGAN - timedelta(seconds=60)
    assert await first(ago) in range(60, 64)
    assert await first(f"-{int(ago.total_seconds())}s") in range(60, 64)
    assert await first(np.int64(5)) == 5
    assert await first("17") == 17
    assert await first("new", backwards=True) == 119
    assert await first("latest", backwards=True) == 119
    assert await first(BEGAN + timedelta(seconds=30), backwards=True) == 29
    assert await first("earliest", backwards=True) == 0
    assert await first(7, backwards=True, until=8) == -1
    assert await first("-7", backwards=True) == 113
    assert await first("-1", backwards=True) == 119
    assert await first("-500", backwards=True) == 0
    for wrong in ("sometime", 1.5, b"5", "p1.u1.5", None):
        with pytest.raises(ConfigError, match=r"start|position"):
            consumer(node, wrong)


async def test_backward_consumer_ends_at_the_until_offset(node: Node) -> None:
    async def last(until: Any) -> int:
        return [record.offset async for record in consumer(node, "new", until, backwards=True)][-1]

    assert await last(None) == await last("end") == 0
    assert await last(7) == 7
    assert await last(BEGAN + timedelta(seconds=60)) == 60


async def test_consumer_position_of_a_recreated_stream_raises_not_found(node: Node) -> None:
    one = consumer(node)
    assert offsets(await one.getmany(5)) == [0, 1, 2, 3, 4]
    position = await one.position()
    assert (position, str(position)) == (Position("u1", 5, 1), "p1.u1.5.1")
    assert await one.lag() == 115
    assert (await consumer(node, position).getone()).offset == 5  # type: ignore[union-attr]
    assert (await consumer(node, str(position)).getone()).offset == 5  # type: ignore[union-attr]
    with pytest.raises(NotFoundError, match="created again"):
        await consumer(node, Position("u0", 5, 1), patience_s=0.3).getone()


async def test_consumer_seek_ends_the_iteration_and_changes_the_position(node: Node) -> None:
    one = consumer(node)
    iteration = one.records()
    assert (await anext(iteration)).offset == 0
    await one.seek(100)
    assert (await one.getone()).offset == 100  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="already read by"):
        await anext(iteration)
    await one.seek("-3")
    assert offsets(await one.getmany(10)) == [117, 118, 119]
    with pytest.raises(OffsetOutOfRangeError):
        await one.seek(500)
    await one.seek("earliest")
    assert await one.lag() == 120


async def test_consumer_getone_waits_up_to_its_timeout_and_loses_no_record_if_cancelled(node: Node) -> None:
    one = consumer(node, "new")
    assert await one.getone(0.05) is None
    waiting = asyncio.create_task(one.getone())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    node.append(b"k1", b"k2")
    assert [record.key for record in await one.getmany(10, 5.0)] == [b"k1", b"k2"]
    assert await one.lag() == 0
    with pytest.raises(ConfigError, match="max_records"):
        await one.getmany(0)


async def test_filtered_read_without_matches_sends_at_most_three_requests(node: Node) -> None:
    asked = node.asked
    assert [r async for r in consumer(node, "earliest", "end", wanted=Filter(keys=(b"nobody",)))] == []
    assert node.asked - asked <= 2 + 1  # the bounds, one look, and perhaps the end
    follow = consumer(node, "earliest", wanted=Filter(keys=(b"later",)))
    assert await follow.getone(0.2) is None
    node.append(None, b"later")
    assert (await follow.getone(5.0)).offset == 121  # type: ignore[union-attr]


async def test_backward_consumer_ends_at_records_deleted_by_retention(node: Node) -> None:
    one = consumer(node, "new", backwards=True, max_bytes=4096)
    assert len(await one.getmany(2)) == 2
    node.log.drop_prefix(100)
    node.log.log_start_offset = 100
    rest = [record.offset async for record in one]
    assert rest[0] == 117
    assert rest == list(range(117, rest[-1] - 1, -1))


def test_read_position_below_the_log_start_ends_a_backward_read_and_fails_a_forward_read() -> None:
    gone = client_pb2.ReadResponse(
        error=client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE, streamUid="u1", node="n1", logStartOffset=100, highWatermark=119
    )
    backwards = BackwardProgress("orders", 0, 50, uid="u1", leader_epoch=1, last_offset=50)
    assert backwards.accept(frames.read_response_header(gone)) == []
    assert backwards.done
    with pytest.raises(OffsetOutOfRangeError):
        ReadProgress("orders", 0, 50, uid="u1").accept(frames.read_response_header(gone))


def test_backward_reader_rejects_an_answer_with_records_above_the_high_watermark() -> None:
    data = build_batch([b"v"] * 5, base_offset=40, leader_epoch=1)
    said = client_pb2.ReadResponse(streamUid="u1", node="n1", highWatermark=43, nextOffset=40, selected=True, lookedEpoch=1)
    for highest, refused in ((43, True), (44, False)):
        said.highWatermark = highest
        progress = BackwardProgress("orders", 0, 45, uid="u1")
        if refused:
            with pytest.raises(ProtocolError, match="above the high watermark 43"):
                progress.accept(frames.read_response_header(said, [data]) + data)
        else:
            assert progress.accept(frames.read_response_header(said, [data]) + data)


async def test_backward_reader_retries_forged_answers_without_losing_records(node: Node) -> None:
    good, forged = node.answer, 0

    def spoilt(asker: asyncio.Future[bytes], chunks: Chunks) -> None:
        nonlocal forged
        head, body = frames.decode_read_response(b"".join(chunks))
        if body and forged < 3:
            forged += 1
            changes: list[dict[str, Any]] = [{"highWatermark": 3}, {"leader": "n 1"}, {"streamUid": "u2"}]
            for name, value in changes[forged - 1].items():
                setattr(head, name, value)
            data = frames.read_response_header(head, [body]) + bytes(body)
            return good(asker, (data,))
        return good(asker, chunks)

    node.answer = spoilt  # type: ignore[method-assign]
    assert [r.offset async for r in consumer(node, "new", backwards=True)] == list(range(119, -1, -1))
    assert forged == 3
