"""Health of a node for the status port, NATS and a supervisor, and the delay of its event loop.

``liftpy/core/observe/node_health.py`` has the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.observe.node_health import Check, HealthInput, ReplicaSyncCheck, live, ready
from sidecar.runtime.logs import LOGS
from sidecar.runtime.timers import until_next_s

ASKED = b'{"health": true}'
"""Payload of a health question on ``<ns>.status.<node>``."""
EVERY_S = 0.1
IDLE_EVERY_S = 1.0
"""Interval of the measurements while the node holds no publishes and no reads, in seconds."""


class Health:
    """Runs the health checks of a node.

    Args:
        state: Returns the current state of the node for the checks.
        replicas: Returns the replicas without learners, and whether each is in sync.
        elsewhere: Returns the reason why replicas in other processes of the node are not in sync. '': they are.
        unknown_streams: Returns the directories of streams that the cluster does not know. They do not make a node
            unhealthy.
    """

    def __init__(
        self,
        state: Callable[[], HealthInput],
        replicas: Callable[[], Iterable[tuple[PartitionKey, bool]]],
        elsewhere: Callable[[], str] = lambda: "",
        unknown_streams: Callable[[], list[str]] = list,
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._elsewhere = elsewhere
        self._unknown_streams = unknown_streams
        self._synced = ReplicaSyncCheck()

    def live(self) -> list[Check]:
        """Run the checks whether this process should keep running, and return their results."""
        return live(self._state())

    def ready(self) -> list[Check]:
        """Run the checks whether the node takes part in the cluster, and return their results."""
        return ready(self._state())

    def ready_checks(self) -> list[Check]:
        """Run the ready checks, and the check whether all replicas were in sync at least once since the start. Return their results."""
        state = self._state()
        own = self._synced.update(self._replicas(), opened=state.opened)
        return [*ready(state), own if not own.ok else Check("synced", self._elsewhere())]

    def report(self) -> dict[str, Any]:
        results = {"live": self.live(), "ready": self.ready(), "synced": self.ready_checks()[-1:]}
        says = {name: all(check.ok for check in checks) for name, checks in results.items()}
        says["synced"] = says["synced"] and says["ready"]
        checks = {check.name: check.why for rows in results.values() for check in rows}
        return {"health": says, "checks": checks, "unknown_streams": self._unknown_streams()}


class LoopWatch:
    """Measures the delay of the event loop with a timer, and adds it to a histogram of ``instruments``.

    The timer also counts changes of the metadata leader, and logs the numbers of suppressed log lines.

    ``leader``: returns the id of the metadata leader, '' for none. ``on_tick``: called at each measurement and at each
    ``heartbeat_answered``. It returns whether the node is idle.
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
        self._is_idle = False

    def start(self) -> None:
        self._wait(asyncio.get_running_loop(), EVERY_S)

    def _wait(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._due = loop.time() + every_s
        self._timer = loop.call_at(self._due, self._measure_turn, loop)

    def _measure_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._instruments.loop_lag.observe(max(0.0, loop.time() - self._due))
        LOGS.suppression.write_counts()
        self._is_idle = self._on_tick()
        leader = self._leader_now()
        if leader and leader != self._leader:
            self._instruments.leader_changes += bool(self._leader)
            self._leader = leader
        self._wait(loop, until_next_s(IDLE_EVERY_S) if self._is_idle else EVERY_S)

    def heartbeat_answered(self) -> None:
        """Measure at the shorter interval from now on if the node is no longer idle. The node calls it, because it is awake then."""
        if self._is_idle and self._timer is not None and not self._on_tick():
            self._is_idle = False
            self._timer.cancel()
            self._wait(asyncio.get_running_loop(), EVERY_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
