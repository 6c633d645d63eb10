"""Decides which failures a node heals by a restart, and the wait before it. Temporary disk errors need no operator [L11].

After a full disk or a failed write, a process no longer trusts its files. The next process reads the data and writes it
again. A failure that no start can heal (damage, another format version, a locked directory) ends the node.

The module also ends a process whose stop hangs, and reports the state of the node to systemd or another supervisor. Each
report is a datagram to the socket of ``NOTIFY_SOCKET``. During the recovery of logs the reports contain the progress, and
each step extends the time limit. After that, the node reports three times in each watchdog interval that it is live.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.observe.node_health import Check
from liftpy.errors import (
    CorruptionError,
    DataDirectoryLockedError,
    IncompatibleVersionError,
    NodeRemovedError,
    StorageError,
    UnknownFormatError,
    UnusableDataDirectoryError,
    WrongDataDirectoryError,
)
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.node")

EXIT_NO_RESTART = 78
"""Exit code of a node that must not restart before an operator has checked it.

Its directory is incomplete or wrong, the cluster's feature level is not supported, or an operator has removed the node.
"""
EXIT_TO_REPAIR = 75
"""Exit code of a node that must be started again."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CALM_S = 60.0
"""Uptime in seconds after which earlier failures of a node no longer count."""
_DISK = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM}
_FINAL = (CorruptionError, UnknownFormatError, DataDirectoryLockedError, UnusableDataDirectoryError)
_FOR_OPERATORS = (
    CorruptionError, UnknownFormatError, WrongDataDirectoryError, UnusableDataDirectoryError, IncompatibleVersionError,
    NodeRemovedError,
)  # fmt: skip
_deadlines: list[threading.Timer] = []
_CHECK_INTERVAL_S = 0.25
_EXTEND_TIMEOUT_S = 30
"""Extension of the time limit in seconds for each step of progress before the node is ready."""


def prevents_restart(error: BaseException | None) -> bool:
    """Return whether the node must not restart after ``error``, because another start would fail, do harm, or be unwanted."""
    return isinstance(error, _FOR_OPERATORS)


def forced_exit_code(error: BaseException) -> int:
    """Return the exit code of a process that is ended by force, because its stop after ``error`` hangs."""
    return EXIT_NO_RESTART if prevents_restart(error) else 1


def is_temporary(error: BaseException | None) -> bool:
    """Return whether ``error`` may be temporary, such as a full disk, so that the next start may succeed."""
    if isinstance(error, OSError):
        return error.errno in _DISK
    if not isinstance(error, StorageError) or isinstance(error, _FINAL):
        return False
    return error.__cause__ is None or isinstance(error.__cause__, OSError) or is_temporary(error.__cause__)


def is_disk_error(error: BaseException) -> bool:
    """Return whether ``error`` may be temporary, and no file is missing or forbidden."""
    return is_temporary(error) and (not isinstance(error.__cause__, OSError) or error.__cause__.errno in _DISK)


def count_restart(before: int, ran_s: float) -> int:
    """Return the number of consecutive restarts, including this one."""
    return 1 if ran_s >= _CALM_S else before + 1


def pause_s(in_a_row: int) -> float:
    """Return the time to wait before a restart, in seconds. ``in_a_row``: number of consecutive restarts, including this one."""
    return doubled_wait_s(in_a_row, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)


def exit_after(seconds: float, code: int = 1) -> None:
    """End the process by force with exit code ``code`` after ``seconds`` if its stop is not complete by then."""

    def leave() -> None:
        logger.critical("stop not complete seconds=%g: forcing exit", seconds)
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    _deadlines.append(timer)


def cancel_exit() -> None:
    """Cancel all timers of ``exit_after``, because the stop is complete and this process starts the node again."""
    while _deadlines:
        _deadlines.pop().cancel()


class RunningNode(ABC):
    """The process of a node, as its parts see it: they end it after an error."""

    @abstractmethod
    def fatal(self, error: Exception) -> None:
        """Stop the process because of a fatal ``error``."""

    @abstractmethod
    def repair(self, reason: str) -> None:
        """Restart the node, because a log needs recovery. ``reason``: the damaged log."""


class Supervisor:
    """Sends the state of the node to its supervisor, such as systemd.

    ``address``: socket of the supervisor. '': there is none. ``watchdog_s``: watchdog interval in seconds, 0: none.
    """

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._task: asyncio.Task[None] | None = None
        self._last_status = ""
        self._is_ready = False

    def notify(self, *words: str) -> None:
        """Send assignments such as ``READY=1`` to the supervisor. If that fails, only a warning is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as there:
                there.sendto("\n".join(words).encode(), self._address)
        except OSError as error:
            logger.warning("supervisor not notified state=%s error=%s: continuing", words[0], error)

    def start(self, live: Callable[[], list[Check]], ready: Callable[[], list[Check]], doing: Callable[[], str]) -> None:
        """Start the task that reports the progress of the start, readiness and liveness to the supervisor.

        ``live``, ``ready``: return the failed health checks. ``doing``: returns the current step of the start. A changed text counts as
        progress.
        """
        if self._address:
            self._task = spawn(self._run(live, ready, doing), "notifying the supervisor", endless=True)

    async def _run(self, live: Callable[[], list[Check]], ready: Callable[[], list[Check]], doing: Callable[[], str]) -> None:
        last_ping_s = 0.0
        while True:
            if not self._is_ready:
                self._report_start(ready(), doing())
            now = time.monotonic()
            if self._watchdog_s and now - last_ping_s >= self._watchdog_s / 3 and all(check.ok for check in live()):
                last_ping_s = now
                self.notify("WATCHDOG=1")
            await asyncio.sleep(min(_CHECK_INTERVAL_S, self._watchdog_s / 6) if self._watchdog_s else _CHECK_INTERVAL_S)

    def _report_start(self, checks: list[Check], doing: str) -> None:
        if all(check.ok for check in checks):
            self._is_ready = True
            self.notify("READY=1", "STATUS=ready")
            return
        status = doing or next(f"{check.name}: {check.why}" for check in checks if check.why)
        if status != self._last_status:
            self._last_status = status
            self.notify(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={_EXTEND_TIMEOUT_S * 1_000_000}")

    def reloading(self) -> None:
        """Tell the supervisor that the node reads its settings again. Call ``reloaded`` afterwards.

        A node that starts or stops sends neither: the end of a reload would report it as ready.
        """
        if self._is_ready:
            self.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Tell the supervisor that a reload has ended, successfully or not."""
        if self._is_ready:
            self.notify("READY=1", "STATUS=ready")

    def stopping(self) -> None:
        self._is_ready = False
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.notify("STOPPING=1", "STATUS=stopping")
