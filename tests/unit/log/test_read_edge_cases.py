"""Test reads of parts of a batch, reads by time, and the start of a log without segments."""

from __future__ import annotations

import pytest

from liftpy.core.log.log import Log
from liftpy.core.log.reading import ReadResult, without_earlier_offsets
from liftpy.core.log.segment import log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint, encode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_filler, parse_batch, parse_header, split_batches
from liftpy.errors import OffsetOutOfRangeError
from tests.unit.log.log_model import batch, fill, reopened


def a_log() -> Log:
    """40 batches of three records in several segments; HW at 100."""
    log = reopened(MemoryStorage())
    fill(log, 40)
    log.raise_high_watermark(100)
    assert len(log.segments) > 3
    return log


def stored(log: Log) -> dict[int, bytes]:
    """Base offset -> the batch, of all that were appended."""
    result = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    return {found.base_offset: bytes(found.view) for chunk in result.chunks for found in split_batches(chunk)}


@pytest.mark.parametrize("start", [0, 1, 50, 4096])
def test_log_open_without_segments_starts_at_its_checkpoint(start: int) -> None:
    storage = MemoryStorage()
    storage.replace(CHECKPOINT_NAME, encode_checkpoint(Checkpoint(start - 1, start, 7)))
    log = reopened(storage)
    assert (log.log_start_offset, log.log_end_offset, log.newest_offset, log.high_watermark) == (
        start,
        start,
        start - 1,
        start - 1,
    )
    assert log.persisted_epoch == 7
    log.append(batch(start, 2, epoch=8))
    assert storage.names().count(log_name(start)) == 1
    log.flush()
    assert reopened(storage).log_end_offset == start + 2


def test_log_read_fragment_returns_the_requested_bytes_of_a_batch() -> None:
    log = a_log()
    for base, whole in stored(log).items():
        for offset in (base, base + 2):
            for position, size in ((0, 10), (1, len(whole)), (len(whole) - 1, 10), (17, 5)):
                found = log.read_part(offset, position, size, end_offset=log.log_end_offset)
                assert found is not None
                header, piece = found
                assert (header.base_offset, header.size_bytes) == (base, len(whole))
                assert bytes(piece) == whole[position : position + size]
        assert log.read_part(base, len(whole), 1, end_offset=log.log_end_offset) is None


def test_log_read_fragment_of_an_uncommitted_or_missing_batch_returns_none() -> None:
    log = a_log()
    assert log.read_part(96, 0, 10) is not None
    assert log.read_part(99, 0, 10) is None, "HW lies within that batch: it is given whole or not at all"
    assert log.read_part(99, 0, 10, end_offset=102) is not None
    assert log.read_part(99, 0, 10, end_offset=101) is None
    assert log.read_part(log.log_end_offset, 0, 10, end_offset=1 << 40) is None
    with pytest.raises(OffsetOutOfRangeError, match=r"Offset 121 is outside 0\.\.120"):
        log.read_part(121, 0, 10)


def test_log_offset_for_timestamp_is_never_below_the_log_start() -> None:
    log = a_log()  # each batch is stamped with a thousand times its offset
    for wanted, offset in ((0, 0), (1, 3), (3000, 3), (3001, 6), (117_000, 117), (117_001, 120)):
        assert log.offset_for_timestamp(wanted) == offset
    log.drop_prefix(50)
    assert log.log_start_offset == 48, "of a whole batch"
    assert log.offset_for_timestamp(0) == 48
    assert log.offset_for_timestamp(60_000) == 60


def test_log_read_inside_a_compaction_filler_starts_at_the_requested_offset() -> None:
    filler, following = build_filler(10, 20, 3, 5), batch(20, 2)
    result = ReadResult((memoryview(filler + following),), len(filler + following), 22)
    cut = without_earlier_offsets(result, 14)
    first, second = cut.chunks
    header = parse_header(first)
    assert (header.base_offset, header.next_offset, header.leader_epoch, header.timestamp_ns) == (14, 20, 3, 5)
    assert bytes(second) == following
    assert (cut.size_bytes, cut.next_offset) == (result.size_bytes, 22)
    for offset in (10, 9):
        assert without_earlier_offsets(result, offset) is result
    plain = ReadResult((memoryview(following),), len(following), 22)
    assert without_earlier_offsets(plain, 21) is plain, "records are given whole"
    nothing = ReadResult((), 0, 5)
    assert without_earlier_offsets(nothing, 5) is nothing
    alone = without_earlier_offsets(ReadResult((memoryview(filler),), len(filler), 20), 19)
    assert [parse_batch(chunk).base_offset for chunk in alone.chunks] == [19]
