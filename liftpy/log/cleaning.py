"""Cleaning: when a run of compaction is worth it, and which purges a log is done with. Pure.

A run reads all sealed, committed segments, so it comes when enough of them is new, or when a purge (``liftpy/purge.py``) waits that it
can finish: all that lies below the purge's end is sealed, flushed and committed, and nothing of it stays any more because it may have
a message id. What a run kept for its message id alone goes with a run when the dedup window is over, also in a stream that nobody
publishes to any more.

A purge that is done is undone where the log is cut below its end, or begins afresh: what comes in its place may be from a replica
that is not done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.dataclass import dataclass
from liftpy.log.compaction import Compaction
from liftpy.log.segment import Segment
from liftpy.log.storage import Storage
from liftpy.partition import PartitionState, Purge


@dataclass(slots=True)
class Cleaning:
    """Of one log."""

    purges: tuple[Purge, ...] = ()
    """As the metadata has them."""
    purged: set[int] = field(default_factory=set)
    """Numbers of those that this log is done with."""
    _seen_end_offset: int = 0
    """Exclusive: what a run has looked at since the log was opened."""
    _ids_held_until_ns: int = 0
    """Wall clock: records that are superseded stay until then for their message ids; 0: none does."""
    _lacks_replicas: bool = False
    """A replica is copied, or is not in the ISR."""
    _not_before_ns: dict[int, int] = field(default_factory=dict)
    """By number: wall clock; records of it stay until then for their message ids."""

    def told(self, state: PartitionState) -> bool:
        """What the metadata says; whether a purge is new."""
        before, self.purges = self.purges, state.purges
        self._lacks_replicas = bool(state.joining) or not set(state.replicas) <= set(state.isr)
        numbers = {purge.number for purge in self.purges}
        self.purged &= numbers
        self._not_before_ns = {number: at_ns for number, at_ns in self._not_before_ns.items() if number in numbers}
        return any(purge not in before for purge in self.purges)

    def cut(self, end_offset: int) -> None:
        """The log ends at ``end_offset`` (exclusive) now; 0: it begins afresh."""
        self.purged -= {purge.number for purge in self.purges if purge.end_offset > end_offset}
        self._seen_end_offset = min(self._seen_end_offset, end_offset)

    def passed(self, log_start_offset: int, committed_end_offset: int) -> None:
        """The log begins at ``log_start_offset``, and is committed below ``committed_end_offset`` (exclusive): purges of what lies
        before its start are done."""
        for purge in self.purges:
            if purge.end_offset <= min(log_start_offset, committed_end_offset):
                self.purged.add(purge.number)

    def wants_seal(self, active: Segment, committed_end_offset: int) -> bool:
        """Whether the active segment holds what a purge gives up, as far as its place tells."""
        return bool(active.size_bytes) and any(
            active.base_offset < purge.end_offset <= committed_end_offset for purge in self._waiting()
        )

    def run_over(
        self,
        storage: Storage,
        config: StreamConfig,
        inputs: Sequence[Segment],
        newest_ns: int,
        now_wall_ns: int,
        min_dirty_ratio: float,
    ) -> Compaction | None:
        """A run over those of ``inputs`` (sealed, flushed, committed) that it has to look at now; None: it is not worth it.
        ``newest_ns``: timestamp of the log's newest batch."""
        worth = self._worth(inputs, now_wall_ns, min_dirty_ratio if config.is_cleaned else None)
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
            keeps_deletes_longer=self._lacks_replicas,
        )

    def _worth(self, inputs: Sequence[Segment], now_wall_ns: int, min_dirty_ratio: float | None) -> Sequence[Segment]:
        """``min_dirty_ratio``: so much of their bytes has to be new; None: nothing goes but what purges give up."""
        if not inputs:
            return ()
        due = [purge for purge in self._waiting() if self._not_before_ns.get(purge.number, 0) <= now_wall_ns]
        ends = [purge.end_offset for purge in due if purge.end_offset <= inputs[-1].next_offset]
        if min_dirty_ratio is None:
            return tuple(segment for segment in inputs if segment.base_offset < max(ends, default=0))
        if 0 < self._ids_held_until_ns < now_wall_ns:
            return inputs
        dirty_bytes = sum(s.size_bytes for s in inputs if s.next_offset > self._seen_end_offset)
        least_bytes = min_dirty_ratio * sum(s.size_bytes for s in inputs)
        return inputs if ends or (dirty_bytes >= least_bytes and (dirty_bytes or not min_dirty_ratio)) else ()

    def ran(self, run: Compaction) -> None:
        """A run is over, and its outputs are in their places."""
        end_offset = run.covered[-1].next_offset if run.covered else 0
        self._seen_end_offset = max(self._seen_end_offset, run.inputs[-1].next_offset)
        self._ids_held_until_ns = run.rules.ids_held_until_ns
        for purge in run.purges:
            if purge.end_offset > end_offset or purge not in self.purges:
                continue
            if purge.number in run.rules.held_until_ns:
                self._not_before_ns[purge.number] = run.rules.held_until_ns[purge.number]
            else:
                self.purged.add(purge.number)

    def _waiting(self) -> list[Purge]:
        return [purge for purge in self.purges if purge.number not in self.purged]
