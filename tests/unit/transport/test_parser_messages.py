"""Test one call of the parser: where it stops, and what it delivered and counted."""

from __future__ import annotations

from typing import Any

import pytest
from nats.aio.subscription import Subscription

from liftpy.core.wire.envelope import MAGIC
from liftpy.nats.parser import LARGEST_MESSAGE_BYTES
from sidecar.transport.parser import IngestParser, SinkParser
from tests.each import each
from tests.unit.transport.test_parser import FakeClient

ONE = b"MSG ev 1 1\r\na\r\n"
HEADERS = b"NATS/1.0\r\n\r\n"


class ParserBench:
    """A parser with the sinks 1 ("ev"), 2 (any subject) and 3 ("w.*"), and what they were given."""

    def __init__(self, kind: Any = SinkParser) -> None:
        self.client = FakeClient()
        self.client._subs |= {sid: Subscription(self.client, sid, "?") for sid in (1, 2, 3)}
        self.got: list[tuple[bytes, ...]] = []
        self.parser: Any = kind(self.client, dict.fromkeys((b"1", b"2", b"3"), self.sink))
        self.parser.expect(1, "ev")
        self.parser.expect(3, "w.*")

    def sink(self, *message: bytes) -> None:
        if message[2] == b"bug":
            raise KeyError("a bug")
        self.got.append(message)

    def values(self) -> list[bytes]:
        return [message[2] for message in self.got]

    @property
    def counted(self) -> tuple[int, int]:
        return self.client.stats["in_msgs"], self.client.stats["in_bytes"]


LINES = [
    (b"MSG ev 1 0", b"", (b"ev", b"", b"", b"")),
    (b"MSG ev 1 3", b"abc", (b"ev", b"", b"abc", b"")),
    (b"MSG ev 1 r 3", b"abc", (b"ev", b"r", b"abc", b"")),
    (b"MSG ev 1 000000003", b"abc", (b"ev", b"", b"abc", b"")),
    (b"MSG ev 1 4095", b"x" * 4095, (b"ev", b"", b"x" * 4095, b"")),
    (b"MSG ev 1 4096", b"x" * 4096, (b"ev", b"", b"x" * 4096, b"")),
    (b"MSG any.thing 2 3", b"abc", (b"any.thing", b"", b"abc", b"")),
    (b"MSG w.x 3 3", b"abc", (b"w.x", b"", b"abc", b"")),
    (b"HMSG ev 1 12 15", HEADERS + b"abc", (b"ev", b"", b"abc", HEADERS)),
    (b"HMSG ev 1 r 12 12", HEADERS, (b"ev", b"r", b"", HEADERS)),
    (b"HMSG ev 1 0 3", b"abc", (b"ev", b"", b"abc", b"")),
    (b"HMSG ev 1 5000 5003", b"h" * 5000 + b"abc", (b"ev", b"", b"abc", b"h" * 5000)),
]


@each(("line", "content", "given"), LINES)
def test_parser_delivers_a_complete_message_and_continues_after_it(line: bytes, content: bytes, given: Any) -> None:
    made, frame = ParserBench(), line + b"\r\n" + content + b"\r\n"
    stream = ONE + frame + ONE
    assert made.parser._messages(stream, 0) == len(stream)
    assert made.got == [(b"ev", b"", b"a", b""), given, (b"ev", b"", b"a", b"")]
    assert (made.counted, made.parser._needed_bytes) == ((3, 2 + len(content)), 0)
    for cut in range(1, len(frame)):
        if cut in (1, len(line), len(line) + 2) or cut > len(frame) - 4:
            half = ParserBench()
            assert half.parser._messages(ONE + frame[:cut], 0) == len(ONE)
            assert half.parser._needed_bytes == (len(frame) if cut >= len(line) + 2 else 0), "so many, from its line on"
            assert half.counted == (1, 1)


