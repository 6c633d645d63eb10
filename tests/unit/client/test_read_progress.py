from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.client import positions
from liftpy.client.batch_view import BatchSlice
from liftpy.client.positions import Bounds
from liftpy.client.progress import NotServedError, ReadProgress
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import ConfigError, CorruptionError, LogTruncatedError, NotFoundError, OffsetOutOfRangeError, ProtocolError
from tests.batches import build_batch
from tests.each import each
from tests.unit.client.read_answers import answer, batch, offsets

_Error = client_pb2.ReadResponse.Error


def test_partition_reader_after_an_answer_of_an_earlier_leader_keeps_the_epoch_of_its_high_watermark() -> None:
    """The second node is a follower that does not know the new leader yet."""
    progress = ReadProgress("s", 0, 5)
    progress.accept(answer(batch(5, 2), hw=9, leaderEpoch=7))
    progress.accept(answer(batch(7, 1), hw=7, leaderEpoch=6))
    assert (progress.high_watermark, progress.node_epoch) == (9, 7)


def test_partition_reader_with_an_empty_answer_below_the_high_watermark_tries_another_replica() -> None:
    with pytest.raises(NotServedError, match="nothing at"):
        ReadProgress("s", 0, 5).accept(answer(hw=9))
    with pytest.raises(
        NotServedError, match="n1 returned nothing at offset 5, although offset 9 is committed"
    ):  # it lags behind what another one has said
        ReadProgress("s", 0, 5, high_watermark=9).accept(answer(hw=4))


@each(
    ("frame", "kind", "text"),
    [
        (answer(batch(6, 2), hw=9), ProtocolError, r"offset 5, received 6\. Read"),
        (answer(batch(5, 2), batch(8, 1), hw=9), ProtocolError, "n1: gap"),
        (answer(batch(5, 2), hw=5), ProtocolError, "above the high"),
        (answer(batch(5, 2, epoch=3), batch(7, 1, epoch=2), hw=9), ProtocolError, "LeaderEpoch 2 at offset"),
        (answer(batch(5, 2)[:-1] + b"!", hw=9), CorruptionError, "CRC-32C"),
        (answer(batch(5, 2)[:-3], hw=9), CorruptionError, "bytes"),
        (b"garbage", ProtocolError, "envelope"),
        (answer(batch(5, 2), hw=9, uid="u2"), ProtocolError, "stream with uid 'u2"),
        (answer(hw=9, error=_Error.WRONG_STREAM, uid="u2"), NotFoundError, "created again"),
        (answer(hw=9, error=_Error.WRONG_STREAM, uid="u1"), ProtocolError, "refuses the stream that it has"),
        (answer(hw=9, error=_Error.NOT_READY, uid="u2"), NotServedError, "NOT_READY"),
        (answer(hw=9, error=_Error.CUT, cutEndOffset=5), ProtocolError, "cut at 5, behind what was read"),
        (answer(hw=9, error=_Error.CUT, cutEndOffset=4), LogTruncatedError, "records before offset 5 that"),
        (answer(hw=9, error=_Error.CUT, cutEndOffset=0), LogTruncatedError, "Records below 0"),
        (answer(hw=9, error=_Error.CUT, cutEndOffset=-1), ProtocolError, "cut at -1"),
        (answer(hw=9, node="n1 x\r\nPUB a"), ProtocolError, "names of its nodes"),
        (answer(hw=9, leader="n2.>"), ProtocolError, "names of its nodes"),
        (answer(hw=-2), ProtocolError, "HW -2"),
        (answer(hw=9, logStartOffset=-1), ProtocolError, "log start -1"),
        (answer(batch(5, 2), hw=9, stream="t", partition=0), ProtocolError, "for stream 't'"),
        (answer(batch(5, 2), hw=9, stream="s", partition=1), ProtocolError, "for partition 1"),
        (answer(batch(5, 2), hw=9, stream="s", partition=0, requestId=8), ProtocolError, "for requestId 8"),
        (answer(hw=9, error=_Error.OFFSET_OUT_OF_RANGE, logStartOffset=7), OffsetOutOfRangeError, "log starts at 7"),
        (answer(hw=3, error=_Error.OFFSET_OUT_OF_RANGE), NotServedError, "OFFSET_OUT_OF_RANGE"),
        (answer(hw=3, error=_Error.NOT_READY, detail="promoting", leader="n2"), NotServedError, r"NOT_READY\. The"),
        (answer(hw=3, error=_Error.BAD_REQUEST), ProtocolError, "malformed"),
        (answer(hw=3, error=999), NotServedError, "999"),
    ],
)
def test_partition_reader_rejects_an_invalid_answer_and_keeps_its_offset(
    frame: bytes, kind: type[Exception], text: str
) -> None:
    progress = ReadProgress("s", 0, 5, uid="u1", leader_epoch=1, last_offset=4)
    progress.request(1000, 0, 7)
    with pytest.raises(kind, match=text):
        progress.accept(frame)
    assert (progress.next_offset, progress.leader_epoch, progress.high_watermark) == (5, 1, -1)


