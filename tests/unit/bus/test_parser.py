"""The parser gives the same messages however the bytes are cut, and leaves the rest to nats-py."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import ProtocolError

from sidecar.bus.parser import SinkParser

MESSAGES = [
    (b"a.b", b"", b"hello", b""),
    (b"a.c", b"_INBOX.x", b"", b""),
    (b"a.d", b"", b"MSG a.b 1 3\r\n", b""),
    (b"a.e", b"_INBOX.y", b"payload\r\n", b"NATS/1.0\r\nName: value\r\n\r\n"),
    (b"a.f", b"", b"", b"NATS/1.0 503\r\n\r\n"),
    (b"a.g", b"", b"z" * 5000, b""),
]


def wire(message: tuple[bytes, bytes, bytes, bytes], sid: int = 1) -> bytes:
    subject, reply, payload, headers = message
    reply = b" " + reply if reply else b""
    if headers:
        return b"HMSG %b %d%b %d %d\r\n%b%b\r\n" % (
            subject, sid, reply, len(headers), len(headers) + len(payload), headers, payload,
        )  # fmt: skip
    return b"MSG %b %d%b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)


class FakeClient:
    """What nats-py's parser calls."""

    def __init__(self) -> None:
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self.calls: Counter[str] = Counter()
        self.own: list[bytes] = []
        self.failed: list[bytes] = []

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        self.failed.append(subject)

    async def _process_ping(self) -> None:
        self.calls["ping"] += 1

    async def _process_pong(self) -> None:
        self.calls["pong"] += 1

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.calls["info"] += 1

    async def _process_err(self, text: str) -> None:
        self.calls[text] += 1

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.own.append(data)


def run(chunks: list[bytes]) -> tuple[list[tuple[bytes, bytes, bytes, bytes]], FakeClient]:
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client = FakeClient()
    parser = SinkParser(client, {b"1": lambda *message: got.append(message)})

    async def feed() -> None:
        for chunk in chunks:
            await parser.parse(chunk)

    asyncio.run(feed())
    return got, client


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 12_000), max_size=8))
def test_any_cut_of_the_bytes_gives_the_same_messages(picks: list[int], cuts: list[int]) -> None:
    noise = [b"PING\r\n", b'INFO {"a":1}\r\n', b"PONG\r\n"]
    sent, stream = [], b""
    for number, pick in enumerate(picks):
        sent.append(MESSAGES[pick])
        stream += wire(MESSAGES[pick]) + noise[number % 3]
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    got, client = run([stream[a:b] for a, b in pairwise(edges)])
    assert got == sent
    assert sum(client.calls.values()) == len(picks)
    assert client.stats["in_msgs"] == len(picks)


def test_messages_of_nats_pys_own_subscriptions_go_to_nats_py() -> None:
    got, client = run([wire(MESSAGES[0]) + wire(MESSAGES[0], sid=7) + wire(MESSAGES[3], sid=7) + wire(MESSAGES[1])])
    assert got == [MESSAGES[0], MESSAGES[1]]
    assert client.own == [b"hello", b"payload\r\n"]


def test_an_error_of_the_server_reaches_nats_py() -> None:
    _, client = run([b"-ERR 'Slow Consumer'\r\n"])
    assert client.calls["'slow consumer'"] == 1


def test_something_that_is_no_nats_protocol_is_refused() -> None:
    with pytest.raises(ProtocolError):
        run([b"HTTP/1.1 200 OK\r\n"])


def test_a_sink_that_fails_costs_one_message() -> None:
    client, got = FakeClient(), []

    def sink(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if subject == b"a.c":
            raise KeyError("bug")
        got.append(subject)

    asyncio.run(SinkParser(client, {b"1": sink}).parse(b"".join(map(wire, MESSAGES))))
    assert got == [b"a.b", b"a.d", b"a.e", b"a.f", b"a.g"]
    assert client.failed == [b"a.c"]
