"""Publish at full speed: ``python -m tests.unit.transport.flooding_publisher PORT SUBJECT COUNT SIZE PER_SECOND``.

Message i begins with its number (8 bytes, big endian), so that a reader can tell which ones are missing. PER_SECOND 0: as fast as
it goes. The end is confirmed by the server (PONG): everything sent is in its hands.
"""

from __future__ import annotations

import socket
import sys
import time

BLOCK = 1000
"""Messages built at a time."""


def publish(port: int, subject: bytes, count: int, size_bytes: int, per_second: int) -> None:
    """Send ``count`` messages of ``size_bytes`` (8 at least)."""
    filling = b"x" * (size_bytes - 8) + b"\r\n"
    head = b"PUB %b %d\r\n" % (subject, size_bytes)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(4096)
        connection.sendall(b'CONNECT {"verbose":false}\r\n')
        began = time.monotonic()
        for start in range(0, count, BLOCK):
            numbers = range(start, min(start + BLOCK, count))
            connection.sendall(b"".join([head + number.to_bytes(8, "big") + filling for number in numbers]))
            if per_second:
                time.sleep(max(0.0, began + start / per_second - time.monotonic()))
        connection.sendall(b"PING\r\n")
        seen = b""
        while b"PONG\r\n" not in seen:
            got = connection.recv(65_536)
            if not got:
                raise SystemExit(f"the server closed the connection: {seen[-200:]!r}")
            seen = seen[-16:] + got


if __name__ == "__main__":
    publish(int(sys.argv[1]), sys.argv[2].encode(), *map(int, sys.argv[3:6]))
