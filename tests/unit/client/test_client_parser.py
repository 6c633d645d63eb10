"""Test that messages which nats-py cannot decode are counted and do not end the connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import nats
import pytest
from nats.protocol.parser import Parser

from liftpy.client import connect
from liftpy.nats.parser import StrictParser, make_strict
from liftpy.nats.transport import open_connection

HOSTILE = (
    b"PUB shop.\xff\xfe 2\r\nhi\r\n"
    b"PUB shop.a _INBOX.\xff 2\r\nhi\r\n"
    b"HPUB shop.a 2 4\r\nhihi\r\n"
    b"HPUB shop.a 14 16\r\nNATS/1.0 \xff\r\n\r\nhi\r\n"
    b"PUB shop.a\x0b%d 6\r\nforged\r\n"
    b"PUB shop.a\x0c%d 6\r\nforged\r\n"
)
UNREADABLE = 4


async def publish_raw(url: str, lines: bytes) -> None:
    """Write ``lines`` to the server as any client may, and wait until the server has processed them."""
    host, _, port = url.removeprefix("nats://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + lines + b"PING\r\n")
    while (await reader.readline()) != b"PONG\r\n":
        assert not reader.at_eof()
    writer.close()


async def attacked(connection: Any, url: str) -> tuple[list[str], list[bytes], int]:
    """Receive forged and valid messages on two subscriptions. Return (subjects, forged count, reconnects)."""
    heard: list[str] = []
    private: list[bytes] = []
    last = asyncio.Event()

    async def shop(message: Any) -> None:
        heard.append(message.subject)
        if message.data == b"honest":
            last.set()

    async def own(message: Any) -> None:
        private.append(message.data)

    await connection.subscribe("shop.>", cb=shop)
    victim = await connection.subscribe("private", cb=own)
    await connection.flush()
    await connection.flush()
    await publish_raw(url, HOSTILE % (victim._id, victim._id) + b"PUB shop.last 6\r\nhonest\r\n")
    await asyncio.wait_for(last.wait(), 10)
    return heard, private, connection.stats["reconnects"]


async def test_nats_connection_counts_undecodable_messages_and_continues_reading(nats_url: str) -> None:
    connection = await open_connection(nats_url)
    heard, private, reconnects = await attacked(connection, nats_url)
    assert (private, reconnects) == ([], 0)
    assert heard == ["shop.a\x0b2", "shop.a\x0c2", "shop.last"]
    assert connection.errors["undecodable"] == UNREADABLE
    await connection.close()


async def test_client_over_an_application_connection_installs_the_strict_nats_parser(nats_url: str) -> None:
    theirs = await nats.connect(nats_url)
    client = await connect(theirs)
    heard, private, reconnects = await attacked(theirs, nats_url)
    assert (private, reconnects) == ([], 0)
    assert heard[-1] == "shop.last"
    assert make_strict(theirs)["undecodable"] == UNREADABLE
    await client.close()
    assert theirs.is_connected
    await theirs.close()


class _Heard:
    def __init__(self) -> None:
        self.stats = Counter[str]()
        self.got: list[bytes] = []
        self._subs: dict[int, Any] = {}
        self._ps: Any = Parser(self)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.got.append(data)

    async def _process_ping(self) -> None:
        self.got.append(b"PING")


@pytest.mark.parametrize("frame", [b"MSG a 1 5\r\nhello\r\n", b"HMSG a 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", b"PING\r\n"])
async def test_strict_nats_parser_installed_on_an_open_connection_delivers_a_partly_received_message(frame: bytes) -> None:
    for cut in range(len(frame)):
        connection: Any = _Heard()
        connection._subs[1] = object()
        await connection._ps.parse(frame[:cut])
        make_strict(connection)
        make_strict(connection)
        assert isinstance(connection._ps, StrictParser)
        await connection._ps.parse(frame[cut:] + b"PING\r\n")
        assert connection.got in ([b"hello", b"PING"], [b"PING", b"PING"]), cut
