"""Test the thread that empties a socket: it reads while there is room and reports the end once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from sidecar.transport import ingest_connection
from sidecar.transport.ingest_connection import SocketThread
from tests.until import block_until

LIMIT_S = 30.0


class Reader:
    """The thread on one end of a pair of sockets."""

    def __init__(self, room: bool, **options: int) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.taken = bytearray()
        self.room, self.looked = room, 0
        self.ended: list[str] = []
        self.sizes: list[int] = []
        self.thread = SocketThread(self.ours.fileno(), self._take, self._has_room, self._has_ended, **options)

    def _take(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self.taken.extend(data)

    def _has_room(self) -> bool:
        self.looked += 1
        return self.room

    def _has_ended(self) -> None:
        self.ended.append(threading.current_thread().name)

    def close(self) -> None:
        self.thread.stop()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 0.002)
    made = Reader(room=False)
    yield made
    made.close()


def test_socket_thread_reads_at_most_its_limit_at_once() -> None:
    reader = Reader(room=False, read_bytes=1000)
    reader.theirs.sendall(b"x" * 10_500)
    reader.room = True
    reader.thread.resume()
    block_until(lambda: len(reader.taken) == 10_500)
    assert max(reader.sizes) == 1000
    reader.close()


def test_socket_thread_reads_in_order_and_pauses_while_the_buffer_is_full(reader: Reader) -> None:
    reader.theirs.sendall(b"one ")
    seen = reader.looked
    block_until(lambda: reader.looked > seen + 5)
    assert reader.taken == b""
    reader.room = True
    reader.thread.resume()
    block_until(lambda: reader.taken == b"one ")
    reader.theirs.sendall(b"two")
    block_until(lambda: reader.taken == b"one two")
    assert not reader.ended


def test_socket_thread_with_a_full_buffer_resumes_when_free_space_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 10 * LIMIT_S)
    reader = Reader(room=False)
    block_until(lambda: reader.looked == 1)
    reader.theirs.sendall(b"x")
    reader.room = True
    reader.thread.resume()
    block_until(lambda: reader.taken == b"x")
    reader.close()


def test_socket_thread_reports_eof_once(reader: Reader) -> None:
    reader.room = True
    reader.thread.resume()
    reader.theirs.sendall(b"last")
    reader.theirs.close()
    block_until(lambda: bool(reader.ended))
    assert (reader.taken, reader.ended) == (b"last", ["liftpy-ingest-socket"])


def test_socket_thread_after_stop_reads_nothing_and_reports_no_eof(reader: Reader) -> None:
    reader.room = True
    reader.thread.resume()
    reader.theirs.sendall(b"before")
    block_until(lambda: reader.taken == b"before")
    reader.thread.stop()
    reader.thread.stop()
    reader.theirs.sendall(b"after")
    block_until(
        lambda: all(
            end.fileno() < 0 for end in (reader.thread._socket, reader.thread._wake_receiver, reader.thread._wake_sender)
        )
    )
    assert reader.ours.recv(100) == b"after", "the socket is still its owner's"
    assert (reader.taken, reader.ended) == (b"before", [])


def test_socket_thread_with_a_full_buffer_ends_on_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_connection, "_SOCKET_RECHECK_S", 10 * LIMIT_S)
    reader = Reader(room=False)
    block_until(lambda: reader.looked == 1)
    reader.close()
    block_until(lambda: reader.thread._socket.fileno() < 0)
