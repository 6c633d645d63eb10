"""``audit``: checks that all replicas of a partition have the same records, and finds the first difference [R3].

Audit compares the committed records of every in-sync replica, from the largest log start. It compares digests of the
bytes of batches, block by block. It halves a block that differs down to some megabytes, and compares these record by
record. On a log that is never compacted, the bytes of all batches must be equal, including control batches. On a
compacted log, each replica rewrites its batches at its own time. There, two copies of a record must be equal, and a
missing record must have a later one of its key.

Audit checks parts of a partition independently (``AuditSpan``), in threads of this process or in executors.

On a compacted log, some replicas may lack a record. A replica that has this record must then have a later one of the
key. Tombstones are an exception, because compaction removes them after some time. The later record may be past the
compared range. So audit reads the replica up to the offset to which the others have compacted [R11].

If there is no later record, there are two possible causes. The replicas without the record lost it. Or a tombstone
deleted it, compaction removed the tombstone, and the replica with the record never had the tombstone [D30].

If the stream also compacts by subject, or records were purged, audit cannot know the cause. It then only counts the
records. It also only counts records of keys above MAX_KEYS_DROPPED.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy.client.consumer import PartitionReader, ReadOptions, read_range
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.client.replica_reads import (
    BatchBlocks,
    DamagedRecordsError,
    ReplicaAddress,
    ReplicaBlock,
    ReplicaReads,
    ReplicaUnavailableError,
)
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.filters import MAX_FILTER_BYTES, MAX_KEYS, Filter
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, CorruptionError, OffsetOutOfRangeError, UnavailableError
from liftpy.nats.transport import Transport
from liftpy.spark.catalog import newest_streams
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines.audit_findings import (
    BATCHES,
    DAMAGED,
    DIFFERS,
    LOST,
    MAX_FINDINGS,
    MISSING,
    REVIVED,
    SURPLUS,
    AuditFinding,
    AuditReport,
    PartitionAudit,
    ReplicaAudit,
    ReplicaRecords,
    deviants,
    difference,
    digest_at,
    first_other_batch,
    reference_of,
)
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, spread
from liftpy.spark.process_connection import ProcessConnection, link_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_KEYS_DROPPED = 65_536
"""Maximum number of keys of a partition to check."""
BLOCK_OFFSETS = 16_384
SPAN_OFFSETS = 16 * BLOCK_OFFSETS
LEAF_BYTES = 8 << 20
"""Size of the uncompressed batches that are compared record by record at once."""
_SETTLE_S = 2.0
"""Time to wait for an in-sync replica that does not know the leader's HW yet, in seconds."""
_METADATA_PATIENCE_S = 30.0
_SLOWEST_OFFSETS_S = 1000


class Gap(NamedTuple):
    """Record that some replicas lack.

    Attributes:
        offset: Offset of the record.
        lacking: Nodes without the record.
        holding: Nodes with the record.
        is_tombstone: True if the record has no value.
    """

    offset: int
    lacking: tuple[str, ...]
    holding: tuple[str, ...]
    is_tombstone: bool = False


class CompactionProgress(NamedTuple):
    """Progress of the compaction of a replica.

    Attributes:
        compacted_end: End of the compacted range, exclusive.
        deletes_end: End of the range whose tombstones may be removed, exclusive.
    """

    compacted_end: int = 0
    deletes_end: int = 0


