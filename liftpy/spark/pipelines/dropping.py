"""Records that some replicas have and others have not: on a compacted log that is right if a later record of the key is there.

Each replica compacts when it likes, so what one still has another may have dropped. A replica that has the newest of a key's records
that others lack has to have a later one of that key, too, or that one is a tombstone, which goes after its time; the older ones are
followed by it. The later record may lie behind all that was compared: a replica is read up to where the compaction of the others had
looked [R11]. Where there is none, either the replicas that lack the record lost it, or a delete marker that is gone by now deleted it,
and the replica that has it missed that [D30]. Where a stream drops by subject too, or records were purged, nobody can tell, and they
are only counted; so are they beyond MAX_KEYS_DROPPED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from liftpy.client.consumer import PartitionReader, ReadOptions, read_range
from liftpy.client.progress import ReadProgress
from liftpy.cluster.image import StreamImage
from liftpy.dataclass import dataclass
from liftpy.errors import UnavailableError
from liftpy.spark.link import Link
from liftpy.spark.pipelines.comparing import HeldRecords
from liftpy.spark.pipelines.findings import LOST, MAX_FINDINGS, REVIVED, SURPLUS, AuditFinding, PartitionAudit
from liftpy.wire.filters import MAX_FILTER_BYTES, MAX_KEYS, Filter

MAX_KEYS_DROPPED = 65_536
"""Of a partition, that are looked at."""
_SLOWEST_OFFSETS_S = 1000


class Gap(NamedTuple):
    """The record at ``offset``, which the nodes ``holding`` have, and those ``lacking`` have not."""

    offset: int
    lacking: tuple[str, ...]
    holding: tuple[str, ...]
    is_tombstone: bool = False


class CompactionEnds(NamedTuple):
    """Of a replica, exclusive: up to where its compaction has looked, and below which its delete markers may be gone."""

    compacted_end: int = 0
    deletes_end: int = 0


@dataclass(slots=True)
class Dropped:
    """``count``: how many records some replica lacks, once for each of them. ``newest``: of those, by key; ``is_complete``: whether all
    keys had room. ``keyless``: the first of those without a key, which compaction keeps. ``ends``: of each node's compaction."""

    count: int = 0
    newest: dict[bytes, Gap] = field(default_factory=dict)
    keyless: list[Gap] = field(default_factory=list)
    is_complete: bool = True
    ends: dict[str, CompactionEnds] = field(default_factory=dict)

    def note(self, held: Mapping[str, HeldRecords]) -> None:
        """What some replica of ``held`` lacks of what another has. They are of the same range."""
        everything = np.unique(np.concatenate([own.offsets for own in held.values()]))
        lacking = [np.setdiff1d(everything, own.offsets, assume_unique=True) for own in held.values()]
        gaps = np.unique(np.concatenate(lacking))
        self.count += sum(map(len, lacking))
        if not len(gaps):
            return
        rows = pa.concat_tables(_rows_at(own, gaps) for own in held.values())
        newest = rows.filter(rows["key"].is_valid()).group_by("key").aggregate([("offset", "max")])
        for key, offset in zip(newest["key"].to_pylist(), newest["offset_max"].to_pylist(), strict=True):
            self._add(key, _gap_at(held, offset))
        alone = np.unique(rows.filter(rows["key"].is_null())["offset"].to_numpy())
        self.keyless += [_gap_at(held, int(offset)) for offset in alone[: MAX_FINDINGS - len(self.keyless)]]

    def learn_ends(self, node: str, ends: CompactionEnds) -> None:
        """``node`` has told of its compaction."""
        known = self.ends.get(node, ends)
        self.ends[node] = CompactionEnds(*map(max, known, ends))

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
        for node, ends in other.ends.items():
            self.learn_ends(node, ends)

    def culprits(self, gap: Gap, *, has_key: bool) -> tuple[str, tuple[str, ...], str]:
        """(kind of finding, nodes, why) of a record that nothing supersedes."""
        most_hold = 2 * len(gap.holding) > len(gap.holding) + len(gap.lacking)
        if not has_key:
            if 2 * len(gap.lacking) > len(gap.holding) + len(gap.lacking):
                return SURPLUS, gap.holding, ""
            return LOST, gap.lacking, ""
        lost = tuple(node for node in gap.lacking if self.ends.get(node, CompactionEnds()).deletes_end <= gap.offset)
        if lost or most_hold:
            return LOST, lost or gap.lacking, ""
        ends = ", ".join(f"{node} below {self.ends[node].deletes_end}" for node in gap.lacking)
        return REVIVED, gap.holding, f"the delete marker of its key may be gone: so they are on {ends}"


