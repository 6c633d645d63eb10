"""The numbers of the log, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.log.compaction: MAX_FILLER_OFFSETS 2Gi, Compaction.dropped_records 0
liftpy.log.superseded: MAX_KEYS 4000000
liftpy.log.epochs: NO_EPOCH 0, EpochCache.__init__(before_start) 0
liftpy.log.flush: Flush.size_bytes 0
liftpy.log.flush_place: _FEWEST_POINTS 32, _MOST_POINTS 512, SHORT_S 0.001, SLOW_S 0.002, LONG_S 0.02, LARGE_BYTES 64Ki,
  MOST_WAITING 4, PROBES 32, _MISS 3, _TRUSTED 1024, _WEIGHT 0.03125
liftpy.log.inspect: SegmentReport.fault_position 0, SegmentReport.torn_tail no
liftpy.log.log: Log.append(now_wall_ns) 0, Log.append_batches(now_wall_ns) 0, Log.roll(now_wall_ns) 0,
  Log.apply_retention(hold_bytes) 0, Log.begin_compaction(min_dirty_ratio) 0.0, Log.close(clean) yes
liftpy.log.memory: MemoryStorage.__init__(capacity_bytes) 1099511627776, MemoryStorage.crash(power) yes
liftpy.log.promises: _VERSION 1, _LEAST_BYTES 64Ki, _GROWTH 4
liftpy.log.proving: _COPY_BYTES 8Mi, prove(flush_failed) no
liftpy.log.rechecks: EVERY_NS 1e9, MAX_ASKERS 64
liftpy.log.recovery: _COPY_BYTES 8Mi, OpenReport.cut_bytes 0, OpenReport.walked_bytes 0, OpenReport.rebuilt_indexes 0,
  OpenReport.checkpoint_found yes, OpenReport.lost_committed no, OpenReport.lost_flushed no, OpenReport.rewritten_bytes 0,
  recover(clean) no
liftpy.log.scrub: Scan.position 0, Scan.next_offset 0, Scan.leader_epoch 0, Scan._check(whole) no, scan_of(position) 0
liftpy.log.segment: INDEX_INTERVAL_BYTES 16Ki, _WALK_BYTES 8Mi, _RECENT 32, Segment.size_bytes 0, Segment.first_timestamp_ns
  0, Segment.max_timestamp_ns 0, Segment.record_count 0, Segment.sealed no, Segment.checked no, Segment.damaged no,
  Segment.awaits_scrub no, Segment.flushing_bytes 0, Segment.made_wall_ns 0, Segment._check_block(again) no, Walk.valid_behind
  no
liftpy.log.set_aside: DAMAGED_KEPT 3
liftpy.log.small_files: _VERSION 1, Checkpoint.high_watermark -1, Checkpoint.log_start_offset 0, Checkpoint.persisted_epoch 0
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
