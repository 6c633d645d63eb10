"""Where a range of offsets lies in the files of a log: for a reader on the same host that opens them itself.

What is told is right when it is told. Retention and compaction remove and replace whole files, and who has opened one keeps what it
was; a cut shortens a file in place. So a reader opens all of them at once and checks each batch; where anything does not fit he asks a
node as everybody does.
"""

from __future__ import annotations

from liftpy.dataclass import dataclass
from liftpy.errors import CorruptionError
from liftpy.log.borders import last_begun
from liftpy.log.log import Log
from liftpy.log.reading import segment_at
from liftpy.log.segment import INDEX_INTERVAL_BYTES

MAX_FILES = 256
"""Of one answer: a reader has them open all at once."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes ``begin`` (inclusive) to ``end`` (exclusive) of the segment file that begins at offset ``base_offset``: whole batches."""

    base_offset: int
    begin: int
    end: int


def spans_of(log: Log, start: int, end: int) -> list[FileSpan]:
    """Where the batches that hold [``start``, ``end``) lie, in order; the range must lie in the log. Empty where it is empty, or in
    more than MAX_FILES files. Raises CorruptionError."""
    if end <= start:
        return []
    first, last = segment_at(log.segments, start), segment_at(log.segments, end - 1)
    if last - first >= MAX_FILES:
        return []
    reached = log.segments[first : last + 1]
    try:
        hint = reached[0].entry_at(start)
        reached[0].check(hint, hint + 2 * INDEX_INTERVAL_BYTES)
        begins = [reached[0].locate(start), *(0 for _ in reached[1:])]
        batch, at = last_begun(reached[-1], end - 1)
    except CorruptionError as error:
        log.met_damage(error)
        raise
    ends = [*(segment.size_bytes for segment in reached[:-1]), at + batch.size_bytes]
    found = [FileSpan(s.base_offset, a, b) for s, a, b in zip(reached, begins, ends, strict=True)]
    return [span for span in found if span.begin < span.end]