def test_partition_reader_of_a_compacted_log_accepts_missing_offsets() -> None:
    progress = ReadProgress("s", 0, 0, end_offset=30, compacted=True)
    kept = build_batch([b"a", b"b"], base_offset=10, offset_deltas=[2, 7], leader_epoch=1)
    assert offsets(progress.accept(answer(kept, hw=29, compacted=True, nextOffset=18))) == [12, 17]
    assert progress.next_offset == 18
    assert progress.accept(answer(hw=29, compacted=True, nextOffset=30)) == []
    assert progress.done


def test_partition_reader_skips_control_batches() -> None:
    progress = ReadProgress("s", 0, 0)
    assert offsets(progress.accept(answer(batch(0, 2, control=True), batch(2, 1), hw=9))) == [2]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data())
def test_partition_reader_with_any_split_of_the_log_into_answers_returns_each_record_once(
    sizes: list[int], data: st.DataObject
) -> None:
    bases = [sum(sizes[:i]) for i in range(len(sizes))]
    total = sum(sizes)
    start = data.draw(st.integers(0, total))
    end = data.draw(st.integers(start, total))
    progress = ReadProgress("s", 0, start, end_offset=end)
    got: list[int] = []
    while not progress.done:
        first = max(i for i, base in enumerate(bases) if base <= progress.next_offset)
        upto = data.draw(st.integers(first + 1, len(bases)))
        chosen = [batch(bases[i], sizes[i]) for i in range(first, upto)]
        got += offsets(progress.accept(answer(*chosen, hw=total - 1)))
    assert got == list(range(start, end))


@given(st.integers(1, 30), st.integers(0, 40), st.none() | st.integers(0, 40))
def test_batch_slice_of_any_offset_range_has_the_records_in_the_range(count: int, start: int, end: int | None) -> None:
    whole = parse_batch(batch(5, count))
    wanted = [o for o in range(5, 5 + count) if o >= start and (end is None or o < end)]
    piece = BatchSlice.between(whole, start, end)
    if piece is None:
        assert wanted == []
        return
    assert piece.offsets().tolist() == wanted
    assert (piece.first_offset, piece.last_offset, piece.record_count) == (wanted[0], wanted[-1], len(wanted))
    assert piece.values() == [f"v{o}".encode() for o in wanted]
    assert len(piece.keys()) == len(piece.timestamps_ns()) == len(list(piece.records())) == len(wanted)
    assert piece.whole == (len(wanted) == count)


BOUNDS = Bounds(uid="u", node="n1", leader="n1", leader_epoch=1, log_start_offset=10, high_watermark=19)
EMPTY = Bounds(uid="u", node="n1", leader="n1", leader_epoch=1, log_start_offset=0, high_watermark=-1)


