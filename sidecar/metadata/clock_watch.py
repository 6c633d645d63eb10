"""Compares the wall clock of this node with those of other nodes, for ``liftpy/core/base/clock_trust.py``.

It uses the probe that nodes send to see whether another node is connected. Each process of a node compares by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

import nats.errors

from liftpy.config import NS_PER_S
from liftpy.core.base.clock_trust import ASK_EVERY_S, NO_AGE_NS, SLOW_NS, ClockTrust
from liftpy.core.wire.frames import decode_presence
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.cancellation import end_tasks
from sidecar.metadata.group import MetadataGroup
from sidecar.runtime import clock
from sidecar.runtime.tasks import spawn
from sidecar.transport.connection import BusConnection
from sidecar.transport.liveness import QUESTION

logger = logging.getLogger("liftpy.node")

_CHECK_EVERY_NS = NS_PER_S
_UNSURE_EVERY_S = 1.0
"""Interval of comparisons while this clock is in doubt and other nodes have not told the right time, in seconds."""
_PATIENCE_S = 60.0
"""Time for which the clock must be untrusted before it is reported, in seconds. Other nodes may not have started yet."""
CLOCK_WAITS = "clock_skew_unknown"


class ClockWatch:
    """Compares the wall clock of this node with those of other nodes, and decides whether to trust it.

    ``group``: metadata group, whose image shows the live nodes.
    """

    def __init__(
        self, node_id: str, bus: BusConnection, subjects: Subjects, group: MetadataGroup, counters: Counter[str]
    ) -> None:
        self.trust = ClockTrust(node_id)
        self._bus = bus
        self._subjects = subjects
        self._group = group
        self._counters = counters
        self._began = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._seen = (0, -_CHECK_EVERY_NS, NO_AGE_NS)
        """Last check: (offset of the wall clock, time of the check, its result)."""
        self._logged = False

    def start(self) -> None:
        self._task = spawn(self._run(), "checking the clocks of other nodes", endless=True)

    def time_of_age_ns(self) -> int:
        """Wall clock time for computing the age of records, in nanoseconds.

        It is 0 while the clock is not trusted. Then no record counts as too old.
        """
        wall_ns, now_ns = time.time_ns(), clock.now_ns()
        age_time_ns = self._check_clock(wall_ns, now_ns)
        self._counters[CLOCK_WAITS] += age_time_ns == NO_AGE_NS
        return wall_ns if age_time_ns != NO_AGE_NS else NO_AGE_NS

    def stamp_ns(self) -> int:
        """Return the timestamp for records that this node stores as leader.

        If this clock is not trusted, it is the time on which other nodes agree, or the time that this node trusted last.
        """
        wall_ns, now_ns = time.time_ns(), clock.now_ns()
        self._check_clock(wall_ns, now_ns)
        return self.trust.stamp_ns(wall_ns, now_ns)

    def _check_clock(self, wall_ns: int, now_ns: int) -> int:
        offset_ns, at_ns, age_time_ns = self._seen
        if abs(wall_ns - now_ns - offset_ns) > NS_PER_S or now_ns - at_ns >= _CHECK_EVERY_NS:
            return self._compare(wall_ns, now_ns)
        return age_time_ns

    def check(self) -> ClockTrust:
        """Compare the clocks if the last comparison is too old. Return the result: whether this clock is trusted, and why not."""
        self._compare(time.time_ns(), clock.now_ns())
        return self.trust

    def _compare(self, wall_ns: int, now_ns: int) -> int:
        age_time_ns = self.trust.time_of_age_ns(wall_ns, now_ns, self._nodes())
        self._seen = wall_ns - now_ns, now_ns, age_time_ns
        self._log_change()
        return age_time_ns

    def _log_change(self) -> None:
        why = self.trust.why
        if not why and self._logged:
            logger.info("wall clock trusted: resuming age-based retention")
        elif why and not self._logged and (self.trust.is_wrong or time.monotonic() - self._began > _PATIENCE_S):
            logger.warning("wall clock not trusted reason=%s: pausing age-based retention", why)
        else:
            return
        self._logged = bool(why)

    def _nodes(self) -> dict[str, bool]:
        return {node_id: not node.fenced for node_id, node in self._group.image.nodes.items()}

    async def _run(self) -> None:
        while True:
            await asyncio.gather(*(self._ask(node) for node in self.trust.peers(self._nodes())))
            trust = self.check()
            await asyncio.sleep(_UNSURE_EVERY_S if trust.needs_answers else ASK_EVERY_S)

    async def _ask(self, node: str) -> None:
        request_ns = clock.now_ns()
        try:
            answer = await self._bus.request(self._subjects.status(node), QUESTION, timeout=SLOW_NS / NS_PER_S)
        except (nats.errors.Error, OSError, TimeoutError):
            return
        self.trust.record_answer(node, decode_presence(answer.data), request_ns, clock.now_ns())

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])
