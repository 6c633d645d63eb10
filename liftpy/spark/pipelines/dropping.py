"""Records that some replicas have and others have not: on a compacted log that is right if a later record of the key is there.

Each replica compacts when it likes, so what one still has another may have dropped. The newest of a key's records that some replica
lacks has to be followed by one that all have, or be a tombstone, which goes after its time; the older ones are followed by it. Where a
stream drops by subject too, or records were purged, nobody can tell, and they are only counted; so are they beyond MAX_KEYS_DROPPED.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftpy.client.consumer import PartitionReader, ReadOptions, read_range
from liftpy.client.progress import ReadProgress
from liftpy.cluster.image import StreamImage
from liftpy.dataclass import dataclass
from liftpy.spark.link import Link
from liftpy.spark.pipelines.comparing import HeldRecords
from liftpy.spark.pipelines.findings import LOST, MAX_FINDINGS, AuditFinding, PartitionAudit
from liftpy.wire.filters import MAX_FILTER_BYTES, MAX_KEYS, Filter

MAX_KEYS_DROPPED = 65_536
"""Of a partition, that are looked at."""
_SLOWEST_OFFSETS_S = 1000


class Gap(NamedTuple):
    """``node`` lacks the record at ``offset``, which another has."""

    offset: int
    node: str
    is_tombstone: bool = False


@dataclass(slots=True)
class Dropped:
    """``count``: how many records some replica lacks, once for each of them. ``newest``: of those, by key; ``is_complete``: whether all
    keys had room. ``keyless``: the first of those without a key, which compaction keeps."""

    count: int = 0
    newest: dict[bytes, Gap] = field(default_factory=dict)
    keyless: list[Gap] = field(default_factory=list)
    is_complete: bool = True

    def note(self, node: str, held: HeldRecords, offsets: NDArray[np.int64]) -> None:
        """``node`` lacks what ``held`` has at ``offsets``."""
        self.count += len(offsets)
        if not len(offsets):
            return
        rows = held.rows.take(np.searchsorted(held.offsets, offsets)).select(["offset", "key", "value"])
        newest = rows.group_by("key").aggregate([("offset", "max")])
        for key, offset in zip(newest["key"].to_pylist(), newest["offset_max"].to_pylist(), strict=True):
            if key is not None:
                value = rows["value"][int(np.searchsorted(offsets, offset))]
                self._add(key, Gap(offset, node, not value.is_valid))
        alone = offsets[rows["key"].is_null().to_numpy(zero_copy_only=False)] if rows["key"].null_count else ()
        self.keyless += [Gap(int(offset), node) for offset in alone[: MAX_FINDINGS - len(self.keyless)]]

    def _add(self, key: bytes, gap: Gap) -> None:
        if key in self.newest or len(self.newest) < MAX_KEYS_DROPPED:
            self.newest[key] = max(self.newest.get(key, gap), gap)
        else:
            self.is_complete = False

    def add(self, other: Dropped) -> None:
        """What another piece of the partition has found."""
        self.count += other.count
        self.is_complete = self.is_complete and other.is_complete
        self.keyless += other.keyless[: MAX_FINDINGS - len(self.keyless)]
        for key, gap in other.newest.items():
            self._add(key, gap)


def lost_of(
    link: Link, stream: StreamImage, one: PartitionAudit, dropped: Dropped, patience_s: float
) -> list[AuditFinding] | None:
    """Those of ``dropped`` that nothing supersedes; None: nobody can tell."""
    if stream.config.max_per_subject or stream.partitions[one.partition].purges or not stream.config.compaction:
        return None
    if not dropped.is_complete:
        return None
    last = {key: gap for key, gap in dropped.newest.items() if not gap.is_tombstone}
    offsets = one.end_offset - one.start_offset
    newest = link.call(_newest(link, one, last, patience_s), 10 * patience_s + offsets / _SLOWEST_OFFSETS_S) if last else {}
    lost = [(gap, f"its key is {key!r}") for key, gap in last.items() if newest.get(key, -1) <= gap.offset]
    lost += [(gap, "it has no key, so that compaction keeps it") for gap in dropped.keyless]
    return [
        AuditFinding(
            stream=one.stream, uid=one.uid, partition=one.partition, offset=gap.offset, node=gap.node, kind=LOST, detail=detail
        )
        for gap, detail in sorted(lost)[:MAX_FINDINGS]
    ]  # fmt: skip


async def _newest(link: Link, one: PartitionAudit, gaps: dict[bytes, Gap], patience_s: float) -> dict[bytes, int]:
    """Key -> offset of its newest record on one of the replicas, of the keys of ``gaps``. What that one lacks itself is in ``gaps``."""
    transport = await link.transport(patience_s)
    options = ReadOptions(patience_s=patience_s, wait_s=0.0, node=one.compared[0])
    newest: dict[bytes, int] = {}
    for keys in _filters(gaps):
        reader = PartitionReader(transport, link.subjects, one.stream, one.partition, options)
        bounds, _ = await reader.bounds(one.uid)
        begin = max(min(gaps[key].offset for key in keys), bounds.log_start_offset)
        progress = ReadProgress(
            one.stream, one.partition, begin, bounds.end_offset, uid=one.uid, compacted=True, wanted=Filter(keys=tuple(keys))
        )
        async for piece in read_range(reader, progress):
            newest.update(
                (key, offset) for key, offset in zip(piece.keys(), piece.offsets().tolist(), strict=True) if key is not None
            )
    return newest


def _filters(keys: Iterable[bytes]) -> Iterable[list[bytes]]:
    """Keys in portions that fit a filter each."""
    portion: list[bytes] = []
    for key in keys:
        if portion and (len(portion) == MAX_KEYS or sum(map(len, portion)) + len(key) > MAX_FILTER_BYTES):
            yield portion
            portion = []
        portion.append(key)
    if portion:
        yield portion
