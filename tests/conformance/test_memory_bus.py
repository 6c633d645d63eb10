"""Test the in-memory stand-in for nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from liftpy.core.wire.subjects import matcher
from liftpy.testing.memory import MemoryCluster, memory_cluster
from liftpy.testing.memory.nats import MAX_REMEMBERED, Bus, MemoryTransport


class Turns:
    """The loop's next turns, when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def later(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def turn(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


def ignore(*_: bytes) -> None:
    pass


def test_memory_bus_subject_pattern_matches_as_in_nats() -> None:
    tokens = ("a", "b", "*", ">")
    patterns = [".".join(each) for size in (1, 2, 3) for each in product(tokens, repeat=size) if ">" not in each[:-1]]
    subjects = [".".join(each) for size in (1, 2, 3, 4) for each in product(("a", "b", "a\n"), repeat=size)]
    for pattern in patterns:
        fits = Bus(ignore).listen(pattern, ignore).fits
        assert [bool(fits(subject.encode())) for subject in subjects] == [matcher(pattern)(subject) for subject in subjects]


def test_memory_bus_calls_after_read_callbacks_after_all_messages_that_arrive_together() -> None:
    turns, seen = Turns(), list[str]()
    bus = Bus(turns.later)

    def arrived(subject: bytes, *_: bytes) -> None:
        seen.append(subject.decode())
        bus.call_after_read(lambda: seen.append("behind"))

    bus.listen(">", arrived)
    bus.together(lambda: [bus.publish(name, b"", b"") for name in (b"a", b"b")])
    assert seen == ["a", "b", "behind", "behind"]
    bus.publish(b"c", b"", b"")
    assert seen[4:] == ["c"]
    turns.turn()
    assert seen[4:] == ["c", "behind"]


def test_memory_bus_subject_cache_is_bounded() -> None:
    bus = Bus(ignore)
    bus.listen(">", ignore)
    for number in range(MAX_REMEMBERED + 10):
        bus.publish(b"s.%d" % number, b"", b"")
        assert len(bus._known) <= MAX_REMEMBERED


def test_memory_bus_delivers_messages_given_as_protocol_lines() -> None:
    bus, heard = Bus(ignore), list[tuple[bytes, bytes]]()
    bus.listen("_INBOX.>", lambda subject, reply, payload, block: heard.append((subject, payload)))
    bus.send_lines([b"PUB _INBOX.a  4\r\na\r\nb\r\n", b"PUB _INBOX.b  0\r\n\r\n"])
    bus.send("_INBOX.c", (b"x", memoryview(b"y")))
    assert heard == [(b"_INBOX.a", b"a\r\nb"), (b"_INBOX.b", b""), (b"_INBOX.c", b"xy")]


async def connected(cluster: MemoryCluster) -> MemoryTransport:
    carrier = MemoryTransport(cluster._server)
    await carrier.connect(None, 0, 0)
    assert (await carrier.readline()).startswith(b"INFO ")
    return carrier


async def test_memory_bus_connection_that_breaks_the_protocol_gets_an_error_and_is_closed() -> None:
    async with memory_cluster(1, max_payload=1000) as cluster, asyncio.timeout(60):
        for wrong, why in ((b"HELLO x\r\n", b"Unknown"), (b"PUB a 1001\r\n", b"Maximum Payload"), (b"PUB a x\r\n", b"-ERR")):
            carrier = await connected(cluster)
            carrier.write(b"CONNECT {}\r\nPING\r\n" + wrong[:3])
            carrier.write(wrong[3:])
            assert await carrier.readline() == b"PONG\r\n"
            assert why in await carrier.readline()
            assert (await carrier.read(100), carrier.at_eof()) == (b"", True)


async def test_memory_bus_connection_with_an_endless_line_is_closed() -> None:
    async with memory_cluster(1) as cluster, asyncio.timeout(60):
        carrier = await connected(cluster)
        for _ in range(3):
            carrier.write(b"SUB " + b"a" * 4000)
        assert b"control line" in await carrier.readline()
        assert await carrier.read(100) == b""


@pytest.mark.parametrize("echo", [True, False])
async def test_memory_bus_reads_and_writes_protocol_messages(echo: bool) -> None:
    async with memory_cluster(1) as cluster, asyncio.timeout(60):
        carrier = await connected(cluster)
        carrier.write(b'CONNECT {"echo":%s}\r\nSUB a.> 7\r\nUNSUB 7 2\r\n' % (b"true" if echo else b"false"))
        for piece in (b"PUB a.b reply 2\r\nh", b"i\r", b"\nHPUB a.c 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB a.d 0\r\n\r\nPING\r\n"):
            carrier.write(piece)
        if echo:
            for line in (b"MSG a.b 7 reply 2\r\n", b"hi\r\n", b"HMSG a.c 7 12 14\r\n", b"NATS/1.0\r\n", b"\r\n", b"hi\r\n"):
                assert await carrier.readline() == line
        assert await carrier.readline() == b"PONG\r\n"
        carrier.close()
    with pytest.raises(ConnectionRefusedError):
        await carrier.connect(None, 0, 0)
