"""StateWriter: when the derived state of one partition is written beside its log (``state_file.py``), and what came of it.

Both shells use it: ``begin`` on the loop, when a checkpoint of HW has begun; ``write`` in any thread, once that is stored. A file that
can't be written is no failure of the log: the next start replays more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.errors import LiftError
from liftpy.ingest.derived import DerivedState
from liftpy.ingest.state_file import Unwritten, load_state
from liftpy.log.log import Log

LEAST_BYTES = 256 * 1024
"""Of the log: so much is replayed as fast as a file is read."""


class Pace(NamedTuple):
    """A file is written when the log has grown by ``much_bytes`` (or much more than the last file has), or by ``least_bytes`` (or as
    much as the last file has) within ``every_ns``: writing costs a share of what is written anyway."""

    every_ns: int
    much_bytes: int
    least_bytes: int = LEAST_BYTES
    last_files: int = 8
    """Growth by so many times the last file is much; 0: how large that was does not matter."""

    def is_due(self, grown_bytes: int, last_bytes: int, since_ns: int) -> bool:
        """Whether a log that has grown by ``grown_bytes`` within ``since_ns`` is worth another file."""
        if grown_bytes >= max(self.much_bytes, self.last_files * last_bytes):
            return True
        return since_ns >= self.every_ns and grown_bytes >= max(self.least_bytes, last_bytes if self.last_files else 0)


def pace_of(config: ReplicationConfig) -> Pace:
    """As the settings say."""
    return Pace(round(config.state_checkpoint_s * NS_PER_S), config.state_checkpoint_bytes)


class StateWriter:
    """Of one replica. ``of``: its partition's name, with the stream's uid. ``now_ns``: the node's monotonic clock."""

    def __init__(self, derived: DerivedState, log: Log, of: str, pace: Pace, now_ns: Callable[[], int]) -> None:
        self._derived = derived
        self._log = log
        self._of = of
        self._pace = pace
        self._now_ns = now_ns
        self._at_bytes, self._at_ns = 0, now_ns()
        self.last_bytes = 0
        """Of the file that was written last."""
        self.written = 0
        """Files, ever."""
        self.failed = 0
        """That could not be written, or were too large, ever."""

    def begin(self, *, closing: bool = False) -> Unwritten | None:
        """What is to be written now; None: nothing. ``closing``: the log is about to be closed in good order."""
        derived, now_ns = self._derived, self._now_ns()
        grown_bytes = derived.taken_bytes - self._at_bytes
        due = self._pace.is_due(grown_bytes, self.last_bytes, now_ns - self._at_ns)
        if not due and not (closing and grown_bytes >= self._pace.least_bytes):
            return None
        unwritten = derived.snapshot(self._of)
        if unwritten is not None:
            self._at_bytes, self._at_ns = derived.taken_bytes, now_ns
        return unwritten

    def write(self, unwritten: Unwritten) -> None:
        """Store it; the HW that covers it is stored already."""
        try:
            size_bytes = unwritten.write(self._log.storage)
        except (LiftError, OSError):
            size_bytes = 0
        if size_bytes:
            self.last_bytes, self.written = size_bytes, self.written + 1
        else:
            self.failed += 1


def restore_state(derived: DerivedState, log: Log, of: str) -> dict[str, str]:
    """Begin with the newest file that fits, if there is one. Those that do not: name -> why. Raises StorageError."""
    state, unfit = load_state(log, of)
    if state is not None and not derived.restore(state):
        unfit["the one that fits"] = "its parts can't be used"
    return unfit
