"""Giving up records of a partition: the oldest ones, or those of some subjects or keys; a part of ``liftpy.client.Client``.

How far that may go is asked of a replica; the wish is the metadata group's, which tells every replica.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, SupportsIndex, cast

from liftpy.client.admin import Admin
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.positions import Bounds, out_of_range, timestamp_ns
from liftpy.cluster.image import StreamImage
from liftpy.errors import ConfigError
from liftpy.wire.filters import Filter


class _Home(Protocol):
    """What it needs of the Client."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """As it is now."""

    def _reader(self, stream: str, partition: int, options: ReadOptions | None) -> PartitionReader:
        """Of a partition."""


class GivingUp:
    """Mixed into Client."""

    async def truncate_before(
        self, stream: str, partition: int, before: SupportsIndex | datetime, *, dry_run: bool = False
    ) -> int:
        """Give up what is committed below an offset, or was stamped by the leader before a datetime: at once for readers, and on the
        disks as far as whole segments go. It holds on every replica, on those that are away now when they come back, and can't be
        taken back. The batch that ``before`` lies in stays whole. Returns the offset from which on records stay; ``dry_run``: nothing
        is done. Who asks has to be allowed to read the stream too.

        Raises NotFoundError, OffsetOutOfRangeError (above HW + 1: what is not committed is nobody's to give up), UnavailableError.
        """
        home = cast(_Home, self)
        found = await home.stream(stream)
        offset, bounds = await _until(home._reader(stream, partition, None), found, before)
        if not dry_run and offset > bounds.log_start_offset:
            await home._admin.truncate_before(found, partition, offset)
        return max(offset, bounds.log_start_offset)

    async def purge(
        self,
        stream: str,
        partition: int,
        *,
        subjects: Sequence[str] = (),
        keys: Sequence[bytes] = (),
        before: SupportsIndex | datetime | None = None,
        dry_run: bool = False,
    ) -> int:
        """Give up the committed records of some subjects (``*`` and ``>`` as NATS has them), or of some keys; of both: those that fit
        both. ``before``: only those below an offset, or stamped before a datetime; None: all that are committed now.

        Every replica drops them by itself when its housekeeping comes by (seconds), those that are away now when they come back, and
        what may have a message id when its dedup window is over; until then readers may meet them. It can't be taken back. Offsets
        stay: readers pass over the gaps. ``client.stream(name).partitions[p].purges`` shows what is under way. Returns the offset
        below which records go (exclusive); ``dry_run``: nothing is done. Who asks has to be allowed to read the stream too.

        Raises ConfigError (neither subjects nor keys, too many under way), InvalidNameError, NotFoundError, OffsetOutOfRangeError,
        UnavailableError.
        """
        wanted = Filter(tuple(subjects), tuple(keys))
        if not wanted:
            raise ConfigError("a purge names subjects or keys; to give up everything below an offset, use truncate_before")
        home = cast(_Home, self)
        found = await home.stream(stream)
        end_offset, _ = await _until(home._reader(stream, partition, None), found, before)
        if not dry_run and end_offset > 0:
            await home._admin.purge(found, partition, wanted, end_offset)
        return end_offset


async def _until(reader: PartitionReader, stream: StreamImage, before: SupportsIndex | datetime | None) -> tuple[int, Bounds]:
    """The offset that ``before`` means, exclusive, at most HW + 1, and the partition's bounds."""
    at_ns = timestamp_ns(before) if isinstance(before, datetime) else None
    bounds, found = await reader.bounds(stream.uid, at_ns)
    if before is None:
        return bounds.end_offset, bounds
    offset = found if isinstance(before, datetime) else operator.index(before)
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(offset, bounds.log_start_offset, bounds.high_watermark)
    return offset, bounds
