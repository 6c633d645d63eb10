"""Compaction: keeps the last record of each key at its offset, in fewer and smaller segments.

It also applies ``max_per_subject`` and purges. It works on sealed, flushed segments below the high watermark. Offsets
and epoch starts stay [D13], and batches follow each other without a gap, so that followers need no exception [D15]. The
last sequence stamps of a producer stay [A4].

1. A first pass learns the last offset of each key, of at most ``MAX_KEYS`` keys. If there are more, it learns only the keys of
one class, by hash. All records of other keys stay until the run of their class.
2. A second pass rewrites the segments that change. It does not read them if the first pass has found nothing to remove. A batch
loses replaced records and keeps its offset range. Runs of empty batches become one filler, a header without records. The last
batch of a live producer becomes a control batch with its stamps.
3. New files replace the old ones, each group by one rename. After a crash, old files whose offsets a new file covers
are deleted.

Example: a=1 b=1 | a=2 | b=2 c=1 (batches at 0, 2, 3). Batch 0 becomes a filler over 0..1. After a=3 at 5, batch 2 is
replaced too, and the filler covers 0..2.

Which records go: with ``compaction``, a record that a later one of its key follows, and a tombstone after
``delete_retention_s``. With ``max_per_subject``, a record with enough later ones of its subject. And records that match
a purge below its end. Records that may have a message id stay for the deduplication window [A3], and then they also
keep the record that replaced them [D29].

``Compaction.run`` may run in another thread: it only reads sealed segments and writes ``.tmp`` files. Retention may remove the
first of these segments during the run, which does not change what goes from the others. The counts of ``max_per_subject`` would
change, so the run is then in vain. ``CompactionSchedule`` decides when a run is worth it, and which purges are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.log.segment import Segment, log_name
from liftpy.core.log.storage import LogFile, Storage
from liftpy.core.wire.batch import BatchHeader, RecordBatch, build_filler, build_remains, parse_batch, parse_header
from liftpy.core.wire.batch_columns import BytesColumn, DictionaryColumn, Mask
from liftpy.core.wire.filters import Filter, keep_records
from liftpy.errors import CorruptionError, NoSpaceError, StorageError

MAX_KEYS = 4_000_000
"""Maximum number of keys, and of subjects, of one run. The others wait for the next runs."""
MAX_CLASSES = 1 << 16
"""Maximum number of classes of keys, and of the runs of a cycle."""
MAX_FILLER_OFFSETS = 1 << 31
"""Maximum number of offsets in one filler. The header stores the number as a u32."""
_COPY_BYTES = 8 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class CompactionFilter:
    """Finds the records that compaction may remove. It works in two passes.

    First pass all batches to ``learn`` in order. Then call ``retained_mask`` for the same batches in the same order.
    """

    config: StreamConfig
    now_wall_ns: int
    ids_from_ns: int
    """Time since which records with headers stay, because they may have a message id."""
    purges: Sequence[Purge] = ()
    keeps_tombstones_longer: bool = False
    """True while a replica is copied or is not in the ISR.

    Tombstones then stay for twice ``delete_retention_s``, so that this replica does not need to fetch the whole log again.
    """
    classes: int = 1
    """Number of classes of keys and subjects, a power of two. It doubles while the keys of one class are too many."""
    key_class: int = 0
    """Number of the class whose keys this run learns, below ``classes``."""
    retain_until_ns: dict[int, int] = field(default_factory=dict)
    """Purge number -> wall time until which records of the purge stay, because they may have a message id."""
    retain_ids_until_ns: int = 0
    """Wall time until which some records stay only because of their message ids. 0: there are no such records."""
    deletes_end: int = 0
    """Exclusive: every removed record that was the newest of its key is below this offset."""
    deletes_start: int | None = None
    """Inclusive: offset of the first removed record that was the newest of its key. None: no such record was removed."""
    _latest: dict[bytes | None, int] = field(default_factory=dict)
    """Key -> offset of its last record."""
    _replaced_records: int = 0
    """Number of learned records that a later one of their key replaces. It may be too high, and then the run only reads more."""
    _has_old_tombstone: bool = False
    """True if a learned tombstone may go."""
    _counts: dict[bytes, int] = field(default_factory=dict)
    """Subject -> number of its records."""
    _seen: dict[bytes, int] = field(default_factory=dict)
    """Subject -> number of its records that were checked."""
    _filters: list[tuple[Purge, Filter]] = field(init=False)
    _keys_to_retain: set[bytes | None] = field(default_factory=set)
    """Keys of records that stay only because of their message ids."""
    _subjects_to_retain: set[bytes] = field(default_factory=set)
    """Subjects of records that stay only because of their message ids."""

    def __post_init__(self) -> None:
        self._filters = [(purge, Filter(purge.subjects, purge.keys)) for purge in self.purges]

    @property
    def key_count(self) -> int:
        """Number of learned keys, or of learned subjects if it is larger."""
        return max(len(self._latest), len(self._counts))

    def _is_learned(self, key: bytes | None) -> bool:
        """Return whether this run learns ``key``, a key or a subject. ``hash`` differs between processes, so nobody can predict it."""
        return hash(key) % self.classes == self.key_class

    @property
    def may_remove(self) -> bool:
        """True if the second pass may remove a record, as far as the first pass knows."""
        return (
            bool(self._replaced_records or self._has_old_tombstone or self.purges)
            or max(self._counts.values(), default=0) > self.config.max_per_subject
        )

    def learn(self, batch: RecordBatch) -> None:
        """First pass: store the last offset of each key and the number of records of each subject of ``batch``."""
        self._learn(batch)
        while self.key_count > MAX_KEYS and self.classes < MAX_CLASSES:
            self.classes *= 2
            self._latest = {key: offset for key, offset in self._latest.items() if self._is_learned(key)}
            self._counts = {subject: count for subject, count in self._counts.items() if self._is_learned(subject)}

    def _learn(self, batch: RecordBatch) -> None:
        if batch.header.control or not batch.record_count:
            return
        columns = batch.columns
        if self.config.compaction and columns.keys is not None:
            self._learn_keys(batch, columns.keys)
        if self.config.max_per_subject and columns.subjects is not None:
            for subject, count in zip(*_count_by_subject(columns.subjects), strict=True):
                if self._is_learned(subject):
                    self._counts[subject] = self._counts.get(subject, 0) + count

    def _learn_keys(self, batch: RecordBatch, keys: BytesColumn) -> None:
        offsets, before = zip(batch.keys(), batch.offsets().tolist(), strict=True), len(self._latest)
        if self.classes == 1:
            self._latest.update(offsets)
            self._latest.pop(None, None)
            count = int(keys.valid().sum())
        else:
            learned = [(key, offset) for key, offset in offsets if key is not None and self._is_learned(key)]
            self._latest.update(learned)
            count = len(learned)
        self._replaced_records += count - (len(self._latest) - before)
        if count and not self._has_old_tombstone:
            old = self._is_old_tombstone(batch)
            self._has_old_tombstone = bool(old.any() and (old & self._learned_mask(batch)).any())

    def retained_mask(self, batch: RecordBatch) -> Mask:
        if batch.header.is_remains:
            return np.zeros(batch.record_count, dtype=np.bool_)
        keep = np.ones(batch.record_count, dtype=np.bool_)
        if batch.header.control or not batch.record_count:
            return keep
        newest: Mask | None = None
        if self.config.compaction and batch.columns.keys is not None:
            newest = self._is_newest(batch)
            keep &= newest & ~self._is_old_tombstone(batch)
        if self.config.max_per_subject and batch.columns.subjects is not None:
            keep &= self._newest_by_subject(batch.columns.subjects)
        purged = self._purge_mask(batch)
        if self.classes > 1 and newest is not None:
            learned = self._learned_mask(batch)  # without the newest record of a key, an older one would seem to be its value
            keep |= ~learned
            purged &= learned
        if keep.all() and not purged.any():
            return keep
        id_mask = self._may_have_ids(batch)
        if id_mask is not None:
            self._hold_for_ids(batch, id_mask & (~keep | purged))
            keep |= id_mask
            purged &= ~id_mask
        keep &= ~purged
        stays = self._mask_of_superseders(batch, newest, purged)
        keep |= stays
        if (stays & purged).any():
            self._hold_purges(batch, stays & purged, self.retain_ids_until_ns)
        if newest is not None:
            tombstones = np.flatnonzero(newest & batch.columns.keys.valid() & ~keep)  # type: ignore[union-attr]
            if tombstones.size:
                if self.deletes_start is None:
                    self.deletes_start = int(batch.offsets()[tombstones[0]])
                self.deletes_end = max(self.deletes_end, int(batch.offsets()[tombstones[-1]]) + 1)
        return keep

    def _is_newest(self, batch: RecordBatch) -> Mask:
        """Return for each record of the batch whether it is the newest known record of its key. True for records without a key."""
        keys = batch.columns.keys
        assert keys is not None
        entries = keys.to_list()
        newest = np.fromiter((self._latest.get(key, -1) for key in entries), dtype=np.int64, count=batch.record_count)
        is_newest: Mask = (newest <= batch.offsets()) | ~keys.valid()
        return is_newest

    def _learned_mask(self, batch: RecordBatch) -> Mask:
        """Return for each record of the batch whether this run learns its key. True for records without a key."""
        keys = batch.columns.keys
        assert keys is not None
        learned: Mask = np.fromiter(map(self._is_learned, keys.to_list()), np.bool_, batch.record_count) | ~keys.valid()
        return learned

    def _is_old_tombstone(self, batch: RecordBatch) -> Mask:
        keys, values = batch.columns.keys, batch.columns.values
        if values.validity is None or keys is None:
            return np.zeros(batch.record_count, dtype=np.bool_)
        stays_s = self.config.delete_retention_s * (2 if self.keeps_tombstones_longer else 1)
        old: Mask = batch.timestamps_ns() < self.now_wall_ns - int(stays_s * NS_PER_S)
        return ~values.valid() & keys.valid() & old

    def _newest_by_subject(self, subjects: DictionaryColumn) -> Mask:
        """Return for each record of a batch whether it is among the newest ``max_per_subject`` records of its subject.

        ``subjects``: subjects column of the batch. Records without a subject always get True.
        """
        names, counts = _count_by_subject(subjects)
        before = np.fromiter((self._seen.get(name, 0) for name in names), dtype=np.int64, count=len(names))
        first = np.fromiter((self._counts.get(name, 0) for name in names), dtype=np.int64, count=len(names))
        first -= self.config.max_per_subject  # index of the first of these records that stays
        for name, count in zip(names, counts, strict=True):
            if name in self._counts:
                self._seen[name] = self._seen.get(name, 0) + count
        order = np.argsort(subjects.index, kind="stable")
        ends = np.cumsum(np.asarray(counts, dtype=np.int64))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(ends - counts, counts)
        nameless = np.fromiter((not name for name in names), dtype=np.bool_, count=len(names))
        keep: Mask = (before[subjects.index] + rank >= first[subjects.index]) | nameless[subjects.index]
        return keep

    def _may_have_ids(self, batch: RecordBatch) -> Mask | None:
        """Return which records of the batch may have a message id that is still in the dedup window. None: no record has."""
        headers = batch.columns.headers
        if headers is None or batch.header.timestamp_ns <= self.ids_from_ns:
            return None
        return np.diff(headers.ends.astype(np.int64), prepend=0) > 0

    def _hold_for_ids(self, batch: RecordBatch, id_mask: Mask) -> None:
        """Record that the records of ``batch`` in the mask ``id_mask`` stay because of their message ids.

        Newer records with the same keys or subjects then stay too.
        """
        places = np.flatnonzero(id_mask).tolist()
        if not places:
            return
        window_ns = round(self.config.dedup_window_s * NS_PER_S)
        self.retain_ids_until_ns = max(self.retain_ids_until_ns, batch.header.timestamp_ns + window_ns)
        if batch.columns.keys is not None:
            keys = batch.columns.keys.to_list()
            self._keys_to_retain.update(keys[place] for place in places if keys[place] is not None)
        if batch.columns.subjects is not None:
            names, _ = _count_by_subject(batch.columns.subjects)
            self._subjects_to_retain.update(
                names[index] for index in batch.columns.subjects.index[places].tolist() if names[index]
            )
        self._hold_purges(batch, id_mask, batch.header.timestamp_ns + window_ns)

    def _hold_purges(self, batch: RecordBatch, id_mask: Mask, until_ns: int) -> None:
        """Record that a purge that matches one of the ``id_mask`` records is not complete before ``until_ns`` (wall time)."""
        for purge, wanted in self._filters:
            if bool((wanted.mask(batch) & (batch.offsets() < purge.end_offset) & id_mask).any()):
                self.retain_until_ns[purge.number] = max(self.retain_until_ns.get(purge.number, 0), until_ns)

    def _mask_of_superseders(self, batch: RecordBatch, newest: Mask | None, purged: Mask) -> Mask:
        """Return which records of ``batch`` stay because they replace a record that is kept for its message id.

        These are the newest record of the same key, and the records that a purge matches and that have the same key or subject.

        Args:
            batch: Batch of the second pass.
            newest: Mask of the newest records of each key. None: the stream keeps all records of a key.
            purged: Mask of the records that a purge deletes.
        """
        stays = np.zeros(batch.record_count, dtype=np.bool_)
        if self._keys_to_retain and batch.columns.keys is not None:
            key_mask = np.fromiter(
                (key in self._keys_to_retain for key in batch.columns.keys.to_list()), np.bool_, batch.record_count
            )
            stays |= key_mask & (purged if newest is None else purged | newest)
        if self._subjects_to_retain and batch.columns.subjects is not None and purged.any():
            names, _ = _count_by_subject(batch.columns.subjects)
            of_entry = np.fromiter((name in self._subjects_to_retain for name in names), np.bool_, len(names))
            stays |= of_entry[batch.columns.subjects.index] & purged
        return stays

    def _purge_mask(self, batch: RecordBatch) -> Mask:
        mask = np.zeros(batch.record_count, dtype=np.bool_)
        for purge, wanted in self._filters:
            if batch.base_offset < purge.end_offset:
                mask |= wanted.mask(batch) & (batch.offsets() < purge.end_offset)
        return mask


def _count_by_subject(subjects: DictionaryColumn) -> tuple[list[bytes], list[int]]:
    names = [name or b"" for name in subjects.entries.to_list()]
    return names, np.bincount(subjects.index, minlength=len(names)).tolist()


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A finished output file of a compaction, still under its ``temporary`` name.

    ``replaced``: base offsets of the segments that the file replaces. The first one is the base offset of the file itself.
    ``dropped_records``: number of their records that the file lacks.
    """

    segment: Segment
    temporary: str
    replaced: tuple[int, ...]
    dropped_records: int


