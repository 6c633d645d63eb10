"""Runs one replica: feeds events and carries out their effects, one step after the other.

``feed`` may be called anywhere on the event loop. During a step, and while the replica waits for the disk, events wait
in a queue. The driver keeps the last steps for error reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication.effects import ConfirmQuiescence, Effect, Quiesce, SetDeadline
from liftpy.core.replication.events import (
    DeadlineReached,
    Event,
    LeaseChanged,
    NoticeReceived,
    NotificationReceived,
    QuiescentFetchReceived,
)
from liftpy.core.replication.replica import Replica
from liftpy.errors import InvariantError
from sidecar.runtime import clock

logger = logging.getLogger("liftpy.driver")

MAX_QUEUE = 65_536
RECENT_STEPS = 64
"""Number of steps that one partition keeps for error reports, about 50 KB for a busy partition."""
RECENT_STEPS_OF_NODE = 8192
"""Maximum number of stored steps over all partitions of a process. Above it, each partition stores fewer steps."""
_FEWEST_STEPS = 8
"""Number of steps that a partition always keeps. With more than 1,024 partitions, they are more than RECENT_STEPS_OF_NODE."""
_STEPS_OF_IDLE = 2
"""Number of steps that an idle partition keeps. A node may have thousands of idle partitions."""
_MOST_OF_A_STEP = 500
"""Maximum length of a printed step, in characters."""

_NEWEST_COUNTS = (LeaseChanged, NoticeReceived, NotificationReceived)
"""Events that arrive regularly. A newer waiting event of the same kind replaces an older one."""
_ROUTINE, _LOOKS = (
    frozenset({LeaseChanged, DeadlineReached, QuiescentFetchReceived}),
    frozenset({SetDeadline, ConfirmQuiescence}),
)
"""Events of idle partitions. If the only effects of such an event are in ``_LOOKS``, its step changes nothing.