@dataclass(slots=True)
class DroppedRecords:
    """Records that some replicas lack, because these replicas have compacted their logs further than others.

    Attributes:
        count: Number of records, counted for each replica that lacks one.
        newest: Newest such record of each key.
        keyless: First records without a key.
        is_complete: True if ``newest`` has all keys.
        ends: Progress of the compaction of each node.
    """

    count: int = 0
    newest: dict[bytes, Gap] = field(default_factory=dict)
    keyless: list[Gap] = field(default_factory=list)
    is_complete: bool = True
    ends: dict[str, CompactionProgress] = field(default_factory=dict)

    def note(self, replicas: Mapping[str, ReplicaRecords]) -> None:
        """Add the records of a range that at least one node lacks. ``replicas``: records of each node in this range."""
        everything = np.unique(np.concatenate([own.offsets for own in replicas.values()]))
        lacking = [np.setdiff1d(everything, own.offsets, assume_unique=True) for own in replicas.values()]
        gaps = np.unique(np.concatenate(lacking))
        self.count += sum(map(len, lacking))
        if not len(gaps):
            return
        rows = pa.concat_tables(_rows_at(own, gaps) for own in replicas.values())
        newest = rows.filter(rows["key"].is_valid()).group_by("key").aggregate([("offset", "max")])
        for key, offset in zip(newest["key"].to_pylist(), newest["offset_max"].to_pylist(), strict=True):
            self._add(key, _gap_at(replicas, offset))
        alone = np.unique(rows.filter(rows["key"].is_null())["offset"].to_numpy())
        self.keyless += [_gap_at(replicas, int(offset)) for offset in alone[: MAX_FINDINGS - len(self.keyless)]]

    def learn_ends(self, node: str, ends: CompactionProgress) -> None:
        """Store the progress ``ends`` of the compaction on a node. Earlier progress is never lowered."""
        known = self.ends.get(node, ends)
        self.ends[node] = CompactionProgress(*map(max, known, ends))

    def _add(self, key: bytes, gap: Gap) -> None:
        if key in self.newest or len(self.newest) < MAX_KEYS_DROPPED:
            self.newest[key] = max(self.newest.get(key, gap), gap)
        else:
            self.is_complete = False

    def add(self, other: DroppedRecords) -> None:
        """Add the records ``other``, which were found in another part of the partition."""
        self.count += other.count
        self.is_complete = self.is_complete and other.is_complete
        self.keyless += other.keyless[: MAX_FINDINGS - len(self.keyless)]
        for key, gap in other.newest.items():
            self._add(key, gap)
        for node, ends in other.ends.items():
            self.learn_ends(node, ends)

    def culprits(self, gap: Gap, *, has_key: bool) -> tuple[str, tuple[str, ...], str]:
        """Return (kind of the finding, nodes at fault, reason) for a record that some replicas lack and no newer record replaces.

        ``has_key``: True if the record has a key.
        """
        most_hold = 2 * len(gap.holding) > len(gap.holding) + len(gap.lacking)
        if not has_key:
            if 2 * len(gap.lacking) > len(gap.holding) + len(gap.lacking):
                return SURPLUS, gap.holding, ""
            return LOST, gap.lacking, ""
        lost = tuple(node for node in gap.lacking if self.ends.get(node, CompactionProgress()).deletes_end <= gap.offset)
        if lost or most_hold:
            return LOST, lost or gap.lacking, ""
        ends = ", ".join(f"{node} below {self.ends[node].deletes_end}" for node in gap.lacking)
        return REVIVED, gap.holding, f"the delete marker of its key may be gone: compaction has removed markers on {ends}"


def _rows_at(replica: ReplicaRecords, offsets: np.ndarray) -> pa.Table:
    own = np.intersect1d(offsets, replica.offsets, assume_unique=True)
    return replica.rows.take(np.searchsorted(replica.offsets, own)).select(["offset", "key"])


def _gap_at(replicas: Mapping[str, ReplicaRecords], offset: int) -> Gap:
    rows = {node: own.at(offset) for node, own in replicas.items()}
    holding = tuple(sorted(node for node, row in rows.items() if row >= 0))
    lacking = tuple(sorted(rows.keys() - set(holding)))
    value = replicas[holding[0]].rows["value"][rows[holding[0]]]
    return Gap(offset, lacking, holding, not value.is_valid)


