"""Answers every message of a subject as if it were stored: ``python -m sidecar.bench.answerer PORT SUBJECT``.

Prints ``go`` when it listens; ends when killed.
With it the load generator is measured alone: a bare socket, all answers to what one read brought in one write.
"""

from __future__ import annotations

import socket
import sys

from sidecar.bench.publisher import INBOX

_ANSWER = b'{"stream":"bench","seq":1}'


def answer(port: int, subject: str) -> None:
    """For ever."""
    reply = b"PUB %s %d\r\n%s\r\n" % (INBOX, len(_ANSWER), _ANSWER)
    mark = b"MSG %s 1 %s " % (subject.encode(), INBOX)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(4096)
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % subject.encode())
        while b"PONG" not in connection.recv(4096):
            pass
        print("go", flush=True)
        tail = b""
        while received := connection.recv(1 << 20):
            data = tail + received
            if (count := data.count(mark) - tail.count(mark)) > 0:
                connection.sendall(reply * count)
            if b"PING\r\n" in received:
                connection.sendall(b"PONG\r\n")
            tail = data[-len(mark) + 1 :]


if __name__ == "__main__":
    answer(int(sys.argv[1]), sys.argv[2])
