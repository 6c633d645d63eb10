"""``EpochCache``: which LeaderEpoch wrote which offsets of a log [D12, D13, D14].

It is a list of (LeaderEpoch, offset of its first record), ascending in both. An epoch without records has no entry.
Ends are exclusive. For an empty log, the epoch of the newest deleted record is kept, so that the replica ranks
correctly in an election [C9].

Example: entries (1, 0), (4, 7) and log end 10 mean: epoch 1 wrote 0-6, epoch 4 wrote 7-9. The answer for epoch 3 is (1,
7).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from liftpy.core.base.invariants import check

NO_EPOCH = 0


class EpochCache:
    """The LeaderEpochs of one log, with the offset of the first record of each. The caller tracks the bounds of the log."""

    __slots__ = ("_epochs", "_starts", "before_start")

    def __init__(self, entries: Iterable[tuple[int, int]] = (), before_start: int = NO_EPOCH) -> None:
        self.before_start = before_start
        """LeaderEpoch of the newest record below the log start, which retention has deleted. 0: not known."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(LeaderEpoch, offset of its first record), ascending."""
        # Not strict: a checkpoint in another thread may read between the two appends of ``assign``. It then gets the shorter list.
        return tuple(zip(self._epochs, self._starts, strict=False))

    @property
    def latest_epoch(self) -> int:
        """LeaderEpoch of the newest record, 0 when the log is empty."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def position_epoch(self) -> int:
        """LeaderEpoch of the newest record. If the log is empty, that of the newest deleted record."""
        return self.latest_epoch or self.before_start

    def assign(self, epoch: int, base_offset: int) -> None:
        """Record that a batch of the LeaderEpoch ``epoch`` was appended at ``base_offset``. Only this method adds entries [D13]."""
        if epoch == self.latest_epoch:
            return
        check(epoch > self.latest_epoch, "D14", "epoch", epoch, "after", self.latest_epoch, "at", base_offset)
        self._epochs.append(epoch)
        self._starts.append(base_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the LeaderEpoch of the record at ``offset``. 0: it is below the first entry. The caller checks the log end."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (largest epoch in the log that is not above ``epoch``, offset after its last record).

        If there is no such epoch, return (0, offset of the first entry). ``log_end_offset``: exclusive.
        """
        index = bisect_right(self._epochs, epoch)
        end_offset = self._starts[index] if index < len(self._starts) else log_end_offset
        return (self._epochs[index - 1] if index else NO_EPOCH), end_offset

    def truncate(self, end_offset: int) -> None:
        """Remove the epochs whose records are all at ``end_offset`` or above, because the log was truncated there."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def drop_prefix(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove the epochs whose records are all below the new log start ``log_start_offset`` (inclusive).

        An epoch with records on both sides now begins at the log start. ``log_end_offset``: exclusive.
        """
        self.before_start = self.epoch_at(log_start_offset - 1) or self.before_start
        if log_start_offset >= log_end_offset:
            self._starts.clear()
            self._epochs.clear()
            return
        first = max(bisect_right(self._starts, log_start_offset) - 1, 0)
        del self._starts[:first], self._epochs[:first]
        if self._starts:
            self._starts[0] = max(self._starts[0], log_start_offset)
