"""Test that the parser delivers the same messages for any split of the bytes, to the subscriptions that the server names [A12]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.protocol.parser import ProtocolError

from liftpy.nats.parser import Pattern
from sidecar.transport.parser import SinkParser
from tests.each import each
from tests.unit.transport.fake_client import FakeClient
from tests.unit.transport.parser_fuzz import complete, fuzz

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


def run(chunks: list[bytes]) -> tuple[list[tuple[bytes, bytes, bytes, bytes]], FakeClient]:
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client = FakeClient()
    parser = SinkParser(client, {b"1": lambda *message: got.append(message)})

    async def feed() -> None:
        for chunk in chunks:
            await parser.parse(chunk)

    complete(feed())
    return got, client


BURST = [(b"a.b", b"_INBOX.x", b"%03d" % number, b"") for number in range(5)]


def test_parser_returns_consecutive_messages_with_equal_msg_lines_for_any_split_of_the_bytes() -> None:
    sent = [*BURST, MESSAGES[3], *BURST, MESSAGES[4], (b"a.b", b"_INBOX.x", b"four", b"")]
    stream = b"".join(map(wire, sent))
    for cut in range(1, len(stream)):
        got, client = run([stream[:cut], stream[cut:]])
        assert got == sent, cut
        assert client.stats == {"in_msgs": len(sent), "in_bytes": sum(len(m[2]) + len(m[3]) for m in sent)}


def test_parser_handler_removed_within_a_burst_gets_no_more_messages() -> None:
    for successor in (False, True):
        got: list[bytes] = []
        later: list[bytes] = []
        sinks: dict[bytes, Any] = {}

        def sink(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
            got.append(payload)  # noqa: B023
            if len(got) == 3:  # noqa: B023
                del sinks[b"1"]  # noqa: B023
                if successor:  # noqa: B023
                    sinks[b"1"] = lambda *message: later.append(message[2])  # noqa: B023

        sinks[b"1"] = sink
        asyncio.run(SinkParser(FakeClient(), sinks).parse(b"".join(map(wire, BURST))))
        assert got == [b"000", b"001", b"002"]
        assert later == ([b"003", b"004"] if successor else [])


def test_parser_feed_delivers_complete_messages_synchronously() -> None:
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client = FakeClient()
    parser = SinkParser(client, {b"1": lambda *message: got.append(message)})
    large = wire(MESSAGES[5])
    assert parser.feed(wire(MESSAGES[0]) + large[:7])
    assert got == [MESSAGES[0]]
    assert parser.feed(large[7:3000])
    assert parser.feed(large[3000:] + wire(MESSAGES[1]))
    assert got == [MESSAGES[0], MESSAGES[5], MESSAGES[1]]
    assert not parser.feed(b"PING\r\n" + wire(MESSAGES[2])), "somebody has to await the command"
    assert (len(got), client.calls["ping"]) == (3, 0), "and nothing overtakes it"
    asyncio.run(parser.parse())
    assert (got[3:], client.calls["ping"]) == ([MESSAGES[2]], 1)
    assert not parser.feed(b"M" * 70_000), "a line that is too long is an error, which parse raises"
    with pytest.raises(ProtocolError):
        asyncio.run(parser.parse())


@pytest.mark.parametrize("messages", [MESSAGES, BURST], ids=["different", "burst"])
def test_parser_handler_error_skips_only_that_message(messages: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    client, got = FakeClient(), []
    bad = [messages[0], messages[2]]

    def sink(*message: bytes) -> None:
        if message in bad:
            raise KeyError("bug")
        got.append(message)

    asyncio.run(SinkParser(client, {b"1": sink}).parse(b"".join(map(wire, messages))))
    assert got == [message for message in messages if message not in bad]
    assert client.failed == [message[0] for message in bad]


def test_parser_reads_random_hostile_bytes_like_a_simple_reference_parser() -> None:
    assert fuzz(300, seed=7) > 600  # more of it: python -m tests.unit.transport.parser_fuzz


@each(
    "data",
    [
        *(
            b"MSG a.b 1 %b\r\nhi\r\n" % size
            for size in (b"+2", b"2_0", b"\xd9\xa2", b"2\x0b", b"", b"-1", b"1234567890", b"999999999", b"0x2")
        ),
        b"HTTP/1.1 200 OK\r\n",
        b"M" * 1024 * 65,
    ],
)
def test_parser_closes_the_connection_at_bytes_that_are_not_nats_protocol(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        run([data[at : at + 1024] for at in range(0, len(data), 1024)])


def test_parser_counts_and_skips_a_message_with_a_subject_outside_of_its_subscription() -> None:
    got: list[tuple[bytes, ...]] = []
    parser = SinkParser(FakeClient(), {b"1": lambda *message: got.append(message)})
    parser.expect(1, "a.b")
    asyncio.run(parser.parse(wire((b"x.y", b"", b"hi", b"")) + wire(MESSAGES[0])))
    assert (got, parser.errors) == ([MESSAGES[0]], {"foreign_subject": 1})


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("a.b", [b"a.b"], [b"a.b.c", b"a", b"a.B", b"aXb"]),
        ("a.*", [b"a.b", b"a.\xff", b"a.*"], [b"a", b"a.", b"a.b.c", b"b.b", b"aXb"]),
        ("a.>", [b"a.b", b"a.b.c"], [b"a", b"a.", b"a.b.", b"a..b", b"b.a"]),
        ("*.x.*.r", [b"q.x.1.r"], [b"q.y.1.r", b"q.x.r", b"q.x.1.r.s"]),
        (">", [b"a", b"a.b"], [b"", b".a"]),
    ],
)
def test_subject_pattern_matches_the_same_subjects_as_nats(pattern: str, inside: list[bytes], outside: list[bytes]) -> None:
    subscription = Pattern(pattern)
    for _ in range(2):  # the second time from memory
        assert all(map(subscription.matches, inside))
        assert not any(map(subscription.matches, outside))
    for number in range(3000):
        subscription.matches(b"a.%d" % number)
    assert len(subscription.known) <= 1024
