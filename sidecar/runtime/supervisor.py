"""Reports the state of the node to systemd or another supervisor: ready, alive, progress of the start, stopping.

Each report is a datagram to the socket of ``NOTIFY_SOCKET``. During the recovery of logs the reports contain the progress,
and each step extends the time limit. A recovery without progress is not extended. After that, the node reports three times
in each watchdog interval that it is live.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from liftpy.core.observe.node_health import Check
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.node")

_CHECK_INTERVAL_S = 0.25
_EXTEND_TIMEOUT_S = 30
"""Extension of the time limit in seconds for each step of progress before the node is ready."""


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
        barked_at = 0.0
        while True:
            if not self._is_ready:
                self._report_start(ready(), doing())
            now = time.monotonic()
            if self._watchdog_s and now - barked_at >= self._watchdog_s / 3 and all(check.ok for check in live()):
                barked_at = now
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