@pytest.mark.parametrize(
    ("start", "offset", "in_empty"),
    [("earliest", 10, 0), ("latest", 19, 0), ("new", 20, 0), (10, 10, None), (20, 20, None), (0, None, 0)],
)
def test_start_words_earliest_and_new_resolve_to_offsets(
    start: positions.Start, offset: int | None, in_empty: int | None
) -> None:
    for bounds, wanted in ((BOUNDS, offset), (EMPTY, in_empty)):
        if wanted is None:
            with pytest.raises(OffsetOutOfRangeError, match=r"of orders/0 is outside .* Choose an offset in this range"):
                positions.start_offset(start, bounds, "orders/0")
        else:
            assert positions.start_offset(start, bounds, "orders/0") == wanted


def test_until_offset_is_inclusive_and_resolves_to_the_next_offset() -> None:
    assert positions.end_offset("end", BOUNDS) == 20
    assert positions.end_offset("end", EMPTY) == 0
    assert positions.end_offset(25, BOUNDS) == 26
    assert positions.end_offset(None, BOUNDS) is None
    with pytest.raises(ConfigError):
        positions.end_offset("soon", BOUNDS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        positions.start_offset("now", BOUNDS, "orders/0")  # type: ignore[arg-type]


def test_start_and_until_texts_are_parsed_to_words_offsets_or_times() -> None:
    assert [positions.parse_start(t) for t in ("earliest", "latest", "new", "17")] == ["earliest", "latest", "new", 17]
    assert positions.parse_start("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12)
    assert [positions.parse_until(t) for t in (None, "end", "17")] == [None, "end", 17]
    now = datetime(2026, 1, 31, 12)
    assert positions.parse_until("2026-01-31", now) == datetime(2026, 1, 31)
    assert positions.parse_until("+250ms", now) == datetime(2026, 1, 31, 12, 0, 0, 250_000)
    assert positions.parse_start("-1.5h", now) == datetime(2026, 1, 31, 10, 30)
    assert positions.parse_start("-10", now) == positions.parse_start("-10") == positions.FromEnd(10)
    for wrong in ("-10", "10m", "-10w", "--1s"):
        with pytest.raises(ConfigError, match="-10m"):
            positions.parse_start(f"{wrong}{'0.' * (wrong == '-10')}", now)
        with pytest.raises(ConfigError, match="-10m"):
            positions.parse_until(wrong, now)
    for wrong in ("", "-0", "tomorrow"):
        with pytest.raises(ConfigError):
            positions.parse_start(wrong)
        with pytest.raises(ConfigError):
            positions.parse_until(wrong)


def test_partition_reader_after_a_truncation_of_its_last_record_raises_log_truncated() -> None:
    progress = ReadProgress("s", 0, 0)
    assert progress.request(1000, 0).lastEpoch == 0, "nothing has been read yet"
    with pytest.raises(ProtocolError, match="behind what was read"):
        progress.accept(answer(hw=2, error=_Error.CUT, cutEndOffset=0))
    progress.accept(answer(batch(0, 3, epoch=4), batch(3, 2, epoch=6), hw=4))
    request = progress.request(1000, 0)
    assert (request.lastOffset, request.lastEpoch) == (4, 6)
    progress.accept(answer(hw=4))
    assert (progress.last_offset, progress.leader_epoch) == (4, 6)
    with pytest.raises(LogTruncatedError, match=r"them\. Records below 3 are") as caught:
        progress.accept(answer(hw=2, error=_Error.CUT, cutEndOffset=3))
    assert caught.value.end_offset == 3
    assert not caught.value.retryable
    assert progress.next_offset == 5


def test_read_request_of_a_compacted_log_contains_the_last_returned_record() -> None:
    """Compaction may have deleted the records before the next offset."""
    progress = ReadProgress("s", 0, 0, compacted=True)
    progress.accept(answer(batch(0, 2, epoch=3), hw=9, compacted=True, nextOffset=8))
    request = progress.request(1000, 0)
    assert (request.offset, request.lastOffset, request.lastEpoch) == (8, 1, 3)
