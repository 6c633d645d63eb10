"""Acknowledges every message of a subject without storing it: ``python -m sidecar.bench.answerer PORT SUBJECT``.

It measures the load generator alone: a bare socket, and one write with all answers to one read. It prints ``go`` when it
listens, and runs until it is killed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter

from sidecar.bench.dialects import open_nats

_ANSWER = b'{"stream":"bench","seq":1}'
_LONGEST_BYTES = 256
"""Maximum length of the protocol line before a payload, with a margin."""


def answer(port: int, subject: str) -> None:
    """Acknowledge every message on ``subject`` until the process is killed. ``port``: port of the local nats-server."""
    asking = re.compile(rb"MSG %s 1 (_INBOX\S+) \d" % re.escape(subject.encode()))
    with open_nats(port, subject.encode()) as connection:
        print("go", flush=True)
        tail = b""
        while received := connection.recv(1 << 20):
            data = tail + received
            requests = Counter(asking.findall(data))
            requests.subtract(asking.findall(tail))
            replies = (b"PUB %s %d\r\n%s\r\n" % (inbox, len(_ANSWER), _ANSWER) * count for inbox, count in requests.items())
            connection.sendall(b"".join(replies))
            if b"PING\r\n" in received:
                connection.sendall(b"PONG\r\n")
            tail = data[-_LONGEST_BYTES:]


if __name__ == "__main__":
    answer(int(sys.argv[1]), sys.argv[2])
