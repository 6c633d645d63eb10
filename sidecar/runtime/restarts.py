"""Decides which failures a node heals by a restart, and the wait before it. Temporary disk errors need no operator [L11].

After a full disk or a failed write, a process no longer trusts its files. The next process reads the data and writes it
again. A failure that no start can heal (damage, another format version, a locked directory) ends the node.

The module also ends a process whose stop hangs.
"""

from __future__ import annotations

import errno
import logging
import os
import threading

from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    IncompatibleVersionError,
    StorageError,
    UnknownFormatError,
    WrongDataDirectoryError,
)

EXIT_NO_RESTART = 78
"""Exit code of a node that must not restart before an operator has checked it.

Its directory is incomplete or wrong, or the cluster's feature level is not supported.
"""
EXIT_TO_REPAIR = 75
"""Exit code of a node that must be started again."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CALM_S = 60.0
"""Uptime in seconds after which earlier failures of a node no longer count."""
_DISK = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM}
_FINAL = (CorruptionError, UnknownFormatError, DataDirectoryLockedError)


def prevents_restart(error: BaseException | None) -> bool:
    """Return whether the node must not restart after ``error``, because another start would fail or do harm."""
    return isinstance(error, (CorruptionError, UnknownFormatError, WrongDataDirectoryError, IncompatibleVersionError))


def momentary(error: BaseException | None) -> bool:
    """Return whether ``error`` may be temporary, such as a full disk, so that the next start may succeed."""
    if isinstance(error, OSError):
        return error.errno in _DISK
    if not isinstance(error, StorageError) or isinstance(error, _FINAL):
        return False
    return error.__cause__ is None or isinstance(error.__cause__, OSError) or momentary(error.__cause__)


def count_restart(before: int, ran_s: float) -> int:
    """Return the number of consecutive restarts, including this one."""
    return 1 if ran_s >= _CALM_S else before + 1


def pause_s(in_a_row: int) -> float:
    """Return the time to wait before a restart, in seconds. ``in_a_row``: number of consecutive restarts, including this one."""
    return doubled_wait_s(in_a_row, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)


logger = logging.getLogger("liftpy.node")

_deadlines: list[threading.Timer] = []


def exit_after(seconds: float) -> None:
    """End the process by force after ``seconds`` if its stop is not complete by then."""

    def leave() -> None:
        logger.critical("stop not complete seconds=%g: forcing exit", seconds)
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    _deadlines.append(timer)


def cancel_exit() -> None:
    """Cancel all timers of ``exit_after``, because the stop is complete and this process starts the node again."""
    while _deadlines:
        _deadlines.pop().cancel()
