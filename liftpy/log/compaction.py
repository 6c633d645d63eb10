"""Compaction: keep the last record of each key, at its offset, in fewer and smaller segments.

Goal: a log of keyed records whose size follows the number of keys; or of subjects; or without what a purge gives up (which records go,
``superseded.py`` says). Constraints: only sealed, flushed segments wholly at or below HW; offsets and epoch starts stay [D13]; batches
still follow on each other without a gap, so that a follower that fetches them needs no exception [D15]. Whoever opens the log learns
how far each producer is from the stamps of its batches: of a producer's last one they stay, though none of its records does [A4].

Algorithm: (1) a forward pass learns the last offset of each key, until ``MAX_KEYS`` are held; (2) a second pass rewrites the
segments: a batch loses the records that are superseded and keeps its extent; batches that lose all become one filler,
a header without records, per run of them and epoch; the last one of a producer that has not expired becomes a control batch with
its stamps (``build_remains``), which a later run drops when the producer has gone on. A log that ends within a filler elsewhere is
served the rest of it.
(3) The new files take the place of the old ones, each group by one rename; what a crash leaves of the old group lies within the
new file's offsets and is removed when the folder is opened.

Worked example: a=1 b=1 | a=2 | b=2 c=1 (batches at 0, 2, 3): key a's last offset is 2, b's 3, c's 4. Batch 0 becomes a filler
over 0..1; batches 2 and 3 stay as they are. After a=3 at 5, batch 2 goes too: the filler is over 0..2.

``Compaction.run`` is made for another thread: it only reads sealed segments and writes ``.tmp`` files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from liftpy.config import StreamConfig
from liftpy.dataclass import dataclass
from liftpy.errors import CorruptionError, StorageError
from liftpy.log.segment import Segment, log_name
from liftpy.log.storage import LogFile, Storage
from liftpy.log.superseded import Superseded
from liftpy.partition import Purge
from liftpy.wire.batch import BatchHeader, RecordBatch, build_filler, build_remains, parse_batch, parse_header
from liftpy.wire.batch_columns import Mask
from liftpy.wire.kept import kept

MAX_FILLER_OFFSETS = 1 << 31
"""Bound of the offsets under one filler: its delta is a u32."""


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A finished file. ``replaced``: the base offsets of the segments that it takes the place of, its own first."""

    segment: Segment
    temporary: str
    replaced: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Compaction:
    """One run over ``inputs`` (sealed segments, ascending, all below HW + 1)."""

    storage: Storage
    config: StreamConfig
    inputs: tuple[Segment, ...]
    now_wall_ns: int
    ids_from_ns: int
    """What is younger and has headers stays, for it may have a message id."""
    keeps_deletes_longer: bool = False
    """See ``Superseded``."""
    producer_expiry_ns: int = 0
    """After so much log time without a batch a producer is forgotten; 0: never."""
    purges: tuple[Purge, ...] = ()
    rules: Superseded = field(init=False)
    covered: tuple[Segment, ...] = ()
    """The first of ``inputs``, as many as were learned and judged."""
    outputs: list[CompactedFile] = field(default_factory=list)
    dropped_records: int = 0
    _writer: _Writer | None = None

    def __post_init__(self) -> None:
        config, now_ns, ids_ns = self.config, self.now_wall_ns, self.ids_from_ns
        self.rules = Superseded(
            config=config,
            now_wall_ns=now_ns,
            ids_from_ns=ids_ns,
            purges=self.purges,
            keeps_deletes_longer=self.keeps_deletes_longer,
        )

    def run(self) -> None:
        """Write the outputs, flushed, under temporary names. Raises StorageError; nothing is changed or left behind then."""
        try:
            self._write()
        except StorageError:
            self.abandon()
            raise

    def _write(self) -> None:
        lasts = self._learn()
        for group in self._groups(self.covered):
            before = self.dropped_records
            writer = self._writer = _Writer(self.storage, group[0].base_offset)
            for segment in group:
                for batch in _batches(segment):
                    is_last = lasts.get(batch.header.producer_id) == batch.base_offset
                    mask = self.rules.kept(batch)
                    if not (is_last and batch.header.is_remains):
                        self.dropped_records += int(batch.record_count - mask.sum())
                    writer.add(batch, mask, is_last)
            output = CompactedFile(writer.finish(), writer.temporary, tuple(s.base_offset for s in group))
            self._writer = None
            if self.dropped_records == before and len(group) == 1 and output.segment.size_bytes == group[0].size_bytes:
                self._discard(output)
            else:
                self.outputs.append(output)

    def abandon(self) -> None:
        """Remove what was written: there was nothing to drop, or the segments changed meanwhile."""
        unfinished, self._writer = self._writer, None
        if unfinished is not None:
            self.storage.remove(unfinished.temporary)
        for output in self.outputs:
            self._discard(output)
        self.outputs = []

    def _discard(self, output: CompactedFile) -> None:
        output.segment.file.close()
        self.storage.remove(output.temporary)

    def _learn(self) -> dict[int, int]:
        """What the rules need to know, over the first segments, as many as MAX_KEYS allow, which are ``covered`` then. Producer that
        has not expired -> base offset of its last batch."""
        lasts: dict[int, tuple[int, int]] = {}
        time_ns, self.covered = 0, self.inputs
        for number, segment in enumerate(self.inputs):
            if self.rules.is_full:
                self.covered = self.inputs[:number]
                break
            for batch in _batches(segment):
                header = batch.header
                time_ns = max(time_ns, header.timestamp_ns)  # log time, as it is judged by who expires producers
                if header.producer_id:
                    lasts[header.producer_id] = header.base_offset, time_ns
                self.rules.learn(batch)
        until_ns = time_ns - self.producer_expiry_ns if self.producer_expiry_ns else -1
        return {producer: base for producer, (base, at_ns) in lasts.items() if at_ns > until_ns}

    def _groups(self, segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, ...]]:
        """Neighbours that fit one file together, before anything is dropped from them."""
        group: list[Segment] = []
        for segment in segments:
            if group and sum(s.size_bytes for s in group) + segment.size_bytes > self.config.segment_bytes:
                yield tuple(group)
                group = []
            group.append(segment)
        if group:
            yield tuple(group)