@dataclass(slots=True, kw_only=True)
class Compaction:
    """One run of compaction over ``inputs``: sealed segments in ascending order, with committed records only."""

    storage: Storage
    config: StreamConfig
    inputs: tuple[Segment, ...]
    now_wall_ns: int
    ids_from_ns: int
    """Time since which records with headers stay, because they may have a message id."""
    keeps_tombstones_longer: bool = False
    """True if tombstones stay for twice ``delete_retention_s``, because a replica is copied or is not in the ISR."""
    producer_expiry_ns: int = 0
    """Log time without a batch after which a producer is forgotten, in nanoseconds. 0: never."""
    purges: tuple[Purge, ...] = ()
    classes: int = 1
    """Number of classes of keys at the start of the run. ``rules.classes`` has the number at its end."""
    key_class: int = 0
    """Number of the class whose keys the run compacts."""
    rules: CompactionFilter = field(init=False)
    may_remove: bool = True
    """True if the second pass may remove something, as far as the first pass knows."""
    outputs: list[CompactedFile] = field(default_factory=list)
    is_partial: bool = False
    """True if the disk had no room to compact all ``inputs``. The first ones are compacted, which makes room for the next run."""
    has_unwritten_segments: bool = False
    """True if some segments stay as they are, because retention has removed others for which their output file stands, too."""
    _writer: _Writer | None = None

    def __post_init__(self) -> None:
        config, now_ns, ids_ns = self.config, self.now_wall_ns, self.ids_from_ns
        self.rules = CompactionFilter(
            config=config,
            now_wall_ns=now_ns,
            ids_from_ns=ids_ns,
            purges=self.purges,
            keeps_tombstones_longer=self.keeps_tombstones_longer,
            classes=self.classes,
            key_class=self.key_class,
        )

    def run(self) -> None:
        """Write the output files under temporary names and flush them.

        Raises StorageError. In that case nothing was changed, and the temporary files were removed.
        """
        try:
            self._write()
        except StorageError:
            self.abandon()
            raise

    def _write(self) -> None:
        lasts = self._learn()
        for group in self._groups(self.inputs):
            if not self.is_partial:
                self._write_group(group, lasts)

    def _write_group(self, group: tuple[Segment, ...], lasts: dict[int, int]) -> None:
        """Write the output file of the segments of ``group`` that retention has not removed.

        ``lasts``: producer id -> base offset of its last batch.
        """
        while (remaining := tuple(segment for segment in group if not segment.is_removed)) and not self._is_in_vain():
            if len(remaining) == 1 and not self.may_remove:
                return
            if not self._has_room_for(remaining):
                self.is_partial = True
                return
            try:
                self._write_file(remaining, lasts)
                return
            except StorageError:
                if not any(segment.is_removed for segment in remaining):
                    raise
                self._remove_unfinished()

    def _is_in_vain(self) -> bool:
        """Return whether the results cannot be used, because the counts of subjects include removed records. Then abandon them."""
        if not self.config.max_per_subject or not any(segment.is_removed for segment in self.inputs):
            return False
        self.is_partial = True
        self.abandon()
        return True

    def _write_file(self, group: tuple[Segment, ...], lasts: dict[int, int]) -> None:
        """Write the output file of ``group``, unless it would equal the only segment of the group."""
        dropped_records, only = 0, group[0] if len(group) == 1 else None
        writer = self._writer = _Writer(self.storage, group[0].base_offset, only)
        for segment in group:
            for batch in _batches(segment):
                is_last = lasts.get(batch.header.producer_id) == batch.base_offset
                mask = self.rules.retained_mask(batch)
                if not (is_last and batch.header.is_remains):
                    dropped_records += int(batch.record_count - mask.sum())
                writer.add(batch, mask, is_last)
        written = writer.finish()
        self._writer = None
        if written is None:
            return
        output = CompactedFile(written, writer.temporary, tuple(s.base_offset for s in group), dropped_records)
        if not dropped_records and only is not None and written.size_bytes == only.size_bytes:
            self._discard(output)
        else:
            self.outputs.append(output)

    def _has_room_for(self, group: tuple[Segment, ...]) -> bool:
        """Return whether the disk has room for the output file of ``group``, and for as many bytes of running partitions.

        Raises NoSpaceError if it has not, and no output file can be used that makes room.
        """
        wanted_bytes, free_bytes = 2 * sum(segment.size_bytes for segment in group), self.storage.free_bytes()
        if free_bytes < wanted_bytes and not self.outputs:
            raise NoSpaceError(
                f"Cannot compact {log_name(group[0].base_offset)}: it needs {wanted_bytes} bytes, but {free_bytes} bytes are "
                "free. Free space on the disk."
            )
        return free_bytes >= wanted_bytes

    def abandon(self) -> None:
        """Remove the output files without using them. The run has removed no records, or the segments have changed during the run."""
        self._remove_unfinished()
        for output in self.outputs:
            self._discard(output)
        self.outputs = []

    def _remove_unfinished(self) -> None:
        unfinished, self._writer = self._writer, None
        if unfinished is not None:
            self.storage.remove(unfinished.temporary)

    def keep_usable_outputs(self, segments: Sequence[Segment], log_start_offset: int) -> bool:
        """Remove the output files that cannot replace segments of the log any more. Return False if no output may be used.

        All inputs that the log lacks must be the first ones, and retention must have removed them. Otherwise the log was truncated,
        and the run has perhaps removed records because of others that the log lacks now.

        ``segments``: segments of the log, ascending. ``log_start_offset``: log start, inclusive.
        """
        known = {id(segment) for segment in segments}
        count = sum(id(segment) not in known for segment in self.inputs)
        gone = self.inputs[:count]
        if any(id(segment) in known or segment.next_offset > log_start_offset for segment in gone):
            return False
        if gone and (count == len(self.inputs) or self.config.max_per_subject):
            return False
        start = self.inputs[count].base_offset
        for output in [output for output in self.outputs if output.replaced[0] < start]:
            self.has_unwritten_segments |= output.replaced[-1] >= start
            self.outputs.remove(output)
            self._discard(output)
        return True

    def _discard(self, output: CompactedFile) -> None:
        output.segment.file.close()
        self.storage.remove(output.temporary)

    def _learn(self) -> dict[int, int]:
        """First pass: learn the keys of the input segments.

        Return producer id -> base offset of its last batch, for producers that have not expired.
        """
        lasts: dict[int, tuple[int, int]] = {}
        remains: list[tuple[int, int]] = []
        time_ns = 0
        for segment in self.inputs:
            for batch in _batches_if_there(segment):
                header = batch.header
                time_ns = max(time_ns, header.timestamp_ns)  # producers expire by the same log time
                if header.producer_id:
                    lasts[header.producer_id] = header.base_offset, time_ns
                if header.is_remains:
                    remains.append((header.producer_id, header.base_offset))
                self.rules.learn(batch)
        until_ns = time_ns - self.producer_expiry_ns if self.producer_expiry_ns else -1
        live = {producer: base for producer, (base, at_ns) in lasts.items() if at_ns > until_ns}
        self.may_remove = self.rules.may_remove or any(live.get(producer) != base for producer, base in remains)
        return live

    def _groups(self, segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, ...]]:
        """Yield groups of neighboring segments. The remaining records of each group fit into one output file."""
        group: list[Segment] = []
        for segment in segments:
            if group and sum(s.size_bytes for s in group) + segment.size_bytes > self.config.segment_bytes:
                yield tuple(group)
                group = []
            group.append(segment)
        if group:
            yield tuple(group)


