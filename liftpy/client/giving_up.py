"""Giving up records of a partition: the oldest ones, or those of some subjects or keys; a part of ``liftpy.client.Client``.

How far that may go is asked of a replica; the wish is the metadata group's, which tells every replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, SupportsIndex, cast

from liftpy.client.admin import Admin
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.iteration import Iteration
from liftpy.client.positions import Bounds, check_offset, out_of_range, timestamp_ns
from liftpy.client.slices import BatchSlice
from liftpy.cluster.image import StreamImage
from liftpy.errors import ConfigError, NotFoundError, OffsetOutOfRangeError
from liftpy.wire.filters import Filter


class _Home(Protocol):
    """What it needs of the Client."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """As it is now."""

    def _reader(self, stream: str, partition: int, options: ReadOptions | None) -> PartitionReader:
        """Of a partition."""

    def read_range(self, stream: str, partition: int, start_offset: int, end_offset: int, *, uid: str) -> Iteration[BatchSlice]:
        """The records of a range."""


class GivingUp:
    """Mixed into Client."""

    async def truncate_before(
        self, stream: str, partition: int, before: SupportsIndex | datetime, *, dry_run: bool = False, uid: str = ""
    ) -> int:
        """Give up what is committed below an offset, or was stamped by the leader before a datetime: at once for readers, and on the
        disks as far as whole segments go. It holds on every replica, on those that are away now when they come back, and can't be
        taken back. The batch that ``before`` lies in stays whole. Returns the offset from which on records stay, the first of that
        batch; ``dry_run``: nothing is done. ``uid``: of the stream that is meant, not of one that was made under its name since.
        Who asks has to be allowed to read the stream too.

        Raises NotFoundError, OffsetOutOfRangeError (above HW + 1: what is not committed is nobody's to give up), ConfigError (no
        offset, a time outside 64-bit nanoseconds), UnavailableError.
        """
        home = cast(_Home, self)
        found = await _stream_of(home, stream, uid)
        offset, bounds = await _until(home._reader(stream, partition, None), found, before)
        first = await _batch_start(home, found, partition, offset, bounds)
        if not dry_run and first > bounds.log_start_offset:
            await home._admin.truncate_before(found, partition, offset)
        return first

    async def purge(
        self,
        stream: str,
        partition: int,
        *,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        before: SupportsIndex | datetime | None = None,
        dry_run: bool = False,
        uid: str = "",
    ) -> int:
        """Give up the committed records of some subjects (``*`` and ``>`` as NATS has them), or of some keys; of both: those that fit
        both. ``before``: only those below an offset, or stamped before a datetime; None: all that are committed now.

        Every replica drops them by itself when its housekeeping comes by (seconds), those that are away now when they come back, and
        what may have a message id when its dedup window is over; until then readers may meet them. It can't be taken back. Offsets
        stay: readers pass over the gaps. ``client.stream(name).partitions[p].purges`` shows what is under way. Returns the offset
        below which records go (exclusive); ``dry_run``: nothing is done. ``uid``: of the stream that is meant, not of one that was made
        under its name since. Who asks has to be allowed to read the stream too.

        Raises ConfigError (neither subjects nor keys, too many under way), InvalidNameError, NotFoundError, OffsetOutOfRangeError,
        UnavailableError.
        """
        wanted = Filter(tuple(subjects), tuple(keys))
        if not wanted:
            raise ConfigError("a purge names subjects or keys; to give up everything below an offset, use truncate_before")
        home = cast(_Home, self)
        found = await _stream_of(home, stream, uid)
        end_offset, _ = await _until(home._reader(stream, partition, None), found, before)
        if not dry_run and end_offset > 0:
            await home._admin.purge(found, partition, wanted, end_offset)
        return end_offset


async def _stream_of(home: _Home, name: str, uid: str) -> StreamImage:
    found = await home.stream(name)
    if uid and found.uid != uid:
        raise NotFoundError(f"stream {name} was deleted and made again since: its uid is {found.uid}, not {uid}")
    return found


async def _batch_start(home: _Home, stream: StreamImage, partition: int, offset: int, bounds: Bounds) -> int:
    """Where the log starts once the records below ``offset`` are given up: batches stay whole."""
    if offset <= bounds.log_start_offset:
        return bounds.log_start_offset
    if offset < bounds.end_offset:
        try:
            async for piece in home.read_range(stream.name, partition, offset, offset + 1, uid=stream.uid):
                return max(min(piece.batch.base_offset, offset), bounds.log_start_offset)
        except OffsetOutOfRangeError:  # given up meanwhile
            pass
    return offset


async def _until(reader: PartitionReader, stream: StreamImage, before: SupportsIndex | datetime | None) -> tuple[int, Bounds]:
    """The offset that ``before`` means, exclusive, at most HW + 1, and the partition's bounds."""
    at_ns = timestamp_ns(before, "before") if isinstance(before, datetime) else None
    bounds, found = await reader.bounds(stream.uid, at_ns)
    if before is None:
        return bounds.end_offset, bounds
    offset = found if isinstance(before, datetime) else check_offset(before, "before")
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(offset, bounds.log_start_offset, bounds.high_watermark)
    return offset, bounds
