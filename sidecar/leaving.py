"""Leaving a process whose stop hangs, so that whoever stops a node may rely on it."""

from __future__ import annotations

import logging
import os
import threading

logger = logging.getLogger("liftpy.node")

_deadlines: list[threading.Timer] = []


def leave_the_process_in(seconds: float) -> None:
    """Whatever hangs, the process is gone then: a supervisor must be able to rely on SIGTERM. Ends with the process."""

    def leave() -> None:
        logger.critical("the stop takes longer than %g s: leaving without it", seconds)
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    _deadlines.append(timer)


def stay_in_the_process() -> None:
    """The stop is over and the same process starts a node again: it may pause longer than a stop may take."""
    while _deadlines:
        _deadlines.pop().cancel()
