"""``BlockingConnection``: a plain TCP connection to a NATS server for requests with large answers. Its own thread reads it.

An event loop gets an answer of one megabyte in dozens of pieces, with one turn of the loop and several copies each. That
was three quarters of the cost of such a read. A blocking connection receives the payload into one buffer with one call,
during which other threads run.

The connection has no retries, no other servers and no checks of permissions. If it gets no usable answer in time, the
caller sends the request again over a ``Transport``. nats-py opens the connection (servers, credentials, handshake), and
then its socket is taken over. TLS and WebSockets are not supported.

Bounds: an answer is at most as large as a message that the NATS server accepts. The caller limits the number of requests in
flight.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import socket
import struct
import threading
from itertools import count
from typing import Any

import numpy as np

from liftpy.errors import UnavailableError
from liftpy.nats.connection import taken_over
from liftpy.nats.parser import LONGEST_LINE_BYTES, message_fields, size_of
from liftpy.nats.transport import open_connection

_READ_BYTES = 4096
"""Maximum number of bytes per read of a protocol line. Bytes of a payload in this read are copied once more."""
_SEND_S = 5
_SID = b"1"
_CLOSED = (
    "The NATS server closed the connection. If this repeats, look for 'slow consumer' or 'authorization' in the server log."
)
_MAX_DIGITS = 18
_logger = logging.getLogger("liftpy.client")
Answer = concurrent.futures.Future[memoryview]


class ConnectionClosedError(UnavailableError):
    """The blocking connection is closed. The node may have received the request or not. Use another connection."""

    code = "CONNECTION_CLOSED"


class BlockingConnection:
    """One blocking connection to a NATS server. ``open_blocking_connection`` makes it. Any thread may call its methods."""

    def __init__(self, taken: socket.socket, inbox: str, max_payload_bytes: int) -> None:
        self.max_payload_bytes = max_payload_bytes
        self.closed = False
        self._socket = taken
        self._inbox = inbox.encode()
        self._numbers = count()
        self._asked: dict[int, Answer] = {}
        self._lock = threading.Lock()
        """Lock for ``_asked`` and for writing."""
        self._rest = b""
        """Received bytes that are not processed yet. Only the reading thread uses it."""
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        taken.sendall(b"SUB %b.* %b\r\n" % (self._inbox, _SID))
        threading.Thread(target=self._run, name="liftpy-line", daemon=True).start()

    @property
    def waiting_count(self) -> int:
        return len(self._asked)

    def ask(self, subject: str, payload: bytes) -> Answer:
        """Send a request with ``payload`` on ``subject``. Return the future of its answer.

        The future fails with ConnectionClosedError if the connection is or gets closed, and with UnavailableError if there are
        no responders.
        """
        answer: Answer = concurrent.futures.Future()
        with self._lock:
            if self.closed:
                answer.set_exception(ConnectionClosedError("The NATS connection is closed."))
                return answer
            number = next(self._numbers)
            self._asked[number] = answer
            head = b"PUB %b %b.%d %d\r\n" % (subject.encode(), self._inbox, number, len(payload))
            try:
                self._socket.sendall(head + payload + b"\r\n")
            except OSError as error:
                self._end(error)
        return answer

    def forget(self, answers: list[Answer]) -> None:
        """Ignore the answers to the requests with these futures, because the caller no longer waits."""
        with self._lock:
            forgotten_ids = {id(answer) for answer in answers}
            self._asked = {number: answer for number, answer in self._asked.items() if id(answer) not in forgotten_ids}

    def close(self) -> None:
        """Close the connection at once. The futures of waiting requests fail."""
        with self._lock:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # it wakes the thread, which closes the socket
        pending, self._asked = self._asked, {}
        for answer in pending.values():
            answer.set_exception(
                ConnectionClosedError(f"The NATS connection was lost: {error}. The next request opens another one.")
            )

    # ---- the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self.closed:
                self._process_line(self._next_line())
        except Exception as error:  # after any unexpected data the connection ends, and callers use another one
            if not self.closed:
                _logger.info("blocking NATS connection closed error=%s: opening another one with the next request", error)
            with self._lock:
                self._end(error)
        finally:
            self._socket.close()

    def _next_line(self) -> bytes:
        while (eol := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > LONGEST_LINE_BYTES:
                raise UnavailableError(
                    f"The NATS server sent a protocol line of more than {LONGEST_LINE_BYTES} bytes. Check that this URL "
                    "is a NATS server."
                )
            more = self._socket.recv(_READ_BYTES)
            if not more:
                raise UnavailableError(_CLOSED)
            self._rest += more
        line, self._rest = self._rest[:eol], self._rest[eol + 2 :]
        return line

    def _process_line(self, line: bytes) -> None:
        fields = line.split(b" ")
        if fields[0] in (b"MSG", b"HMSG"):
            self._message(fields)
        elif fields[0] == b"PING":
            with self._lock:
                self._socket.sendall(b"PONG\r\n")
        elif fields[0].startswith(b"-ERR"):
            raise UnavailableError(f"The NATS server reports an error: {line[:200]!r}. Check the server log.")

    def _message(self, fields: list[bytes]) -> None:
        parts, size_bytes = message_fields(fields), size_of(fields[-1])
        if parts is None or not 0 <= size_bytes <= self.max_payload_bytes + LONGEST_LINE_BYTES:
            raise UnavailableError(
                f"The NATS server sent an unknown protocol line: {b' '.join(fields)[:80]!r}. Check that this URL is a "
                "NATS server."
            )
        subject, sid, _, header_bytes = parts
        content = self._payload(size_bytes)
        inbox, _, digits = subject.rpartition(b".")
        if sid != _SID or inbox != self._inbox or not digits.isdigit() or len(digits) > _MAX_DIGITS:
            return  # as in ``StrictParser``, a message under a subject without a request is ignored
        with self._lock:
            answer = self._asked.pop(int(digits), None)
        if answer is None:
            return
        if header_bytes == size_bytes:
            answer.set_exception(
                UnavailableError("No responders on this subject. Check that the nodes run: `liftpy health`.")
            )  # the server reports no responders. An answer has a payload
        else:
            answer.set_result(content[header_bytes:])

    def _payload(self, size_bytes: int) -> memoryview:
        """Receive the next ``size_bytes`` from the socket and return them. The line end after them is removed."""
        view: memoryview = np.empty(size_bytes + 2, dtype=np.uint8).data  # the buffer is not filled with zeros first
        had = min(len(self._rest), len(view))
        view[:had] = self._rest[:had]
        self._rest = self._rest[had:]
        while had < len(view):
            got = self._socket.recv_into(view[had:], len(view) - had, socket.MSG_WAITALL)
            if not got:
                raise UnavailableError(_CLOSED)
            had += got
        return view[:size_bytes]


async def open_blocking_connection(servers: str, **options: Any) -> BlockingConnection | None:
    """Open a blocking connection to one of ``servers``. Return None if it needs TLS or WebSockets, or cannot be taken over.

    ``options`` and the errors are those of ``open_connection``.
    """
    connection = await open_connection(servers, allow_reconnect=False, **options)
    inbox, max_payload_bytes = connection.new_inbox(), int(connection.max_payload)
    sock: socket.socket | None = None
    try:
        try:
            sock = await taken_over(connection)
        finally:
            with contextlib.suppress(Exception):  # its socket was taken over
                await connection.close()
        return None if sock is None else BlockingConnection(sock, inbox, max_payload_bytes)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, (OSError, RuntimeError)):  # no file descriptor or no thread is available
            return None
        raise
