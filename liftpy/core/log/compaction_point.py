"""The compaction horizon: the offset below which records of this log may be compacted away [D5, R3].

A key must never disappear on one replica only. Compaction drops a record because a later one of its key exists. If an
unclean election then truncates the later record, the key would be gone here. So a log that ends below its horizon, on a
leader without those records, is fetched again from the start (``liftpy.core.replication.follower``). A follower takes
over the horizon of its leader.

The horizon is stored before the results of a compaction replace the old files. If its file is lost, a log with gaps
counts as compacted up to its sealed segments.

``deletes_end`` is the offset below which tombstones may be gone [D30]. A follower that fetched an older record before
and missed the tombstone would keep the deleted key. So the leader rejects its fetch, and the follower starts again.

Example: a=1 at 0, a=2 at 9. Compaction drops offset 0, and the horizon is 10. A new leader's log ends at 5. Truncated
to 5, this log would have no a at all, but the leader has a=1. So this replica starts again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from liftpy.core.log.segment import Segment
from liftpy.core.log.small_files import open_small_file, seal_small_file
from liftpy.core.log.storage import Storage

HORIZON_NAME = "compaction-horizon"
_MAGIC = b"LFCH"
_BODY = struct.Struct("<qQq")
_BODY_WITHOUT_DELETES = struct.Struct("<qQ")
"""Layout of files without ``deletes_end``, written by earlier versions."""
_NOT_KNOWN = -1


class Horizon(NamedTuple):
    """The compaction horizon of a log.

    ``end_offset``: offset (exclusive) below which replaced records may be missing. 0: the log was never compacted.
    ``leader_epoch``: highest LeaderEpoch of the records below ``end_offset``. ``deletes_end``: offset (exclusive) below which
    tombstones may be missing. 0: none is missing.
    """

    end_offset: int = 0
    leader_epoch: int = 0
    deletes_end: int = 0


NEVER = Horizon()


def encode_horizon(horizon: Horizon) -> bytes:
    """Return the bytes of the ``compaction-horizon`` file."""
    return seal_small_file(_MAGIC, _BODY.pack(*horizon))


def decode_horizon(data: bytes | None) -> Horizon | None:
    """Return the horizon in ``data``, the content of a ``compaction-horizon`` file. None: it is missing or damaged."""
    body = open_small_file(_MAGIC, data)
    if body is not None and len(body) == _BODY_WITHOUT_DELETES.size:
        return Horizon(*_BODY_WITHOUT_DELETES.unpack(body))._replace(deletes_end=_NOT_KNOWN)
    return Horizon(*_BODY.unpack(body)) if body is not None and len(body) == _BODY.size else None


class CompactionHorizon:
    """The compaction horizon of one log, and the file that stores it."""

    __slots__ = ("_storage", "value")

    def __init__(self, storage: Storage, segments: Sequence[Segment], file: bytes | None) -> None:
        """Load the horizon. If the file is missing or damaged, infer the horizon from ``segments``.

        ``file``: content of the file ``compaction-horizon``. None: the file does not exist.
        """
        self._storage = storage
        stored = decode_horizon(file)
        self.value = stored if stored is not None else infer_horizon(segments)
        if self.value.deletes_end == _NOT_KNOWN:
            self.value = self.value._replace(deletes_end=min(self.value.end_offset, segments[-1].next_offset))
        if segments[-1].next_offset == segments[0].base_offset:
            self.value = NEVER._replace(deletes_end=self.value.deletes_end)  # no record of an empty log was compacted away

    def rise(self, horizon: Horizon) -> bool:
        """Raise the horizon to ``horizon`` and store it durably.

        Return False if the stored horizon was already as high. Raises StorageError.
        """
        current = self.value
        raised = current
        if horizon.end_offset > current.end_offset:
            raised = Horizon(horizon.end_offset, max(current.leader_epoch, horizon.leader_epoch))
        raised = raised._replace(deletes_end=max(current.deletes_end, horizon.deletes_end))
        if raised == current:
            return False
        self._storage.replace(HORIZON_NAME, encode_horizon(raised))
        self.value = raised
        return True

    def forget(self, deletes_end: int = 0) -> None:
        """Reset the horizon durably, because all records of the log were deleted. Raises StorageError.

        ``deletes_end``: offset (exclusive) below which the leader's log may lack tombstones. The log will be fetched from this
        leader.
        """
        value = NEVER._replace(deletes_end=deletes_end)
        if self.value != value:
            self._storage.replace(HORIZON_NAME, encode_horizon(value))
            self.value = value


def deletes_end_after(horizon: Horizon, deletes_start: int | None, deletes_end: int) -> int:
    """Return the ``deletes_end`` of a horizon after a compaction. It rises whenever a tombstone is removed [D30].

    A tombstone stays while an older record of its key stays for its message id. So compaction may remove it after tombstones
    with higher offsets. The highest offset alone would then not change, and readers would not notice the removal.

    Args:
        horizon: Horizon of the log before the compaction.
        deletes_start: Offset of the first removed tombstone. None: no tombstone was removed.
        deletes_end: Offset after the last removed tombstone.

    Returns:
        The new ``deletes_end``: offset (exclusive) below which tombstones may be missing.
    """
    if deletes_start is not None and deletes_start < horizon.deletes_end:
        return max(horizon.deletes_end + 1, deletes_end)
    return deletes_end


def infer_horizon(segments: Sequence[Segment]) -> Horizon:
    """Return the horizon of a log whose horizon file is lost: the end of its last sealed segment, if a segment has gaps."""
    if not any(shows_traces(segment) for segment in segments):
        return NEVER
    active = segments[-1]
    end_offset = active.next_offset if shows_traces(active) else active.base_offset
    epochs = [epoch for segment in segments for epoch, start in segment.epochs if start < end_offset]
    return Horizon(end_offset, max(epochs, default=0), end_offset)


def shows_traces(segment: Segment) -> bool:
    """Return whether the segment has fewer records than offsets. Only compaction causes this."""
    return segment.record_count < segment.next_offset - segment.base_offset
