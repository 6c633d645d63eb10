"""Inspects a partition directory without changing it, for ``liftpy log dump`` and ``verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from liftpy.core.log.compaction_point import HORIZON_NAME
from liftpy.core.log.recovery import incomplete_quarantines
from liftpy.core.log.segment import Segment, base_offsets, index_name, log_name, walk
from liftpy.core.log.small_files import (
    CHECKPOINT_NAME,
    EPOCHS_NAME,
    Checkpoint,
    SegmentSummary,
    decode_checkpoint,
    decode_epochs,
    decode_index,
)
from liftpy.core.log.storage import Storage
from liftpy.core.wire.batch import BatchHeader
from liftpy.errors import UnknownFormatError


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """Result of reading one segment completely. ``fault``: description of the first invalid batch. '': the segment is valid."""

    name: str
    file_size_bytes: int
    summary: SegmentSummary
    index: str
    """State of the index.

    ``right``: it fits the segment. ``missing``: there is none, as for an active segment. ``damaged``: it cannot be read.
    ``wrong``: it contradicts the segment.
    """
    fault: str = ""
    fault_position: int = 0
    torn_tail: bool = False
    """True if an incomplete batch is at the end. The next start truncates the segment there."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Content of a partition's directory: segments, checkpoint and faults."""

    segments: tuple[SegmentReport, ...]
    checkpoint: Checkpoint | None
    checkpoint_found: bool
    other_files: tuple[str, ...]
    faults: tuple[str, ...]
    """Faults in the order of the log. The first one has the lowest offset."""

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].summary.next_offset if self.segments else 0

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(LeaderEpoch, offset of its first record) in ascending order, from a scan of the segments."""
        epochs: list[tuple[int, int]] = []
        for segment in self.segments:
            epochs += [entry for entry in segment.summary.epochs if not epochs or epochs[-1][0] != entry[0]]
        return epochs


def inspect(storage: Storage, tell: Callable[[int, int], None] | None = None) -> PartitionReport:
    """Read and check every byte of every segment in the directory ``storage``. Return the findings.

    ``tell``: called after each segment with (number of checked segments, number of all segments).
    """
    names = storage.names()
    bases = base_offsets(names)
    segments, faults = [], []
    next_offset: int | None = None
    for number, base in enumerate(bases):
        report = _segment(storage, base, last=number == len(bases) - 1)
        if next_offset is not None and base != next_offset:
            faults.append(f"{report.name}: begins at offset {base}, the segment before it ends at {next_offset}")
        if report.fault:
            kind = "torn tail" if report.torn_tail else "damage"
            faults.append(f"{report.name}: {kind} at position {report.fault_position}: {report.fault}")
        if report.index in ("damaged", "wrong"):
            faults.append(f"{index_name(base)}: {report.index} (a cache: rebuilt when the log is opened)")
        next_offset = report.summary.next_offset
        segments.append(report)
        if tell is not None:
            tell(len(segments), len(bases))
    known = {log_name(b) for b in bases} | {index_name(b) for b in bases} | {CHECKPOINT_NAME, EPOCHS_NAME, HORIZON_NAME}
    data = storage.load(CHECKPOINT_NAME)
    checkpoint = decode_checkpoint(data)
    if data is not None and checkpoint is None:
        faults.append(f"{CHECKPOINT_NAME}: damaged (rebuilt when the log is opened)")
    epochs = storage.load(EPOCHS_NAME)
    if epochs is not None and decode_epochs(epochs) is None:
        faults.append(f"{EPOCHS_NAME}: damaged (rebuilt when the log is opened)")
    if checkpoint is not None and next_offset is not None and checkpoint.high_watermark >= next_offset:
        faults.append(f"committed records are missing: HW {checkpoint.high_watermark}, the log ends before {next_offset}")
    faults += [
        f"{name}: a quarantine is incomplete (completed when the log is opened)" for name in incomplete_quarantines(names)
    ]
    others = tuple(n for n in names if n not in known)
    return PartitionReport(tuple(segments), checkpoint, data is not None, others, tuple(faults))


def _segment(storage: Storage, base: int, *, last: bool) -> SegmentReport:
    file = storage.open(log_name(base))
    segment = Segment(base, file, base)
    torn, fault, position = False, "", file.size_bytes
    try:
        contents = walk(segment)
        fault, position = contents.fault, contents.end
        torn = bool(fault) and last and not contents.changed_in_place
    except UnknownFormatError as error:
        fault, position = str(error), segment.size_bytes
    summary = segment.summary()
    report = SegmentReport(
        log_name(base), file.size_bytes, summary, _index_state(storage, base, summary), fault, position, torn
    )
    file.close()
    return report


def _index_state(storage: Storage, base: int, summary: SegmentSummary) -> str:
    data = storage.load(index_name(base))
    if data is None:
        return "missing"
    index = decode_index(data)
    if index is None:
        return "damaged"
    return "right" if index == summary else "wrong"


def headers(storage: Storage, base_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position in bytes, header) of the valid batches of the segment with ``base_offset``."""
    segment = Segment(base_offset, storage.open(log_name(base_offset)), base_offset)
    end = walk(segment).end
    yield from segment.batches(0, end)
    segment.file.close()
