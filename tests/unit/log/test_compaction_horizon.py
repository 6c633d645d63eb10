"""Test the compaction horizon: it is durable before a cleaned segment, and a missing file never lowers it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.compaction_point import HORIZON_NAME, NEVER, Horizon, decode_horizon, shows_traces
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication.follower import LogReset, Truncation, holds_horizon, reconcile
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer
from liftpy.core.wire.batch import split_batches
from liftpy.errors import StorageError
from tests.batches import build_batch

CONFIG = StreamConfig(compaction=True)
SEALED_END = 8


def filled(storage: MemoryStorage | None = None) -> Log:
    """Offsets 0-7 sealed, of two keys, in epochs 1 and 2; 8-9 in the active segment."""
    log, _ = Log.open(storage or MemoryStorage(), CONFIG)
    for offset in range(10):
        if offset == SEALED_END:
            log.roll()
        epoch = 1 if offset < 5 else 2
        log.append(build_batch([b"v"], keys=[b"%d" % (offset % 2)], base_offset=offset, leader_epoch=epoch, timestamp_ns=1))
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def compact(log: Log) -> int:
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    return log.complete_compaction(compaction)


def reopened(storage: MemoryStorage, *, power: bool) -> Log:
    return Log.open(storage.crash(power=power), CONFIG)[0]


def test_compaction_horizon_after_a_compaction_is_reported_and_survives_a_power_cut() -> None:
    log, told = filled(), []
    log.on_compacted = told.append
    assert log.horizon == NEVER
    assert compact(log) == 6
    assert log.horizon == Horizon(SEALED_END, 2)
    assert told == [Horizon(SEALED_END, 2)]
    assert reopened(log.storage, power=True).horizon == Horizon(SEALED_END, 2)


@pytest.mark.parametrize("power", [False, True])
def test_compaction_horizon_after_a_crash_at_any_call_covers_the_dropped_records(power: bool) -> None:
    compacted = 0
    for calls in range(40):
        storage = MemoryStorage()
        log = filled(storage)
        storage.fail_after(calls)
        try:
            compact(log)
        except StorageError:
            pass
        log = reopened(storage, power=power)
        if any(map(shows_traces, log.segments)):
            compacted += 1
            assert log.horizon.end_offset == SEALED_END, calls
            assert decode_horizon(log.storage.load(HORIZON_NAME)) == log.horizon, "stored, not inferred"
    assert compacted > 10


@pytest.mark.parametrize("spoil", [lambda s: s.remove(HORIZON_NAME), lambda s: s.replace(HORIZON_NAME, b"torn")])
def test_compaction_horizon_without_its_file_is_inferred_from_segments(spoil: Callable[[MemoryStorage], None]) -> None:
    log = filled()
    spoil(log.storage)
    assert reopened(log.storage, power=False).horizon == NEVER, "nothing has been compacted"
    compact(log)
    spoil(log.storage)
    assert reopened(log.storage, power=False).horizon == Horizon(SEALED_END, 2, SEALED_END)


def test_compaction_horizon_of_a_follower_rises_to_that_of_the_leader_with_compacted_batches() -> None:
    leader, (follower, _) = filled(), Log.open(MemoryStorage(), CONFIG)
    compact(leader)
    for chunk in leader.read(0, 150).chunks:
        batches = split_batches(chunk)
        follower.append_batches(chunk, batches, compacted=Horizon(10, 2))
    assert follower.log_end_offset < SEALED_END
    assert follower.horizon == Horizon(10, 2)
    assert reopened(follower.storage, power=False).horizon == Horizon(10, 2)


def test_compaction_horizon_of_a_follower_does_not_rise_with_uncompacted_batches() -> None:
    leader, (follower, _) = filled(), Log.open(MemoryStorage(), CONFIG)
    for chunk in leader.read(0, 1 << 20).chunks:
        follower.append_batches(chunk, split_batches(chunk), compacted=Horizon(10, 2))
    assert follower.horizon == NEVER


@pytest.mark.parametrize("empty", [lambda log: log.reset(0), lambda log: log.truncate_to(0)])
def test_compaction_horizon_of_an_emptied_log_is_reset(empty: Callable[[Log], object]) -> None:
    log = filled()
    compact(log)
    empty(log)
    assert log.horizon == NEVER
    assert reopened(log.storage, power=True).horizon == NEVER


@pytest.mark.parametrize(
    ("horizon", "end_on_leader", "wanted"),
    [
        (0, 4, Truncation(4, True)),
        (4, 4, Truncation(4, True)),
        (5, 4, LogReset(0)),
        (20, 4, LogReset(0)),
        (20, 10, Truncation(10, True)),
    ],
)
def test_reconciliation_does_not_truncate_the_log_below_the_compaction_horizon(
    horizon: int, end_on_leader: int, wanted: Truncation | LogReset
) -> None:
    log = LogOffsets()
    log.set_recovered(0, 10, 9, ((1, 0),))
    log.compacted(Horizon(horizon, 1))
    assert (
        reconcile(
            log,
            EpochAnswer(request_id=1, leader_epoch=1, last_offset=end_on_leader - 1, current_epoch=2, log_start_offset=0),
        )
        == wanted
    )


def test_reconciliation_starts_at_the_compaction_horizon_only_if_the_leader_log_reaches_it() -> None:
    for last_offset, wanted in ((18, False), (19, True), (25, True)):
        assert (
            holds_horizon(
                Horizon(20, 3),
                EpochAnswer(request_id=1, leader_epoch=2, last_offset=last_offset, current_epoch=5, log_start_offset=0),
            )
            is wanted
        )
    assert not holds_horizon(
        Horizon(0, 3), EpochAnswer(request_id=1, leader_epoch=0, last_offset=-1, current_epoch=5, log_start_offset=0)
    )
