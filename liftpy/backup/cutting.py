"""Where a restored partition is to end, and its last batch cut to that: the only bytes of a backup that are ever written
otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from liftpy.backup.manifest import Manifest
from liftpy.partition import Purge
from liftpy.wire.batch import RecordBatch, build_filler, build_remains, parse_batch, reach
from liftpy.wire.filters import Filter
from liftpy.wire.kept import kept


def end_of(batch: RecordBatch, until_offset: int | None, until_ns: int | None) -> int | None:
    """Where to end within ``batch`` (exclusive), None: not there. ``until_offset``: the last offset that is wanted, inclusive;
    ``until_ns``: only what is before the first record that was stamped at or after it."""
    end: int | None = None
    if until_offset is not None and until_offset < batch.last_offset:
        end = max(until_offset + 1, batch.base_offset)
    if until_ns is not None and not batch.header.control and batch.record_count:
        late = np.flatnonzero(batch.timestamps_ns() >= until_ns)
        if late.size:
            at = int(batch.offsets()[late[0]])
            end = at if end is None else min(end, at)
    return end


def cut_batch(batch: RecordBatch, end: int) -> RecordBatch | None:
    """The records of ``batch`` below ``end`` (exclusive, within it), as one batch that reaches there; None: there are no such
    offsets."""
    header = batch.header
    if end <= batch.base_offset:
        return None
    mask = batch.offsets() < end if batch.record_count else np.zeros(0, dtype=np.bool_)
    if header.control or not mask.any():
        return parse_batch(build_filler(batch.base_offset, end, header.leader_epoch, header.timestamp_ns))
    return parse_batch(reach(kept(batch, mask), end))


def without_purged(batch: RecordBatch, purges: Sequence[Purge]) -> RecordBatch:
    """Return ``batch`` without the records that ``purges`` give up; ``batch`` itself where there are none."""
    if batch.header.control or not batch.record_count:
        return batch
    keep = np.ones(batch.record_count, dtype=np.bool_)
    for purge in purges:
        if batch.base_offset < purge.end_offset:
            keep &= ~(Filter(purge.subjects, purge.keys).mask(batch) & (batch.offsets() < purge.end_offset))
    if keep.all():
        return batch
    if not keep.any():
        header = batch.header
        if header.producer_id:
            return parse_batch(build_remains(batch))  # how far its producer is
        return parse_batch(build_filler(batch.base_offset, batch.next_offset, header.leader_epoch, header.timestamp_ns))
    return parse_batch(reach(kept(batch, keep), batch.next_offset))


def first_leader_epoch(manifest: Manifest, next_leader_epoch: int) -> int:
    """Return the first LeaderEpoch that the restored streams may have [D14].

    It is above all LeaderEpochs of the backup. It is also above ``next_leader_epoch``, which the cluster would give next. So every
    restore makes the cluster skip LeaderEpochs, also a drill in the cluster that was backed up.
    """
    most = max([manifest.leader_epoch, *(p.epoch for stream in manifest.streams for p in stream.partitions)])
    return max(most, next_leader_epoch) + 1
