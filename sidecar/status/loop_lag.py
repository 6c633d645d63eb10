"""Measures the delay of the node's event loop with a timer, ten times a second, or four times a second in an idle node.

The timer also checks which controller leads the metadata group, counts the changes, and logs the numbers of suppressed
log lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftpy.core.base.instruments import Instruments
from sidecar.runtime.logs import LOGS

EVERY_S = 0.1
IDLE_EVERY_S = 0.25
"""Interval of the measurements while the node holds no publishes and no reads, in seconds."""


class LoopWatch:
    """Measures the delay of the event loop with a timer, and adds it to a histogram of ``instruments``.

    ``leader``: returns the id of the metadata leader, '' for none. ``on_tick``: called at each measurement. It returns
    whether the node is idle.
    """

    def __init__(
        self, instruments: Instruments, leader: Callable[[], str], on_tick: Callable[[], bool] = lambda: False
    ) -> None:
        self._on_tick = on_tick
        self._instruments = instruments
        self._leader_now = leader
        self._leader = ""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._wait(asyncio.get_running_loop(), EVERY_S)

    def _wait(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._due = loop.time() + every_s
        self._timer = loop.call_at(self._due, self._measure_turn, loop)

    def _measure_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._instruments.loop_lag.observe(max(0.0, loop.time() - self._due))
        LOGS.suppression.write_counts()
        is_idle = self._on_tick()
        leader = self._leader_now()
        if leader and leader != self._leader:
            self._instruments.leader_changes += bool(self._leader)
            self._leader = leader
        self._wait(loop, IDLE_EVERY_S if is_idle else EVERY_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
