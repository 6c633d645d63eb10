"""``Flush``: one group commit. It is created and completed on the thread of the log, and runs in any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from liftpy.core.log.rewrite_unflushed import mark_failed_flush
from liftpy.core.log.small_files import SegmentSummary, encode_index
from liftpy.core.log.storage import LogFile, Storage
from liftpy.errors import StorageError


@dataclass(frozen=True, slots=True)
class SealJob:
    """A segment that was rolled: flush its file, then write its index."""

    file: LogFile
    index_name: str
    summary: SegmentSummary


@dataclass(slots=True)
class Flush:
    """One group commit. It covers all records below ``end_offset`` (exclusive)."""

    storage: Storage
    active: LogFile
    seals: tuple[SealJob, ...]
    new_names: bool
    end_offset: int
    size_bytes: int = 0
    """About so much was appended to the active file since the last flush."""
    waiter: Callable[[], None] | None = field(default=None)
    """Set by a shell that runs ``run`` elsewhere: blocks until that run is over."""

    @property
    def is_plain(self) -> bool:
        """Whether the flush covers exactly one file and nothing else."""
        return not self.seals and not self.new_names

    def run(self) -> None:
        """Make it durable; raises StorageError, and leaves a mark of it [S4]. Thread-safe against appends to the same log."""
        try:
            self._run()
        except StorageError as error:
            mark_failed_flush(self.storage, error)
            raise

    def _run(self) -> None:
        """An index comes last: it proves to the next opening that its segment, and its name, are on the disk [S12]."""
        for job in self.seals:
            job.file.sync()
        self.active.sync()
        if self.new_names:
            self.storage.sync_folder()
        for job in self.seals:
            self.storage.replace(job.index_name, encode_index(job.summary))

    def wait(self) -> None:
        """Return when the run in another thread is over."""
        if self.waiter is None:
            raise StorageError("Internal error: the log cannot be truncated during a flush. Please report it.")
        self.waiter()
