"""The publisher process: ``python -m tests.bench.node.publisher PORT COUNT SIZE`` writes plain publishes on ``bench``.

It says ``ready`` when it is connected, and begins at the first line on its standard input. It imports little, so that there is
nothing to measure but what it publishes.
"""

from __future__ import annotations

import socket
import sys

BLOCK = 1000
"""Publishes that are written at once."""


def _until_pong(connection: socket.socket) -> None:
    connection.sendall(b"PING\r\n")
    while b"PONG" not in (data := connection.recv(65_536)):
        if not data:
            raise SystemExit("the nats-server has closed the connection")


def flood(port: int, count: int, size_bytes: int) -> None:
    """``count`` publishes of ``size_bytes``, in whole blocks; returns when the server has read them."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(4096)
        connection.sendall(b'CONNECT {"verbose":false}\r\n')
        _until_pong(connection)
        block = (b"PUB bench %d\r\n" % size_bytes + b"x" * size_bytes + b"\r\n") * BLOCK
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(count // BLOCK):
            connection.sendall(block)
        _until_pong(connection)


if __name__ == "__main__":
    flood(*map(int, sys.argv[1:]))