It changes no metric, and an error report does not need it.
"""

Step = tuple[int, Event, list[Effect]]
"""One step of a replica: (monotonic time in nanoseconds, event, effects)."""


class _StoryLimit:
    """Limit of the steps that one driver keeps. All drivers of the process share it.

    ``steps``: the limit. It was computed when a driver was last created.
    """

    def __init__(self) -> None:
        self._drivers: WeakSet[ReplicaDriver] = WeakSet()
        self.steps = RECENT_STEPS

    def add(self, driver: ReplicaDriver) -> None:
        """Lower the limit for all drivers, because there is another one. Raise it if drivers are gone."""
        self._drivers.add(driver)
        self.steps = min(RECENT_STEPS, max(RECENT_STEPS_OF_NODE // len(self._drivers), _FEWEST_STEPS))


_story_limit = _StoryLimit()


class DrivenReplica(Protocol):
    """Interface of a replica for the driver: it gets events and returns effects."""

    def step(self, event: Event, now_ns: int) -> list[Effect]:
        """Process one event at ``now_ns`` (monotonic) and return the effects to carry out, in order."""
        ...


class ReplicaDriver:
    """Feeds events to one replica and carries out its effects.

    ``fatal``: called with the exception after a bug. It stops the process.
    """

    __slots__ = (
        "__weakref__", "_fatal", "_held", "_queue", "_running", "_stopped", "execute", "key", "recent_steps", "replica",
        "step_over", "touched",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, replica: Replica, fatal: Callable[[Exception], None]) -> None:
        self.key = key
        self.replica: DrivenReplica = replica
        """Object that gets the events: the replica, or the tracer in front of it."""
        self.execute: Callable[[Effect], None] = _fail_unhandled
        """Function that carries out one effect. It is set before the first event."""
        self.step_over: Callable[[], None] = _do_nothing
        """Callback after all effects of a step were carried out."""
        self.touched: Callable[[], None] = _do_nothing
        """Callback after a step that may have changed the metrics."""
        self._fatal = fatal
        self._queue: list[Event] = []
        """Waiting events. It is a list, because it is nearly always empty, and an empty deque needs 760 bytes."""
        self._running = False
        self._stopped = False
        self._held = False
        _story_limit.add(self)
        self.recent_steps: list[Step] = []
        """The last steps, for error reports. Steps that changed nothing are left out."""

    def feed(self, event: Event) -> None:
        """Pass an event to the replica now. During a step or after ``hold``, queue the event."""
        if self._stopped:
            return
        if self._held and isinstance(event, _NEWEST_COUNTS):
            self._queue = [waiting for waiting in self._queue if type(waiting) is not type(event)]
        self._queue.append(event)
        if self._running or self._held:
            if len(self._queue) > MAX_QUEUE:
                self._stop_for(
                    InvariantError(
                        f"Internal error: one step of {self.key} creates more than {MAX_QUEUE} events. Please report it."
                    )
                )
            return
        self._run()

    def hold(self) -> None:
        """Queue all further events until ``go_on``, because an effect is still slow work. The running step is finished first."""
        self._held = True

    def go_on(self, work: Callable[[], None]) -> None:
        """Run ``work``, the slow part of an effect, and end ``hold``: process the waiting events. After ``stop``, do nothing."""
        self._held = False
        if not self._stopped:
            self._run(work)

    def _run(self, work: Callable[[], None] | None = None) -> None:
        self._running = True
        event: Event | None = None
        try:
            if work is not None:
                work()
            queue, step, execute, step_over = self._queue, self.replica.step, self.execute, self.step_over
            recent_steps = self.recent_steps
            while queue and not self._held:
                event, now_ns = queue.pop(0), clock.now_ns()
                effects = step(event, now_ns)
                if type(event) not in _ROUTINE or any(type(effect) not in _LOOKS for effect in effects):
                    recent_steps.append((now_ns, event, effects))
                    if len(recent_steps) > _story_limit.steps:
                        del recent_steps[: -_story_limit.steps]
                    if Quiesce in map(type, effects):  # the follower is idle
                        del recent_steps[:-_STEPS_OF_IDLE]
                    self.touched()
                elif type(event) is QuiescentFetchReceived:  # a follower of this leader is idle
                    del recent_steps[:-_STEPS_OF_IDLE]
                if logger.isEnabledFor(logging.DEBUG):  # the level may change
                    logger.debug("replica step partition=%s event=%s effects=%s", self.key, event, effects)
                for effect in effects:
                    execute(effect)
                if effects:
                    step_over()
        except Exception as error:
            self._stop_for(error, event)
        finally:
            self._running = False

    def _stop_for(self, error: Exception, event: Event | None = None) -> None:
        """Stop the process because of an unexpected ``error`` while ``event`` was processed.

        Expected conditions are events, so an exception is a bug. Continuing could violate a guarantee.
        """
        self._stopped = True
        self._queue.clear()
        logger.critical(
            "replica stopped partition=%s error=%s\n%s", self.key, error, self.last_steps_text(event), exc_info=error
        )
        self._fatal(error)

    def last_steps_text(self, event: Event | None = None) -> str:
        """Return the last steps as text for an error report, one line per step, the newest last.

        ``event``: the event that is being processed. None: none is.
        """
        now_ns = clock.now_ns()
        lines = [
            f"{(at_ns - now_ns) / 1e9:9.3f} s  {past_event} -> {effects}"[:_MOST_OF_A_STEP]
            for at_ns, past_event, effects in self.recent_steps
        ]
        if event is not None and not (self.recent_steps and self.recent_steps[-1][1] is event):
            lines.append(f"      now    {event}"[:_MOST_OF_A_STEP])
        return "\n".join(lines)

    def stop(self) -> None:
        """Stop processing events. Later events are dropped."""
        self._stopped = True
        self._queue.clear()


def _do_nothing() -> None: ...


def _fail_unhandled(effect: Effect) -> None:
    raise InvariantError(f"Internal error: no method carries out {effect}. Please report it.")
