"""Giving up the oldest records of a partition: how far that may go is asked of a replica, the wish is the metadata group's."""

from __future__ import annotations

import operator
from datetime import datetime
from typing import SupportsIndex

from liftpy.client.admin import Admin
from liftpy.client.consumer import PartitionReader
from liftpy.client.positions import out_of_range, timestamp_ns
from liftpy.cluster.image import StreamImage


async def truncate(
    admin: Admin, reader: PartitionReader, stream: StreamImage, before: SupportsIndex | datetime, dry_run: bool
) -> int:
    """Give up what is committed below an offset, or was stamped by the leader before a datetime: at once for readers, and on the
    disks as far as whole segments go. It holds on every replica, on those that are away now when they come back, and can't be
    taken back. The batch that ``before`` lies in stays whole. Returns the offset from which on records stay; ``dry_run``: nothing
    is done. Who asks has to be allowed to read the stream too.

    Raises NotFoundError, OffsetOutOfRangeError (above HW + 1: what is not committed is nobody's to give up), UnavailableError.
    """
    at_ns = timestamp_ns(before) if isinstance(before, datetime) else None
    bounds, found = await reader.bounds(stream.uid, at_ns)
    offset = found if isinstance(before, datetime) else operator.index(before)
    if not 0 <= offset <= bounds.end_offset:
        raise out_of_range(offset, bounds.log_start_offset, bounds.high_watermark)
    if not dry_run and offset > bounds.log_start_offset:
        await admin.truncate_before(stream, reader.partition, offset)
    return max(offset, bounds.log_start_offset)
