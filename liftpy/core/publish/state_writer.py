"""``StateWriter``: decides when the derived state of a partition is written to disk (``state_file.py``).

``begin`` runs on the event loop when a checkpoint of the high watermark begins, ``write`` in any thread after it is stored.
A failed write does not close the log: the next start replays more. Records may be deleted only when a file has their
producers and message ids (``may_drop``) [A16]. If the file cannot be written, is too large, or takes longer than
``GIVE_UP_NS``, retention continues without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.state_file import StateCapture, load_state
from liftpy.errors import LiftError

GIVE_UP_NS = 60 * NS_PER_S
"""Maximum time in ns that retention waits for a file with the producers and message ids of the records."""
LEAST_BYTES = 256 * 1024
"""Size of the log, in bytes, below which a replay is as fast as reading a file."""


class StateFileSchedule(NamedTuple):
    """Decides when a state file is due, so that state files are only a small share of all writes.

    A file is due when the log has grown by ``much_bytes``, and by ``last_files`` times the size of the last file. It is
    also due after ``every_ns`` if the log has grown by ``least_bytes``, and by the size of the last file.
    """

    every_ns: int
    much_bytes: int
    least_bytes: int = LEAST_BYTES
    last_files: int = 8
    """Factor for the size of the last file. 0: its size has no effect."""

    @classmethod
    def from_config(cls, config: ReplicationConfig) -> StateFileSchedule:
        return cls(round(config.state_checkpoint_interval_s * NS_PER_S), config.state_checkpoint_bytes)

    def is_due(self, grown_bytes: int, last_bytes: int, since_ns: int) -> bool:
        """Return whether a state file is due for a log that has grown by ``grown_bytes`` in ``since_ns`` nanoseconds.

        ``last_bytes``: size of the last state file.
        """
        if grown_bytes >= max(self.much_bytes, self.last_files * last_bytes):
            return True
        return since_ns >= self.every_ns and grown_bytes >= max(self.least_bytes, last_bytes if self.last_files else 0)


class StateWriter:
    """Decides when the derived state of one replica is written to a state file, and writes it.

    ``owner``: name of the partition with the stream's uid. ``schedule``: when a file is due. ``now_ns``: returns the monotonic clock.
    """

    def __init__(
        self, log_state: LogState, log: Log, owner: str, schedule: StateFileSchedule, now_ns: Callable[[], int]
    ) -> None:
        self._log_state = log_state
        self._log = log
        self._owner = owner
        self._schedule = schedule
        self._now_ns = now_ns
        self._at_bytes, self._at_ns = 0, now_ns()
        self.last_bytes = 0
        """Size of the last written file, in bytes."""
        self.written = 0
        """Number of files that were written."""
        self.failed = 0
        """Number of files that could not be written or were too large."""
        self.uncovered = 0
        """Number of times that retention deleted records without a file."""
        self._wanted = -1
        """Log start for which retention waits for a file. -1: none."""
        self._wanted_ns = 0
        self._fresh_starts = 0
        """Value of ``LogState.fresh_starts`` when the last file was begun."""
        self._dropped = -1
        """Log start up to which retention no longer waits, because no file could be written."""

    def may_drop(self, log_start_offset: int) -> bool:
        """Return whether records before ``log_start_offset`` may be deleted now, because a state file covers them.

        They may also be deleted if there is no state to keep. If the result is False, the next ``begin`` writes the state.
        """
        log_state = self._log_state
        if log_start_offset <= self._dropped or self._is_covered(log_start_offset):
            return True
        if self._wanted < 0:
            self._wanted_ns = self._now_ns()
        self._wanted = max(self._wanted, log_start_offset)
        if self._now_ns() - self._wanted_ns >= GIVE_UP_NS:
            self.failed += 1
            self._stop_at_limit()
            return True
        if not self._log.closed:
            log_state.catch_up()
        return False

    def want(self, log_start_offset: int) -> bool:
        """Let the next ``begin`` write the state.

        Return False, and write nothing, if a file covers the records before ``log_start_offset``.
        """
        if self._is_covered(log_start_offset):
            return False
        if self._wanted < 0:
            self._wanted_ns = self._now_ns()
        self._wanted = max(self._wanted, log_start_offset)
        return True

    def _is_covered(self, log_start_offset: int) -> bool:
        """Return whether a restart without the records before ``log_start_offset`` loses no state."""
        log_state = self._log_state
        is_read = log_state.end_offset is not None and log_state.end_offset >= log_start_offset
        return log_start_offset <= log_state.covered or (log_state.is_blank and is_read)

    @property
    def is_wanted(self) -> bool:
        return self._wanted >= 0

    def _stop_at_limit(self) -> None:
        self._dropped, self._wanted = max(self._dropped, self._wanted), -1
        self.uncovered += 1

    def begin(self, *, closing: bool = False) -> StateCapture | None:
        """Return the state to write to a file now. None: no file is due. ``closing``: True if the log is about to be closed cleanly."""
        log_state, now_ns = self._log_state, self._now_ns()
        grown_bytes = log_state.taken_bytes - self._at_bytes
        due = self._schedule.is_due(grown_bytes, self.last_bytes, now_ns - self._at_ns)
        if not due and not self.is_wanted and not (closing and grown_bytes >= self._schedule.least_bytes):
            return None
        unwritten, self._fresh_starts = log_state.snapshot(self._owner, with_losses=self.is_wanted), log_state.fresh_starts
        if unwritten is not None:
            self._at_bytes, self._at_ns = log_state.taken_bytes, now_ns
        return unwritten

    def write(self, unwritten: StateCapture) -> None:
        """Write a state file. The high watermark must be stored before. A failure is counted."""
        try:
            size_bytes = unwritten.write(self._log.storage)
        except (LiftError, OSError):
            size_bytes = 0
        if size_bytes:
            self.last_bytes, self.written = size_bytes, self.written + 1
            if self._fresh_starts == self._log_state.fresh_starts:
                self._log_state.covered = unwritten.end_offset
                if self._wanted <= unwritten.end_offset:
                    self._wanted = -1
        else:
            self.failed += 1
            if self.is_wanted:
                self._stop_at_limit()


def restore_state(log_state: LogState, log: Log, owner: str) -> dict[str, str]:
    """Load the newest state file that fits ``log`` into ``log_state``. Raises StorageError.

    ``owner``: name of the partition with the stream's uid.

    Returns:
        Name of each file that does not fit -> reason.
    """
    state, unfit = load_state(log, owner)
    if state is not None and not log_state.use_stored_state(state):
        unfit["the one that fits"] = "its parts can't be used"
    return unfit