class _Writer:
    """Writes one output file of a compaction. A filler is written only when the next record follows, because it may still grow.

    ``original``: only segment of the group. The file is created at the first byte that differs from it. None: the group has
    several segments.
    """

    def __init__(self, storage: Storage, base_offset: int, original: Segment | None) -> None:
        self.temporary = f"{log_name(base_offset)}.compacted.tmp"
        self._storage = storage
        self._original = memoryview(b"") if original is None else original.file.read(0, original.size_bytes)
        self._file: LogFile | None = storage.create(self.temporary) if original is None else None
        """Output file. None: the output so far equals the beginning of ``original``."""
        file = original.file if original is not None else self._file
        assert file is not None
        self._segment = Segment(base_offset, file, base_offset, checked=True)
        self._filler: BatchHeader | None = None
        """Header of the filler that was not written yet. It covers batches of one epoch. None: no filler is pending."""

    def add(self, batch: RecordBatch, mask: Mask, is_last: bool) -> None:
        """Write the records of ``batch`` that are in ``mask``, at their offsets.

        If the mask is empty, a filler covers the offsets of the batch. ``is_last``: True for the last batch of its producer.
        Then a control batch with the producer's stamps and note replaces the filler.
        """
        if not mask.any() and not is_last:
            self._fill(batch.header)
            return
        self._write_filler()
        if not mask.any():
            self._write(build_remains(batch))
            return
        self._write(batch.view if mask.all() else keep_records(batch, mask))

    def _fill(self, header: BatchHeader) -> None:
        filler = self._filler
        extends = filler is not None and filler.leader_epoch == header.leader_epoch
        if filler is None or not extends or header.next_offset - filler.base_offset > MAX_FILLER_OFFSETS:
            self._write_filler()
            self._filler = header
            return
        timestamp_ns = max(filler.timestamp_ns, header.timestamp_ns)
        delta = header.last_offset - filler.base_offset
        self._filler = filler._replace(timestamp_ns=timestamp_ns, last_offset_delta=delta)

    def _write_filler(self) -> None:
        filler, self._filler = self._filler, None
        if filler is not None:
            self._write(build_filler(filler.base_offset, filler.next_offset, filler.leader_epoch, filler.timestamp_ns))

    def _write(self, data: bytes | memoryview) -> None:
        position = self._segment.size_bytes
        if self._file is not None:
            self._file.append((data,))
        elif self._original[position : position + len(data)] != data:
            self._create_file().append((data,))
        self._segment.note(parse_header(memoryview(data)), position)

    def _create_file(self) -> LogFile:
        """Create the output file with the bytes of the original that were added so far."""
        file = self._file = self._segment.file = self._storage.create(self.temporary)
        for position in range(0, self._segment.size_bytes, _COPY_BYTES):
            file.append((self._original[position : min(position + _COPY_BYTES, self._segment.size_bytes)],))
        return file

    def finish(self) -> Segment | None:
        """Flush the output file and return its segment. None: the output equals the original, and there is no file."""
        self._write_filler()
        if self._file is None:
            return None
        self._file.sync()
        self._segment.sealed = True
        return self._segment