@each(
    "line",
    [
        b"PING",
        b"msg ev 1 1",
        b"MSG ev 1",
        b"MSG ev 1 r s 1",
        b"MSG ev 1  1",
        b"HMSG ev 1 1",
        b"HMSG ev 1 r s 0 1",
        b"MSG ev 9 1",
        b"MSG  2 1",
        b"MSG  1 1",
        b"MSG evx 1 1",
        b"MSG w.x.y 3 1",
        b"MSG ev 1 +1",
        b"MSG ev 1 0000000001",
        b"MSG ev 1 ",
        b"HMSG ev 1 2 1",
        b"HMSG ev 1 x 1",
        b"HMSG ev 1 -1 1",
        b"MSG ev 1 %d" % (LARGEST_MESSAGE_BYTES + 1),
    ],
)
def test_parser_leaves_a_line_without_a_handler_to_nats_py(line: bytes) -> None:
    made = ParserBench()
    assert made.parser._messages(ONE + line + b"\r\na\r\n" + ONE, 0) == len(ONE)
    assert (made.values(), made.counted, made.parser._needed_bytes) == ([b"a"], (1, 1), 0)
    if line.endswith(b"1"):  # not those whose size means something else
        leaving = ParserBench(IngestParser)
        leaving.parser.drops_unread = True
        assert leaving.parser._messages(ONE + line + b"\r\na\r\n" + ONE, 0) == len(ONE)
        assert (leaving.values(), leaving.counted, leaving.parser.dropped_unread) == ([], (1, 1), 1)


def test_parser_waits_for_the_rest_of_a_message_of_the_largest_size() -> None:
    made, line = ParserBench(), b"MSG ev 1 %d\r\n" % LARGEST_MESSAGE_BYTES
    assert made.parser._messages(line, 0) == 0
    assert made.parser._needed_bytes == len(line) + LARGEST_MESSAGE_BYTES + 2


def test_parser_counts_a_message_whose_handler_raises() -> None:
    made = ParserBench()
    stream = b"MSG ev 1 3\r\nbug\r\n" + ONE + b"HMSG ev 1 0 3\r\nbug\r\n"
    assert made.parser._messages(stream, 0) == len(stream)
    assert (made.values(), made.client.failed, made.counted) == ([b"a"], [b"ev", b"ev"], (3, 7))


