"""Runs one replica: events in, effects carried out in order, the synchronous part of one step before the next event.

``feed`` may be called from anywhere on the loop, also while effects are carried out: then the event waits in a queue. The
queue is bounded by construction (only effects of the running step add to it), and checked all the same.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from liftpy.errors import InvariantError
from liftpy.ids import PartitionKey
from liftpy.replica.effects import Effect
from liftpy.replica.events import Event
from liftpy.replica.replica import Replica
from sidecar import clock

logger = logging.getLogger("liftpy.driver")

MAX_QUEUE = 65_536


class Driver:
    """One replica and its queue of events. ``fatal`` stops the process."""

    def __init__(self, key: PartitionKey, replica: Replica, fatal: Callable[[Exception], None]) -> None:
        self.key = key
        self.replica = replica
        self.execute: Callable[[Effect], None] = _nobody
        """Set before the first event; the executor needs the driver's ``feed``, so the driver comes first."""
        self._fatal = fatal
        self._queue: deque[Event] = deque()
        self._running = False
        self._stopped = False
        self._debug = logger.isEnabledFor(logging.DEBUG)

    def feed(self, event: Event) -> None:
        """Take one event, now or after the running step."""
        if self._stopped:
            return
        self._queue.append(event)
        if self._running:
            if len(self._queue) > MAX_QUEUE:
                self._stop_for(InvariantError(f"{self.key}: a step gives rise to more than {MAX_QUEUE} events"))
            return
        self._running = True
        try:
            queue, step, execute = self._queue, self.replica.step, self.execute
            while queue:
                effects = step(event := queue.popleft(), clock.now_ns())
                if self._debug:
                    logger.debug("%s: %s -> %s", self.key, event, effects)
                for effect in effects:
                    execute(effect)
        except Exception as error:
            self._stop_for(error)
        finally:
            self._running = False

    def _stop_for(self, error: Exception) -> None:
        """Expected conditions are events; an exception here is a bug, and going on might break a promise."""
        self._stopped = True
        self._queue.clear()
        logger.critical("%s: the replica is stopped: %s", self.key, error, exc_info=error)
        self._fatal(error)

    def stop(self) -> None:
        """Take no more events."""
        self._stopped = True
        self._queue.clear()


def _nobody(effect: Effect) -> None:
    raise InvariantError(f"nobody carries out {effect}")
