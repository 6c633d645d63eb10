"""One NATS connection, one event loop and one blocking connection per Python process, shared by all tasks.

Spark's workers are synchronous and run one task after the other. So the loop runs in a daemon thread, which answers pings between
tasks. This module caches the connections, and no pickled reader contains one. The NATS servers notice a killed worker
by its closed sockets.

The blocking connection (``ProcessConnection.line``) carries the answers with records. The shared
connection (``ProcessConnection.transport``) carries everything else. It also serves reads that
the blocking connection does not support, for example with TLS.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from liftpy.client.retrying import retry_attempts
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, LiftError, UnavailableError
from liftpy.nats.blocking_connection import BlockingConnection, open_blocking_connection
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import Transport, open_connection
from liftpy.spark.options import Access

T = TypeVar("T")
CONNECT_TIMEOUT_S = 10.0
MAX_LINKS = 32
"""Maximum number of links of a process, one per cluster and user. A new link closes the one that was idle longest."""
_MARGIN_S = 10.0
LINE_S = 5.0
"""Time limit for opening the blocking connection, in seconds. It is also the pause after a failure."""


class ProcessConnection:
    """The connections of this process to one cluster, and their event loop. Any thread may call its methods.

    Args:
        access: How to reach the cluster.
    """

    def __init__(self, access: Access) -> None:
        self.subjects = Subjects(access.namespace)
        self._access = access
        self._loop = asyncio.new_event_loop()
        self._transport: Transport | None = None
        self._connecting = asyncio.Lock()
        self._line: BlockingConnection | None = None
        self._line_lock = threading.Lock()
        self.elsewhere: dict[str, float] = {}
        """Node id -> monotonic time (seconds) before which tasks do not ask the node for its files."""
        self._line_after_s = 0.0
        """Monotonic time (seconds) before which no blocking connection is opened."""
        threading.Thread(target=self._run, name="liftpy-spark", daemon=True).start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(end_tasks(asyncio.all_tasks(self._loop)))
        if self._line is not None:  # it may have been opened after the call of close
            self._line.close()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run ``work`` on the event loop and return its result.

        Raise UnavailableError if it does not end in ``timeout_s`` seconds.
        """
        return result_of(self.submit(work), timeout_s)

    async def transport(self, patience_s: float = CONNECT_TIMEOUT_S) -> Transport:
        """Return the NATS connection.

        Open it at the first use, and again after nats-py has closed it. Call this on the event loop.

        Raises:
            UnavailableError: No server accepted the connection within ``patience_s``.
        """
        async with self._connecting:
            if self._transport is None or self._transport.connection.is_closed:
                self._transport = await self._open(patience_s)
            return self._transport

    def line(self) -> BlockingConnection | None:
        """Return the blocking connection of this process. None: it cannot be opened now.

        It opens at the first use, and again some time after it has ended. Do not call this method on the event loop.
        """
        with self._line_lock:
            if self._line is not None and not self._line.closed:
                return self._line
            now_s = time.monotonic()
            if now_s < self._line_after_s:
                return None
            self._line, self._line_after_s = None, now_s + LINE_S
            opening = self.submit(self._open_line())
            try:
                opening.result(2 * LINE_S)
            except (LiftError, concurrent.futures.TimeoutError):
                opening.cancel()
            return self._line

    async def _open_line(self) -> None:
        credentials = await asyncio.to_thread(credentials_of, self._access)
        name, servers = f"liftpy-spark-{os.getpid()}-line", self._access.servers
        # the caller may have given up: the connection must not be lost then
        self._line = await open_blocking_connection(servers, credentials=credentials, name=name, timeout_s=LINE_S / 2)

    def close(self) -> None:
        """Close the connection and stop the loop. Requests in flight fail. The call does not wait for them."""

        if self._line is not None:
            self._line.close()

        async def end() -> None:
            try:
                if self._transport is not None:
                    await self._transport.close()
            finally:
                self._loop.call_soon(self._loop.stop)

        asyncio.run_coroutine_threadsafe(end(), self._loop)

    async def _open(self, patience_s: float) -> Transport:
        credentials = await asyncio.to_thread(credentials_of, self._access)
        name, servers = f"liftpy-spark-{os.getpid()}", self._access.servers
        one_s = min(CONNECT_TIMEOUT_S, patience_s)
        connect = retry_attempts(patience_s)  # a task survives the restart of a NATS server
        return Transport(await connect(open_connection, servers, credentials=credentials, name=name, timeout_s=one_s))


def result_of(future: concurrent.futures.Future[T], timeout_s: float) -> T:
    """Return the result of ``future``, which runs on the event loop.

    Raise UnavailableError some time after ``timeout_s`` seconds, so that a task does not hang if the loop has stopped.
    """
    try:
        return future.result(timeout_s + CONNECT_TIMEOUT_S * 4 + _MARGIN_S)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise UnavailableError(
            f"No answer from NATS or the node within {timeout_s:g} s. Check the option nats and `liftpy health`."
        ) from None


def credentials_of(access: Access) -> Credentials:
    """Return the credentials that ``access`` names, with the secrets read from their files.

    Raises ConfigError if a file cannot be read.
    """
    return Credentials(
        creds_file=access.creds_file,
        nkey_seed_file=access.nkey_seed_file,
        user=access.user,
        password=_secret(access.password_file),
        token=_secret(access.token_file),
        tls_ca_file=access.tls_ca_file,
        tls_cert_file=access.tls_cert_file,
        tls_key_file=access.tls_key_file,
        inbox_prefix=access.inbox_prefix,
    )


def _secret(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a null character
        raise ConfigError(
            f"Cannot read the file {file} with a NATS secret: {error}. Check the path and its permissions on this machine."
        ) from error


_links: OrderedDict[tuple[int, Access], ProcessConnection] = OrderedDict()
_lock = threading.Lock()


def link_to(access: Access) -> ProcessConnection:
    """Return the connections of this process to the cluster ``access``. All callers share them. At most MAX_LINKS are kept."""
    key = (os.getpid(), access)
    with _lock:
        if key not in _links:
            _links[key] = ProcessConnection(access)
        _links.move_to_end(key)
        while len(_links) > MAX_LINKS:
            _links.popitem(last=False)[1].close()
        return _links[key]


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may have been held by a thread that does not exist here
    _links.clear()


os.register_at_fork(after_in_child=_after_fork)