def _batches_if_there(segment: Segment) -> Iterator[RecordBatch]:
    """Yield the batches of a sealed segment. There are none if retention has removed it."""
    try:
        yield from _batches(segment)
    except StorageError:
        if not segment.is_removed:
            raise


def _batches(segment: Segment) -> Iterator[RecordBatch]:
    """Yield the batches of a sealed segment. Their CRCs are checked."""
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


@dataclass(slots=True)
class CompactionSchedule:
    """Decides when a compaction of one log is worth its cost. It also records which purges this log has carried out.

    If the keys of the log do not fit into one run, a *cycle* of runs compacts one class of keys after another.
    """

    purges: tuple[Purge, ...] = ()
    """Purges of the partition in the metadata."""
    purged: set[int] = field(default_factory=set)
    """Numbers of the purges that are done in this log."""
    _seen_end_offset: int = 0
    """Exclusive: compaction has examined the records below this offset since the log was opened."""
    _retain_ids_until_ns: int = 0
    """Wall time until which replaced records stay for their message ids. 0: none do."""
    _lacks_replicas: bool = False
    """True while a replica is copied or is not in the ISR."""
    _not_before_ns: dict[int, int] = field(default_factory=dict)
    """Purge number -> wall time until which its records stay because of their message ids."""
    _classes: int = 1
    """Number of classes of keys, and of runs of a cycle."""
    _next_class: int = 0
    """Class of the next run. 0: no cycle is in progress."""
    _cycle_purges: tuple[Purge, ...] = ()
    """Purges that every run of the cycle carries out."""
    _cycle_end_offset: int = 0
    """Exclusive: every run of the cycle compacts the records below this offset."""
    _most_keys: int = 0
    """Largest number of keys that a run of the cycle has learned."""
    _holds_ns: dict[int, int] = field(default_factory=dict)
    """``_not_before_ns`` after this cycle."""

    def apply_metadata(self, state: PartitionState) -> bool:
        """Take over the purges in the metadata of the partition. Return True if one of them is new."""
        before, self.purges = self.purges, state.purges
        self._lacks_replicas = bool(state.joining) or not set(state.replicas) <= set(state.isr)
        numbers = {purge.number for purge in self.purges}
        self.purged &= numbers
        self._not_before_ns = {number: at_ns for number, at_ns in self._not_before_ns.items() if number in numbers}
        return any(purge not in before for purge in self.purges)

    def truncate(self, end_offset: int) -> None:
        """Note that the log was truncated to ``end_offset`` (exclusive). Purges that end above it must be carried out again.

        0: all records were deleted.
        """
        self.purged -= {purge.number for purge in self.purges if purge.end_offset > end_offset}
        self._seen_end_offset = min(self._seen_end_offset, end_offset)
        self._next_class = 0

    def note_bounds(self, log_start_offset: int, committed_end_offset: int) -> None:
        """Record the purges that end below both the log start (inclusive) and the end of the committed records (exclusive) as complete.

        Their records are all below the log start, so nothing is left to delete.
        """
        for purge in self.purges:
            if purge.end_offset <= min(log_start_offset, committed_end_offset):
                self.purged.add(purge.number)

    def wants_seal(self, active: Segment, committed_end_offset: int) -> bool:
        """Return whether the ``active`` segment must be sealed, because a purge may match records in it.

        Compaction reads only sealed segments. A purge waits until all records below its end are committed.
        """
        return bool(active.size_bytes) and any(
            active.base_offset < purge.end_offset <= committed_end_offset for purge in self._waiting_purges()
        )

    def plan_compaction(
        self,
        storage: Storage,
        config: StreamConfig,
        inputs: Sequence[Segment],
        newest_ns: int,
        now_wall_ns: int,
        min_dirty_ratio: float,
    ) -> Compaction | None:
        """Return a compaction of those ``inputs`` that need it. None: no compaction is needed, or it is not worth the work.

        Args:
            storage: Directory of the partition.
            config: Settings of the stream.
            inputs: Sealed, flushed and committed segments, ascending.
            newest_ns: Timestamp of the newest batch of the log, in nanoseconds since 1970.
            now_wall_ns: Wall clock, in nanoseconds since 1970.
            min_dirty_ratio: Smallest share of new bytes for which a compaction is worth the work, from 0 to 1.
        """
        worth = self._segments_to_compact(inputs, now_wall_ns, min_dirty_ratio if config.is_cleaned else None)
        if not worth:
            return None
        window_ns = round(config.dedup_window_s * NS_PER_S)
        return Compaction(
            storage=storage,
            config=config,
            inputs=tuple(worth),
            now_wall_ns=now_wall_ns,
            ids_from_ns=max(newest_ns, now_wall_ns) - window_ns if window_ns else 1 << 63,
            purges=self.purges,
            keeps_tombstones_longer=self._lacks_replicas,
            classes=self._classes if config.is_cleaned else 1,
            key_class=self._next_class if config.is_cleaned else 0,
        )

    def _segments_to_compact(
        self, inputs: Sequence[Segment], now_wall_ns: int, min_dirty_ratio: float | None
    ) -> Sequence[Segment]:
        """Return those of ``inputs`` that a compaction should rewrite now, or none.

        ``min_dirty_ratio``: smallest share of their bytes that must be new, from 0 to 1. None: the stream has no compaction,
        and only records that a purge matches are removed.
        """
        if not inputs:
            return ()
        due = [purge for purge in self._waiting_purges() if self._not_before_ns.get(purge.number, 0) <= now_wall_ns]
        ends = [purge.end_offset for purge in due if purge.end_offset <= inputs[-1].next_offset]
        if min_dirty_ratio is None:
            return tuple(segment for segment in inputs if segment.base_offset < max(ends, default=0))
        if self._next_class or 0 < self._retain_ids_until_ns < now_wall_ns:
            return inputs
        dirty_bytes = sum(s.size_bytes for s in inputs if s.next_offset > self._seen_end_offset)
        least_bytes = min_dirty_ratio * sum(s.size_bytes for s in inputs)
        return inputs if ends or (dirty_bytes >= least_bytes and (dirty_bytes or not min_dirty_ratio)) else ()

    def ran(self, run: Compaction) -> None:
        """Note that the files of the compaction ``run`` have replaced its inputs. Record the purges that are complete now."""
        rules = run.rules
        if run.is_partial or (run.has_unwritten_segments and run.purges):
            return
        if not run.key_class:
            self._cycle_purges, self._cycle_end_offset = run.purges, run.inputs[-1].next_offset
            self._most_keys, self._holds_ns, self._retain_ids_until_ns = 0, {}, 0
        self._most_keys = max(self._most_keys, rules.key_count)
        self._retain_ids_until_ns = max(self._retain_ids_until_ns, rules.retain_ids_until_ns)
        for number, until_ns in rules.retain_until_ns.items():
            self._holds_ns[number] = max(self._holds_ns.get(number, 0), until_ns)
        is_new_division = bool(run.key_class) and rules.classes > run.classes  # the runs before have compacted too few classes
        self._classes = rules.classes
        self._next_class = 0 if is_new_division else (run.key_class + 1) % rules.classes
        if not is_new_division and not self._next_class:
            self._end_cycle()

    def _end_cycle(self) -> None:
        """Note that all keys of the log are compacted up to the end of the first run of the cycle."""
        self._seen_end_offset = max(self._seen_end_offset, self._cycle_end_offset)
        for purge in self._cycle_purges:
            if purge.end_offset > self._cycle_end_offset or purge not in self.purges:
                continue
            if purge.number in self._holds_ns:
                self._not_before_ns[purge.number] = self._holds_ns[purge.number]
            else:
                self.purged.add(purge.number)
        if self._most_keys < MAX_KEYS // 4 and self._classes > 1:
            self._classes //= 2

    def _waiting_purges(self) -> list[Purge]:
        return [purge for purge in self.purges if purge.number not in self.purged]