def test_parser_reads_consecutive_messages_with_equal_lines_in_one_pass() -> None:
    made = ParserBench()
    calls: list[Any] = []
    repeats = made.parser._repeats
    made.parser._repeats = lambda *given: calls.append((given[1:], repeats(*given))) or calls[-1][1]
    line, stream = b"MSG w.x 3 r 2\r\n", b"".join(b"MSG w.x 3 r 2\r\n%02d\r\n" % number for number in range(4))
    assert made.parser._messages(stream + ONE + ONE[:-3], 0) == len(stream + ONE)
    assert calls == [
        ((len(stream) // 4, line, (b"3", b"w.x", b"r"), 2), 3),
        ((len(stream + ONE), ONE[:12], (b"1", b"ev", b""), 1), 0),
    ]
    assert made.got[:4] == [(b"w.x", b"r", b"%02d" % number, b"") for number in range(4)]
    assert made.counted == (5, 9)
    headed = b"HMSG ev 1 0 1\r\na\r\n" * 2
    assert made.parser._messages(headed, 0) == len(headed)
    assert len(calls) == 2, "not those with headers"


def test_parser_does_not_call_a_removed_handler() -> None:
    made = ParserBench()
    taken: list[bytes] = []

    def once(*message: bytes) -> None:
        taken.append(message[2])
        del made.parser._sinks[b"1"]

    made.parser._sinks[b"1"] = once
    assert made.parser._messages(ONE * 3, 0) == len(ONE)
    assert (taken, made.client.failed, made.counted) == ([b"a"], [], (1, 1))


# ---- what is left out --------------------------------------------------------------------------------------------------------
@pytest.fixture
def leaving() -> ParserBench:
    made: Any = ParserBench(IngestParser)
    made.parser.drops_unread = True
    made.given_up = []
    made.parser.on_dropped(1, lambda count: made.given_up.append((1, count)))
    made.parser.on_dropped(2, lambda count: made.given_up.append((2, count)))
    return made


PLAIN = b"MSG ev 1 3\r\nabc\r\n"


@pytest.mark.parametrize("first", [b"", PLAIN * 2])
@pytest.mark.parametrize(
    "other",
    [
        b"MSG ev 1 r 3\r\nabc\r\n",
        b"HMSG ev 1 r 0 3\r\nabc\r\n",
        b"MSG ev 1 %d\r\n%b\r\n" % (len(MAGIC), MAGIC),
        b"HMSG ev 1 12 %d\r\n%b%b\r\n" % (12 + len(MAGIC), HEADERS, MAGIC),
        b"MSG evx 1 3\r\nabc\r\n",
        b"MSG ev 9 3\r\nabc\r\n",
        b"PING\r\n",
        b"MSG ev",
    ],
)
def test_parser_that_drops_messages_without_reply_stops_before_a_request_or_another_protocol_line(
    leaving: Any, other: bytes, first: bytes
) -> None:
    count = len(first) // len(PLAIN)
    assert leaving.parser._messages(b"##" + first + other + PLAIN, 2) == 2 + len(first)
    assert (leaving.got, leaving.parser._needed_bytes) == ([], 0)
    assert leaving.given_up == ([(1, 2)] if first else [])
    assert (leaving.parser.dropped_unread, leaving.parser.received, leaving.counted) == (count, count, (count, 3 * count))


def test_parser_that_drops_messages_without_reply_counts_them_per_subscription(leaving: Any) -> None:
    runs = PLAIN * 3 + b"MSG any 2 0\r\n\r\n" * 2 + b"HMSG ev 1 12 14\r\n%bab\r\n" % HEADERS + b"MSG w.a 3 3\r\nabc\r\n"
    assert leaving.parser._messages(runs, 0) == len(runs)
    assert leaving.given_up == [(1, 3), (2, 2), (1, 1)]
    assert (leaving.parser.dropped_unread, leaving.parser.received, leaving.counted) == (7, 7, (7, 9 + 14 + 3))
    leaving.parser.forget(1)
    assert sorted(leaving.parser._patterns) == [b"3"], "nor is its subject remembered"
    leaving.parser.expect(1, "ev")
    leaving.parser._messages(PLAIN, 0)
    assert len(leaving.given_up) == 3, "who has left is told nothing"


@pytest.mark.parametrize("first", [b"", PLAIN * 2])
def test_parser_waits_for_the_rest_of_a_message(leaving: Any, first: bytes) -> None:
    for cut in (1, 9, 11, 12, len(PLAIN) - 1):
        leaving.parser._needed_bytes = 0
        assert leaving.parser._messages(first + PLAIN[:cut], 0) == len(first)
        assert leaving.parser._needed_bytes == (len(PLAIN) if cut >= 12 else 0)
    assert leaving.got == []


async def test_parser_that_drops_messages_without_reply_delivers_requests(leaving: Any) -> None:
    await leaving.parser.parse(PLAIN + b"HMSG ev 1 r 12 14\r\n%bab\r\n" % HEADERS + b"MSG ev 1 r 3\r\nbug\r\n" + PLAIN)
    assert leaving.got == [(b"ev", b"r", b"ab", HEADERS)]
    assert leaving.client.failed == [b"ev"]
    assert (leaving.parser.dropped_unread, leaving.parser.received) == (2, 4)
    await leaving.parser.parse(b"MSG a.x 7 r 3\r\nown\r\nMSG evx 1 r 1\r\na\r\n")
    assert leaving.client.own == [b"own"], "nats-py's own go to nats-py"
    assert leaving.parser.errors == {"foreign_subject": 1}
    assert leaving.parser.received == 6


async def test_parser_skips_commands_buffered_from_a_lost_connection(leaving: Any) -> None:
    leaving.parser.lost = 1
    await leaving.parser.parse(b"PING\r\n" + PLAIN)
    assert (leaving.client.calls, leaving.parser.dropped_unread) == ({}, 1)
    leaving.parser.lost = 0
    await leaving.parser.parse(b"PING\r\n")
    assert leaving.client.calls == {"ping": 1}


async def test_parser_outside_overload_delivers_every_message() -> None:
    made = ParserBench(IngestParser)
    await made.parser.parse(PLAIN * 2 + b"MSG evx 1 1\r\na\r\n" + b"MSG a.x 7 3\r\nown\r\n")
    assert (made.values(), made.client.own) == ([b"abc", b"abc"], [b"own"])
    assert (made.parser.received, made.parser.dropped_unread, made.counted) == (4, 0, (2, 6))
    assert made.parser.errors == {"foreign_subject": 1}