def _rows_at(held: HeldRecords, offsets: np.ndarray) -> pa.Table:
    own = np.intersect1d(offsets, held.offsets, assume_unique=True)
    return held.rows.take(np.searchsorted(held.offsets, own)).select(["offset", "key"])


def _gap_at(held: Mapping[str, HeldRecords], offset: int) -> Gap:
    rows = {node: own.at(offset) for node, own in held.items()}
    holding = tuple(sorted(node for node, row in rows.items() if row >= 0))
    lacking = tuple(sorted(rows.keys() - set(holding)))
    value = held[holding[0]].rows["value"][rows[holding[0]]]
    return Gap(offset, lacking, holding, not value.is_valid)


def lost_of(
    link: Link, stream: StreamImage, one: PartitionAudit, dropped: Dropped, patience_s: float
) -> list[AuditFinding] | None:
    """Those of ``dropped`` that nothing supersedes; None: nobody can tell."""
    if stream.config.max_per_subject or stream.partitions[one.partition].purges or not stream.config.compaction:
        return None
    if not dropped.is_complete:
        return None
    last = {key: gap for key, gap in dropped.newest.items() if not gap.is_tombstone}
    read_to = max([one.end_offset, *(ends.compacted_end for ends in dropped.ends.values())])
    offsets = read_to - one.start_offset
    try:
        newest = (
            link.call(_newest(link, one, last, read_to, patience_s), 10 * patience_s + offsets / _SLOWEST_OFFSETS_S)
            if last
            else {}
        )
    except UnavailableError:
        return None
    found = [
        (gap, f"its key is {key!r}", dropped.culprits(gap, has_key=True))
        for key, gap in last.items()
        if newest.get(key, -1) <= gap.offset
    ]
    found += [
        (gap, "it has no key, so that compaction keeps it", dropped.culprits(gap, has_key=False)) for gap in dropped.keyless
    ]
    return [
        AuditFinding(
            stream=one.stream, uid=one.uid, partition=one.partition, offset=gap.offset, node=node, kind=kind,
            detail=f"{detail}; {why}" if why else detail,
        )
        for gap, detail, (kind, nodes, why) in sorted(found)
        for node in nodes
    ][:MAX_FINDINGS]  # fmt: skip


async def _newest(link: Link, one: PartitionAudit, gaps: dict[bytes, Gap], read_to: int, patience_s: float) -> dict[bytes, int]:
    """Key -> offset of its newest record, of the keys of ``gaps``, each on a replica that has the record which others lack.
    ``read_to``: an offset, exclusive, to which all of them have to be read, at least."""
    transport = await link.transport(patience_s)
    newest: dict[bytes, int] = {}
    for node in sorted({gap.holding[0] for gap in gaps.values()}):
        options = ReadOptions(patience_s=patience_s, wait_s=0.0, node=node)
        for keys in _filters(key for key, gap in gaps.items() if gap.holding[0] == node):
            reader = PartitionReader(transport, link.subjects, one.stream, one.partition, options)
            bounds, _ = await reader.bounds(one.uid)
            progress = ReadProgress(
                one.stream,
                one.partition,
                max(min(gaps[key].offset for key in keys), bounds.log_start_offset),
                max(read_to, bounds.end_offset),
                uid=one.uid,
                floor_high_watermark=read_to - 1,
                compacted=True,
                wanted=Filter(keys=tuple(keys)),
                moves_end=True,
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
