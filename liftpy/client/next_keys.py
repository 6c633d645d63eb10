"""The keys of the records that a worker of an ordered queue may be given next: read ahead of taking, as digests."""

from __future__ import annotations

from liftpy.client.positions import Bounds
from liftpy.client.queue_log import QueueLog
from liftpy.group import limits
from liftpy.group.key_order import NO_KEY, key_digest

_AHEAD = 256
"""Records whose keys are told beyond those that are wanted: what is of a busy key is passed over."""


class NextKeys:
    """``digests`` of the keys from offset ``start`` on, one for each offset. At most ``MAX_KEYS`` of 8 bytes."""

    def __init__(self) -> None:
        self.start = 0
        self.digests: list[int] = []
        self._known = False
        """Whether ``start`` is where new records begin, as the coordinator has said."""

    def begin(self, offset: int) -> bool:
        """New records begin at ``offset``; whether that is news."""
        moved = not self._known or offset != self.start
        self.digests = self.digests[offset - self.start :] if offset >= self.start else []
        self.start, self._known = offset, True
        return moved

    async def read_on(self, log: QueueLog, bounds: Bounds, wanted: int) -> None:
        """Read as many more as a take of ``wanted`` may need. Raises what reading raises."""
        if not self._known:
            return
        self.begin(max(self.start, bounds.log_start_offset))
        end = min(bounds.end_offset, self.start + min(limits.MAX_KEYS, wanted + _AHEAD))
        at = self.start + len(self.digests)
        if at >= end:
            return
        for one in await log.held(at, end):
            for offset, name in one.keys(at, end):
                self._fill(offset)
                self.digests.append(key_digest(name))
        self._fill(end)

    def _fill(self, end: int) -> None:
        """What compaction has taken below ``end`` has no key."""
        self.digests += [NO_KEY] * (end - self.start - len(self.digests))
