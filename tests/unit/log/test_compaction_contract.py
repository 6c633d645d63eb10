"""Test which records of a key compaction retains, and for how long."""

from __future__ import annotations

from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.log.compaction import Compaction
from liftpy.core.log.compaction_point import HORIZON_NAME, NEVER, CompactionHorizon, Horizon
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import split_batches
from tests.batches import build_batch
from tests.unit.log.small_logs import S, a_log, add, filled


def keyed(
    *batches: list[tuple[bytes | None, bytes | None]], config: dict[str, Any] | None = None, epochs: tuple[int, ...] = ()
) -> Log:
    log = a_log(compaction=True, **(config or {}))
    for number, rows in enumerate(batches):
        log.append(
            build_batch(
                [value for _, value in rows], keys=[key for key, _ in rows], base_offset=log.log_end_offset,
                leader_epoch=epochs[number] if epochs else 1, timestamp_ns=number * S,
            )
        )  # fmt: skip
        log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def compacted(log: Log, now_ns: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    compaction = log.begin_compaction(now_ns)
    assert compaction is not None
    compaction.run()
    log.complete_compaction(compaction)
    rows, at = [], 0
    while at <= log.high_watermark:
        result = log.read(at, 1 << 20)
        for chunk in result.chunks:
            for batch in split_batches(chunk):
                if batch.record_count:
                    rows += list(zip(batch.offsets().tolist(), batch.keys(), batch.values(), strict=True))
        at = result.next_offset
    return rows


def test_compaction_preserves_leader_epochs_and_segment_size_limits() -> None:
    rows = [[(b"a", b"%d" % n)] for n in range(6)]
    log = keyed(*rows, [(b"z", b"1")], epochs=(1, 1, 2, 2, 3, 3, 3))
    before = log.epochs.entries
    assert [offset for offset, *_ in compacted(log)] == [5, 6]
    again = Log.open(log.storage.crash(), StreamConfig())[0]  # type: ignore[attr-defined]
    assert again.epochs.entries == before
    sizes = [len(build_batch([b"v" * 2000], keys=[b"k%d" % n])) for n in range(1)]
    log = keyed(*([(b"k%d" % n, b"v" * 2000)] for n in range(9)), config={"segment_bytes": 3 * sizes[0] + 10})
    assert len(compacted(log)) == 9
    assert all(segment.size_bytes <= 3 * sizes[0] + 10 for segment in log.segments)
    assert len(log.segments) == 4


def test_compaction_reads_only_committed_and_flushed_segments() -> None:
    log = a_log(compaction=True)
    for number in range(6):
        add(log, keys=[b"k"])
        log.roll()
        if number == 3:
            log.flush()
    for hw, inputs in ((-1, 0), (0, 1), (1, 2), (3, 4), (5, 4)):
        if hw >= 0:
            log.raise_high_watermark(hw)
        found = log.begin_compaction(0)
        assert (len(found.inputs) if isinstance(found, Compaction) else 0) == inputs


def test_compaction_horizon_never_falls_unless_the_log_is_empty() -> None:
    log = filled()
    horizon = CompactionHorizon(log.storage, log.segments, log.storage.load(HORIZON_NAME))
    assert horizon.rise(Horizon(5, 7))
    assert horizon.rise(Horizon(6, 3))
    assert horizon.value == Horizon(6, 7)
    assert not horizon.rise(Horizon(6, 9))
    assert CompactionHorizon(log.storage, log.segments, log.storage.load(HORIZON_NAME)).value == Horizon(6, 7)
    empty = a_log()
    empty.storage.replace(HORIZON_NAME, log.storage.load(HORIZON_NAME) or b"")
    assert CompactionHorizon(empty.storage, empty.segments, empty.storage.load(HORIZON_NAME)).value == NEVER