def lost_of(
    link: ProcessConnection, stream: StreamImage, one: PartitionAudit, dropped: DroppedRecords, patience_s: float
) -> list[AuditFinding] | None:
    """Return findings about records in ``dropped`` that no later record of the key replaces. None: the audit cannot decide.

    A replica that had a record may lack it by now, and its later records, too. Retention, a purge or compaction removed them during
    the audit. The audit then cannot decide.

    ``stream``: the stream after the comparison, so that it has the purges that began during the comparison. ``one``: result for the
    partition so far. ``patience_s``: time limit without an answer, in seconds.
    """
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
        held = link.call(_still_held(link, one, dropped.keyless, patience_s), 10 * patience_s) if dropped.keyless else True
    except UnavailableError:
        return None
    if not held or any(newest.get(key, -1) < gap.offset for key, gap in last.items()):
        return None
    gaps = [
        (gap, f"its key is {key!r}", dropped.culprits(gap, has_key=True))
        for key, gap in last.items()
        if newest[key] == gap.offset
    ]
    gaps += [
        (gap, "it has no key, so that compaction keeps it", dropped.culprits(gap, has_key=False)) for gap in dropped.keyless
    ]
    return [
        AuditFinding(
            stream=one.stream, uid=one.uid, partition=one.partition, offset=gap.offset, node=node, kind=kind,
            detail=f"{detail}; {why}" if why else detail,
        )
        for gap, detail, (kind, nodes, why) in sorted(gaps)
        for node in nodes
    ][:MAX_FINDINGS]  # fmt: skip


async def _newest(
    link: ProcessConnection, one: PartitionAudit, gaps: dict[bytes, Gap], read_to: int, patience_s: float
) -> dict[bytes, int]:
    """Return the offset of the newest record of each key in ``gaps``. ``gaps``: record of each key that some replicas lack.

    Each key is read on a replica that has this record, at least up to ``read_to`` (exclusive).
    """
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


async def _still_held(link: ProcessConnection, one: PartitionAudit, gaps: Iterable[Gap], patience_s: float) -> bool:
    """Return whether each record in ``gaps`` is still on a replica that had it. ``patience_s``: time limit in seconds."""
    transport = await link.transport(patience_s)
    for gap in gaps:
        replica = ReplicaAddress(
            stream=one.stream, uid=one.uid, partition=one.partition, node=gap.holding[0], patience_s=patience_s
        )
        try:
            batches, _ = await ReplicaReads(transport, link.subjects, replica).batches(gap.offset)
            if ReplicaRecords.of(batches, gap.offset, gap.offset + 1).at(gap.offset) < 0:
                return False
        except (ReplicaUnavailableError, DamagedRecordsError, CorruptionError):
            return False
    return True


def _filters(keys: Iterable[bytes]) -> Iterable[list[bytes]]:
    portion: list[bytes] = []
    for key in keys:
        if portion and (len(portion) == MAX_KEYS or sum(map(len, portion)) + len(key) > MAX_FILTER_BYTES):
            yield portion
            portion = []
        portion.append(key)
    if portion:
        yield portion


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpan:
    """Part of a partition that one task compares.

    Attributes:
        nodes: Nodes whose replicas are compared.
        leader: Node whose replica is right if no majority agrees.
        start_offset: First offset, inclusive.
        end_offset: End offset, exclusive.
        is_first: True if it is the first part of the partition.
        cleaned: True if compaction or a purge may have removed records.
        patience_s: Time without an answer until a replica counts as unreachable, in seconds.
    """

    stream: str
    uid: str
    partition: int
    nodes: tuple[str, ...]
    leader: str
    start_offset: int
    end_offset: int
    is_first: bool
    cleaned: bool
    patience_s: float


@dataclass(slots=True)
class SpanAudit:
    """Result of comparing one part of a partition: the findings, and the results by node."""

    replicas: dict[str, ReplicaAudit] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    dropped: DroppedRecords = field(default_factory=DroppedRecords)


class _SpanPart(NamedTuple):
    """Part of a span: offsets from ``start`` (inclusive) to ``end`` (exclusive), and the blocks of each node."""

    start: int
    end: int
    blocks: dict[str, ReplicaBlock]


