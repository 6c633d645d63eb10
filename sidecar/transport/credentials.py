"""NATS credentials of all connections of a node, and their change while the node runs.

``change`` makes all connections reconnect with new credentials. ``prove`` first tests them on a separate connection,
including the permissions that a node needs. So bad credentials never replace working ones.

Permission errors are reported at once. During the start, a missing permission in the node's own namespace ends the start.
Later it is an error in the log, because permissions may return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from liftpy.config import NS_PER_S
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, NotAllowedError, UnavailableError
from liftpy.nats.connection import StrictConnection
from liftpy.nats.credentials import Credentials
from liftpy.nats.parser import watch_denials
from liftpy.nats.transport import open_connection
from sidecar.runtime import clock
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.nats")

PROVE_S = 3
"""Maximum time for a server to accept the test connection, in seconds."""


class Keys:
    """Current credentials of one node, and its connections. The connections may run on several event loops."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._open: weakref.WeakKeyDictionary[StrictConnection, asyncio.AbstractEventLoop] = weakref.WeakKeyDictionary()

    def add(self, connection: StrictConnection, opened_by: Credentials) -> None:
        """Add a connection that was opened with the credentials ``opened_by``. It reconnects when the credentials change."""
        self._open[connection] = asyncio.get_running_loop()
        connection.credentials = opened_by
        if opened_by is not self.credentials:
            spawn(_renew_connection(connection, self.credentials), "reconnecting with other credentials")

    def change(self, credentials: Credentials) -> None:
        """Use other ``credentials`` from now on. All connections reconnect with them."""
        self.credentials = credentials
        for connection, loop in list(self._open.items()):
            with contextlib.suppress(RuntimeError):  # a stopped loop has no connections
                loop.call_soon_threadsafe(_renew, connection, credentials)


def _renew(connection: StrictConnection, credentials: Credentials) -> None:
    spawn(_renew_connection(connection, credentials), "reconnecting with other credentials")


async def _renew_connection(connection: StrictConnection, credentials: Credentials) -> None:
    try:
        options = credentials.nats_options()
        connection.credentials = credentials
        await connection.renew(options)
    except ConfigError as error:  # the file existed at the test
        logger.error("NATS credentials not changed error=%s: keeping the current ones", error)


async def prove(servers: Sequence[str], subjects: Subjects, node_id: str, credentials: Credentials, *, works: bool) -> None:
    """Test on a separate connection whether the node can work with ``credentials``. Raises ConfigError if not.

    ``works``: True if the server accepts the current credentials. If it is False, an unreachable server proves nothing, and no
    error is raised.
    """
    try:
        connection = await open_connection(
            servers, credentials=credentials, name=f"liftpy-{node_id}-credentials", timeout_s=PROVE_S
        )
    except NotAllowedError as error:
        raise ConfigError(str(error)) from None
    except UnavailableError as error:
        if works:
            raise ConfigError(f"{error} The node keeps its current credentials.") from None
        return
    denied: list[str] = []
    try:
        unwatch = watch_denials(connection, lambda is_publish, subject: denied.append(subject))
        with contextlib.suppress(Exception):  # the server has accepted a connection that ends later
            await connection.subscribe(subjects.notify(node_id), cb=_ignore)
            for _ in range(2):  # nats-py's PING overtakes the subscription. The second one cannot
                await connection.flush(PROVE_S)
        unwatch()
    finally:
        with contextlib.suppress(Exception):
            await connection.close()
    if denied:
        raise ConfigError(
            f"NATS does not let this user subscribe to {denied[0]}. Give it the permissions that `liftpy permissions "
            "--role node` prints."
        )


async def _ignore(_: object) -> None: ...


_MAX_REPORTED_DENIALS = 64
"""Maximum number of denied subjects that the log names within ``REPORT_AGAIN_S``. Others are only counted."""
REPORT_AGAIN_S = 300.0
"""Time in seconds after which the log names a denied subject again. A permission may return and be revoked again."""


class PermissionWatch:
    """Handles missing NATS permissions of the node. During the start, a missing permission in its own namespace ends the start.

    Pass ``record_denial`` to ``watch_denials``, and call ``start_completed`` when the node is up. ``fatal``: called with the
    error that ends the start.
    """

    def __init__(self, namespace: str, fatal: Callable[[Exception], None], counters: Counter[str]) -> None:
        self._namespace = namespace
        self._fatal = fatal
        self._counters = counters
        self._is_starting = True
        self._logged_s: dict[tuple[bool, str], float] = {}
        """Denied (True for a publish, subject) -> monotonic time at which the log named it, in seconds. The oldest comes first."""

    def start_completed(self) -> None:
        """Note that the start is complete. From now on, a denial does not stop the node."""
        self._is_starting = False

    def record_denial(self, is_publish: bool, subject: str) -> None:
        """Count and log that NATS denied a publish (``is_publish``) or a subscription on ``subject``."""
        self._counters["permission_denied"] += 1
        if self._is_starting and subject.startswith(f"{self._namespace}."):
            self._is_starting = False
            self._fatal(self._error(is_publish, subject))
            return
        now_s, logged_s = clock.now_ns() / NS_PER_S, self._logged_s
        while logged_s and now_s - logged_s[oldest := next(iter(logged_s))] >= REPORT_AGAIN_S:
            del logged_s[oldest]
        if len(logged_s) < _MAX_REPORTED_DENIALS and (is_publish, subject) not in logged_s:
            logged_s[is_publish, subject] = now_s
            logger.error("NATS permission denied error=%s", self._error(is_publish, subject))

    def _error(self, is_publish: bool, subject: str) -> NotAllowedError:
        return NotAllowedError(
            f"NATS does not let this node {'publish' if is_publish else 'subscribe'} on {subject}. Give its user "
            f"the permissions that `liftpy permissions --role node --namespace {self._namespace}` prints."
        )
