"""The publisher process: ``python -m tests.bench.node.publisher PORT COUNT SIZE`` writes plain publishes on ``bench``.

It says ``ready`` when it is connected, and begins at the first line on its standard input. The last publish asks for an ack (ALL): when
it comes, everything before it is committed. Its sequence number, the offset plus one, is printed. It imports little, so that there is
nothing to measure but what it publishes.
"""

from __future__ import annotations

import json
import socket
import sys

BLOCK = 1000
"""Publishes that are written at once."""
_INBOX = b"_INBOX.bench.node"
_PATIENCE_S = 120.0


class _Publisher:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % _INBOX)
        self._until(b"PONG")

    def _until(self, kind: bytes) -> bytes:
        """The next protocol line that begins with ``kind``."""
        while not (line := self._lines.readline()).startswith(kind):
            if not line:
                raise SystemExit("the nats-server has closed the connection")
        return line

    def flood(self, count: int, payload: bytes) -> int:
        """``count`` publishes, in whole blocks, the last one with an ack: return its sequence number."""
        size_bytes = len(payload)
        one = b"PUB bench %d\r\n%s\r\n" % (size_bytes, payload)
        block, last = one * BLOCK, one * (BLOCK - 1) + b"PUB bench %s %d\r\n%s\r\n" % (_INBOX, size_bytes, payload)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(count // BLOCK - 1):
            self._socket.sendall(block)
        self._socket.sendall(last)
        self._until(b"MSG")
        ack = json.loads(self._lines.readline())
        if "error" in ack:
            raise SystemExit(f"the last publish was rejected: {ack}")
        return int(ack["seq"])


if __name__ == "__main__":
    print(_Publisher(int(sys.argv[1])).flood(int(sys.argv[2]), b"x" * int(sys.argv[3])), flush=True)