def audit(
    access: Access,
    wanted: Selection,
    *,
    spark: SparkSession | None = None,
    patience_s: float = 10.0,
    tasks: int = DEFAULT_TASKS,
    internal: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Compare the replicas of partitions record by record.

    Args:
        access: How to reach the cluster.
        wanted: Streams and partitions.
        spark: Run in the executors of this session. Default None: in this process.
        patience_s: Time without an answer until a replica counts as unreachable, in seconds (0.1 to 3600). Default 10.
        tasks: Number of tasks that run at once.
        internal: If True, a pattern also selects internal streams. Default False.
        tell: Function that is called with the number of finished ranges and of all ranges. Default None.

    Returns:
        The report. ``report.first`` is the first difference, None if all replicas agree.

    Raises:
        NotFoundError: No such stream.
        UnavailableError: The metadata group did not answer in time.
        ConfigError: An argument is not allowed.

    Example:
        from liftpy.spark import Access, Selection, audit

        report = audit(Access(), Selection(streams=("orders",)))
        assert report.is_proven and report.first is None
    """
    if not 0.1 <= patience_s <= 3600:
        raise ConfigError(f"patience_s = {patience_s} (--timeout) is outside 0.1..3600. Choose a value in this range.")
    link = link_to(access)

    async def described() -> tuple[StreamImage, ...]:
        requests = MetadataRequests(await link.transport(_METADATA_PATIENCE_S), link.subjects, _METADATA_PATIENCE_S)
        return await newest_streams(requests, wanted, internal=internal)

    async def planned() -> list[tuple[StreamImage, PartitionAudit]]:
        transport, streams = await link.transport(_METADATA_PATIENCE_S), await described()
        pairs = [
            (stream, state) for stream in streams for state in stream.partitions if wanted.takes(stream.name, state.partition)
        ]
        audits = await asyncio.gather(*(_comparable_range(transport, link.subjects, *each, patience_s) for each in pairs))
        return [(stream, one) for (stream, _), one in zip(pairs, audits, strict=True)]

    plan = link.call(planned(), _METADATA_PATIENCE_S + 6 * patience_s)
    spans = [span for stream, one in plan for span in _spans(stream, one, patience_s)]
    by_key = {(one.stream, one.partition): one for _, one in plan}
    dropped: dict[tuple[str, int], DroppedRecords] = {}
    for span, done in zip(spans, spread(partial(audit_span, access), spans, spark=spark, tasks=tasks, tell=tell), strict=True):
        key = (span.stream, span.partition)
        _add(by_key[key], done)
        dropped.setdefault(key, DroppedRecords()).add(done.dropped)
    dropped = {key: own for key, own in dropped.items() if own.count}
    now: dict[str, StreamImage] = {}
    with contextlib.suppress(UnavailableError):  # the audit then only counts the dropped records
        now = {stream.uid: stream for stream in link.call(described(), 2 * _METADATA_PATIENCE_S)} if dropped else {}
    for _, one in plan:
        if (dropped_here := dropped.get((one.stream, one.partition))) is not None:
            one.dropped = dropped_here.count
            stream_now = now.get(one.uid)
            lost = None if stream_now is None else lost_of(link, stream_now, one, dropped_here, patience_s)
            one.dropped_checked = lost is not None
            one.findings += lost or ()
    return AuditReport([one for _, one in plan])


async def _comparable_range(
    transport: Transport, subjects: Subjects, stream: StreamImage, state: PartitionState, patience_s: float
) -> PartitionAudit:
    """Return the range of a partition in which all reachable in-sync replicas can be compared, with the state of each replica.

    It begins at the largest log start and ends at the smallest HW of these replicas.
    """
    nodes = tuple(dict.fromkeys((*state.holders, *state.isr)))
    reads = {
        node: ReplicaReads(
            transport,
            subjects,
            ReplicaAddress(stream=stream.name, uid=stream.uid, partition=state.partition, node=node, patience_s=patience_s),
        )
        for node in nodes
    }
    comparison = PartitionAudit(
        stream=stream.name,
        uid=stream.uid,
        partition=state.partition,
        leader=state.leader,
        replicas={node: ReplicaAudit(state="away") for node in nodes},
    )
    bounds: dict[str, Bounds] = {}
    if state.leader in reads:
        await _add_bounds(state.leader, reads[state.leader], -1, comparison, bounds)
    high = bounds[state.leader].high_watermark if state.leader in bounds else -1
    await asyncio.gather(
        *(
            _add_bounds(node, reads[node], high if node in state.isr else -1, comparison, bounds)
            for node in nodes
            if node != state.leader
        )
    )
    in_sync = [bounds[node] for node in nodes if node in bounds and node in state.isr]
    if in_sync:
        comparison.end_offset = min(one.end_offset for one in in_sync)
        for node, one in bounds.items():
            if one.end_offset >= comparison.end_offset:
                comparison.replicas[node].state = "compared"
            else:
                comparison.replicas[node].state, comparison.replicas[node].detail = (
                    "behind",
                    f"HW {one.high_watermark}, not in sync",
                )
        comparison.start_offset = max(bounds[node].log_start_offset for node in comparison.compared)
        comparison.end_offset = max(comparison.end_offset, comparison.start_offset)
    return comparison


async def _add_bounds(node: str, reads: ReplicaReads, high: int, comparison: PartitionAudit, bounds: dict[str, Bounds]) -> None:
    """Ask the replica on ``node`` for its bounds, and store them in ``bounds`` and in the result ``comparison``.

    ``high``: HW of the leader, inclusive. The call waits a moment if the replica does not know this HW yet.
    """
    one = comparison.replicas[node]
    try:
        bounds[node] = await reads.bounds()
        if bounds[node].high_watermark < high:
            with contextlib.suppress(ReplicaUnavailableError):
                bounds[node] = await reads.bounds(high, _SETTLE_S)
    except (ReplicaUnavailableError, DamagedRecordsError) as error:
        one.detail = str(error)
        return
    one.high_watermark, one.log_start_offset = bounds[node].high_watermark, bounds[node].log_start_offset


def _spans(stream: StreamImage, one: PartitionAudit, patience_s: float) -> Iterable[AuditSpan]:
    state, nodes = stream.partitions[one.partition], tuple(one.compared)
    for start in range(one.start_offset, one.end_offset, SPAN_OFFSETS):
        yield AuditSpan(
            stream=one.stream,
            uid=one.uid,
            partition=one.partition,
            nodes=nodes,
            leader=one.leader if one.leader in nodes else nodes[0],
            start_offset=start,
            end_offset=min(start + SPAN_OFFSETS, one.end_offset),
            is_first=start == one.start_offset,
            cleaned=stream.config.is_cleaned or bool(state.purges),
            patience_s=patience_s,
        )


def _add(one: PartitionAudit, done: SpanAudit) -> None:
    for node, part in done.replicas.items():
        whole = one.replicas[node]
        whole.records += part.records
        whole.size_bytes += part.size_bytes
        whole.epochs += [entry for entry in part.epochs if not whole.epochs or whole.epochs[-1][0] != entry[0]]
        if part.state == "away":
            whole.state, whole.detail = "away", part.detail
    one.findings += done.findings


def audit_span(access: Access, span: AuditSpan) -> SpanAudit:
    """Compare the replicas of one part of a partition, in this process or in a Spark executor, and return the findings."""
    link = link_to(access)

    async def run() -> SpanAudit:
        return await _SpanComparison(await link.transport(span.patience_s), link.subjects, span).run()

    offsets = span.end_offset - span.start_offset
    return link.call(run(), 20 * span.patience_s + len(span.nodes) * offsets / _SLOWEST_OFFSETS_S)


async def _read_blocks(readers: Mapping[str, BatchBlocks], end: int) -> dict[str, ReplicaBlock]:
    """Read the next block of each replica, up to ``end`` (exclusive). ``readers``: by node."""
    return dict(zip(readers, await asyncio.gather(*(one.block(end) for one in readers.values())), strict=True))


class _SpanComparison:
    def __init__(self, transport: Transport, subjects: Subjects, span: AuditSpan) -> None:
        self._transport = transport
        self._subjects = subjects
        self._span = span
        self._found = SpanAudit({node: ReplicaAudit(state="compared") for node in span.nodes})
        self._known: set[tuple[str, int, str]] = set()
        self._asked: list[ReplicaReads] = []
        self._log_start_offset = span.start_offset if span.is_first else -1
        """First offset that is read from the start of the log, where a batch may begin earlier. -1: there is none."""

    def _reads(self, node: str) -> ReplicaReads:
        span = self._span
        replica = ReplicaAddress(
            stream=span.stream, uid=span.uid, partition=span.partition, node=node, patience_s=span.patience_s
        )
        self._asked.append(ReplicaReads(self._transport, self._subjects, replica))
        return self._asked[-1]

    async def run(self) -> SpanAudit:
        """Compare the replicas block after block, and return the result.

        A replica that becomes unreachable is left out from then on.
        """
        span = self._span
        readers = {node: BatchBlocks(self._reads(node), span.start_offset, from_log_start=span.is_first) for node in span.nodes}
        for begin in range(span.start_offset, span.end_offset, BLOCK_OFFSETS):
            end = min(begin + BLOCK_OFFSETS, span.end_offset)
            start = min(max(begin, self._log_start_offset), end)
            blocks = await _read_blocks(readers, end)
            if any(block.away.startswith(OffsetOutOfRangeError.code) for block in blocks.values()):
                log_start = await self._largest_log_start(readers)
                if log_start > start:  # retention has deleted records of the span since the audit was planned
                    self._log_start_offset, start = log_start, min(log_start, end)
                    readers = {node: BatchBlocks(self._reads(node), log_start, from_log_start=True) for node in readers}
                    blocks = await _read_blocks(readers, end)
            for node, block in blocks.items():
                self._note(node, block)
                if block.away:
                    del readers[node]
            await self._compare_digests(_SpanPart(start, end, blocks))
        for reads in self._asked:
            self._found.dropped.learn_ends(reads.replica.node, CompactionProgress(reads.compacted_end, reads.deletes_end))
        return self._found

    async def _largest_log_start(self, nodes: Iterable[str]) -> int:
        """Return the largest log start of the replicas on ``nodes``. Replicas that do not answer are left out."""
        starts = [-1]
        for node in nodes:
            with contextlib.suppress(ReplicaUnavailableError, DamagedRecordsError):
                starts.append((await self._reads(node).bounds()).log_start_offset)
        return max(starts)

    def _note(self, node: str, block: ReplicaBlock) -> None:
        one = self._found.replicas[node]
        one.records += block.records
        one.size_bytes += block.size_bytes
        one.epochs += [entry for entry in block.epochs if not one.epochs or one.epochs[-1][0] != entry[0]]
        if block.away:
            one.state, one.detail = "away", f"from offset {block.end_offset} on: {block.away}"

    def _add_finding(self, kind: str, node: str, offset: int, detail: str = "", **more: object) -> None:
        if (node, offset, kind) not in self._known and len(self._found.findings) < MAX_FINDINGS:
            self._known.add((node, offset, kind))
            span = self._span
            finding = AuditFinding(
                stream=span.stream, uid=span.uid, partition=span.partition, offset=offset, node=node, kind=kind, detail=detail,
                **more,  # type: ignore[arg-type]
            )  # fmt: skip
            self._found.findings.append(finding)

    async def _compare_digests(self, part: _SpanPart) -> None:
        """Compare the replicas in one part of the span by the digests of their batches, and add findings for differences.

        If the digests differ, the part is divided into halves until it is small enough to compare records.
        """
        for node, block in part.blocks.items():
            if block.damaged is not None:
                text = f"it could not serve all of [{block.damaged.offset}, {part.end}): {block.damaged}"
                self._add_finding(DAMAGED, node, block.damaged.offset, text)
        whole = {node: block for node, block in part.blocks.items() if block.is_whole}
        if len({block.digest for block in whole.values()}) < 2:
            return
        if max(block.unpacked_bytes for block in whole.values()) <= LEAF_BYTES or part.end - part.start < 2:
            await self._compare_records(part.start, max(part.end, *(block.end_offset for block in whole.values())), whole)
            return
        middle = (part.start + part.end) // 2
        for start, end in ((part.start, middle), (middle, part.end)):
            first = start == self._log_start_offset
            again = [BatchBlocks(self._reads(node), start, from_log_start=first).block(end) for node in whole]
            await self._compare_digests(_SpanPart(start, end, dict(zip(whole, await asyncio.gather(*again), strict=True))))

    async def _compare_records(self, start: int, end: int, blocks: Mapping[str, ReplicaBlock]) -> None:
        """Compare the replicas record by record from offset ``start`` to ``end`` (exclusive), and add findings.

        ``blocks``: digest and size of each replica in this range, which has at most some megabytes.
        """
        batches: dict[str, list[RecordBatch]] = {node: [] for node in blocks}
        again = [BatchBlocks(self._reads(node), start, from_log_start=True).block(end, into=batches[node]) for node in blocks]
        replicas: dict[str, ReplicaRecords] = {}
        cleaned = self._span.cleaned
        for node, block in zip(blocks, await asyncio.gather(*again), strict=True):
            cleaned = cleaned or block.compacted
            try:
                if block.is_whole:
                    replicas[node] = ReplicaRecords.of(batches[node], start, end)
            except CorruptionError as error:
                self._add_finding(DAMAGED, node, start, f"a batch in [{start}, {end}) does not unpack: {error}")
        if len(replicas) < 2:
            return
        reference = reference_of(replicas, self._span.leader)
        before = len(self._found.findings)
        for node in replicas:
            if node != reference:
                self._compare_two(replicas, reference, node, cleaned)
        if cleaned:
            self._found.dropped.note(replicas)
        if len(self._found.findings) == before and not cleaned:
            self._compare_batches({node: batches[node] for node in replicas}, reference)

    def _compare_two(self, replicas: Mapping[str, ReplicaRecords], reference: str, node: str, cleaned: bool) -> None:
        delta = difference(replicas[reference], replicas[node])
        for offset in delta.differs:
            self._add_record_finding(replicas, reference, offset)
        if not cleaned:
            for offsets in (delta.only_here, delta.only_there):
                if len(offsets):
                    self._add_record_finding(replicas, reference, int(offsets[0]))

    def _add_record_finding(self, replicas: Mapping[str, ReplicaRecords], reference: str, offset: int) -> None:
        digests = {node: own.digest(offset) for node, own in replicas.items()}
        expected, majority, others = deviants(digests, reference)
        there = {node: own.at(offset) >= 0 for node, own in replicas.items()}
        expected_there = there[next(node for node, digest in digests.items() if digest == expected)]
        for node in others:
            kind = DIFFERS if there[node] and expected_there else SURPLUS if there[node] else MISSING
            self._add_finding(kind, node, offset, expected=expected, seen=digests[node], majority=majority)

    def _compare_batches(self, batches: Mapping[str, list[RecordBatch]], reference: str) -> None:
        """Add a finding if the batches of replicas differ although their records are equal.

        Control batches, producer fields and the division of records into batches may differ. ``reference``: node to compare with.
        """
        for node in batches:
            offset = first_other_batch(batches[reference], batches[node])
            if offset is not None:
                digests = {name: digest_at(own, offset) for name, own in batches.items()}
                expected, majority, others = deviants(digests, reference)
                for other in others:
                    self._add_finding(BATCHES, other, offset, expected=expected, seen=digests[other], majority=majority)