class _Writer:
    """Writes one output file; holds back a filler, which may still grow."""

    def __init__(self, storage: Storage, base_offset: int) -> None:
        self.temporary = f"{log_name(base_offset)}.compacted.tmp"
        self._file: LogFile = storage.create(self.temporary)
        self._segment = Segment(base_offset, self._file, base_offset, checked=True)
        self._filler: BatchHeader | None = None
        """Stands for the batches since the last one that was written, all of one epoch."""

    def add(self, batch: RecordBatch, mask: Mask, is_last: bool) -> None:
        """Write what ``mask`` keeps of ``batch``; where that is nothing, a filler covers its offsets, or if it ``is_last`` of its
        producer, its remains do."""
        if not mask.any() and not is_last:
            self._fill(batch.header)
            return
        self._write_filler()
        if not mask.any():
            self._write(build_remains(batch))
            return
        self._write(batch.view if mask.all() else kept(batch, mask))

    def _fill(self, header: BatchHeader) -> None:
        held = self._filler
        extends = held is not None and held.leader_epoch == header.leader_epoch
        if held is None or not extends or header.next_offset - held.base_offset > MAX_FILLER_OFFSETS:
            self._write_filler()
            self._filler = header
            return
        timestamp_ns = max(held.timestamp_ns, header.timestamp_ns)
        delta = header.last_offset - held.base_offset
        self._filler = held._replace(timestamp_ns=timestamp_ns, last_offset_delta=delta)

    def _write_filler(self) -> None:
        held, self._filler = self._filler, None
        if held is not None:
            self._write(build_filler(held.base_offset, held.next_offset, held.leader_epoch, held.timestamp_ns))

    def _write(self, data: bytes | memoryview) -> None:
        position = self._segment.size_bytes
        self._file.append((data,))
        self._segment.note(parse_header(memoryview(data)), position)

    def finish(self) -> Segment:
        """Flush the file and give the segment it is."""
        self._write_filler()
        self._file.sync()
        self._segment.sealed = True
        return self._segment


def _batches(segment: Segment) -> Iterator[RecordBatch]:
    """The batches of a sealed segment, checked."""
    data = segment.file.read(0, segment.size_bytes)
    position = 0
    while position < len(data):
        try:
            batch = parse_batch(data, position)
        except CorruptionError:
            segment.damaged = True
            raise
        yield batch
        position += batch.header.size_bytes
