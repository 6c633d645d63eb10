"""Independent clients: ``clients.py PORT SUBJECT SECONDS SIZE CLIENTS THINK_MS``.

Each client has one message in flight. After its ack it waits for a random time, THINK_MS milliseconds on average, before it sends the
next message. So the messages of different clients arrive one by one, and not as blocks that wait for each other.
All clients share one connection. It prints one line of JSON: ``acked``, ``took_s``, ``p50_ms`` and ``p99_ms``.
"""

import heapq
import json
import os
import random
import re
import socket
import sys
import time

_INBOX = b"_INBOX.clients%d" % os.getpid()
_ACK = re.compile(rb"MSG %s\.(\d+) 1 \d+\r\n[^\r]*\r\n" % re.escape(_INBOX))
_LEFT_S = 10.0


def publish(port: int, subject: str, seconds: float, size_bytes: int, clients: int, think_ms: float) -> dict[str, float]:
    """Publish for ``seconds`` and return the measured values. ``think_ms``: mean time between an ack and the next message."""
    chance = random.Random(clients)
    due = [(chance.random() * 0.01, client) for client in range(clients)]
    heapq.heapify(due)
    sent_s = [0.0] * clients
    times: list[float] = []
    words = [
        b"PUB %s %s.%d %d\r\n%s\r\n" % (subject.encode(), _INBOX, n, size_bytes, b"x" * size_bytes) for n in range(clients)
    ]
    tail, waiting = b"", 0
    with socket.create_connection(("127.0.0.1", port), timeout=_LEFT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(4096)
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB %s.* 1\r\nPING\r\n' % _INBOX)
        while b"PONG" not in connection.recv(4096):
            pass
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds or (waiting and now < seconds + _LEFT_S):
            out = []
            while due and due[0][0] <= now and now < seconds:
                _, client = heapq.heappop(due)
                sent_s[client] = now
                out.append(words[client])
            if out:
                connection.sendall(b"".join(out))
                waiting += len(out)
            until_s = due[0][0] if due and now < seconds else now + 0.01
            connection.settimeout(max(until_s - (time.perf_counter() - began), 0.00005))
            try:
                received = connection.recv(1 << 20)
            except TimeoutError:
                continue
            now, end, data = time.perf_counter() - began, 0, tail + received
            if b'"error"' in data:
                raise SystemExit(f"The system rejected a message: {data[:300]!r}")
            for found in _ACK.finditer(data):
                client, end = int(found[1]), found.end()
                times.append(now - sent_s[client])
                heapq.heappush(due, (now + chance.expovariate(1000 / think_ms), client))
                waiting -= 1
            tail = data[end:]
        took_s = time.perf_counter() - began
    times.sort()
    return {"acked": len(times), "took_s": took_s, **{f"p{p}_ms": times[len(times) * p // 100] * 1000 for p in (50, 99)}}


if __name__ == "__main__":
    port, subject, seconds, size_bytes, clients, think_ms = sys.argv[1:]
    print(json.dumps(publish(int(port), subject, float(seconds), int(size_bytes), int(clients), float(think_ms))))
