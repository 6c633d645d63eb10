"""A differential fuzzer of the NATS parser: ``python -m tests.unit.transport.parser_fuzz [--count N] [--seed S]``.

Streams of frames with hostile subjects, replies, sizes and separators go, cut at random places and at every byte, through
``SinkParser``, by way of ``parse`` and by way of ``feed``; what arrives where must be what a slow and plain reading of the protocol's
document gives [A12].
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, TypeVar, cast

from nats.aio.subscription import Subscription
from nats.errors import ProtocolError

from sidecar.transport.parser import SinkParser

T = TypeVar("T")

Got = list[tuple[Any, ...]]
"""What was dispatched, in order: ("sink" or "nats-py", sid, subject, reply, payload, header block), or (operation,)."""

SINKS = {1: "shop.>", 2: "shop.orders", 3: "_INBOX.node.*.*", 4: "*.a.*", 7: "liftpy.notify.n1"}
OWN = {8: "own.*", 9: "_INBOX.own"}
SUBJECTS = (b"shop.a", b"shop.orders", b"shop.a.b", b"_INBOX.node.1.22", b"x.a.y", b"liftpy.notify.n1", b"own.z", b"_INBOX.own")
HOSTILE = (
    b"\x0b",
    b"\x0c",
    b"\t",
    b"\r",
    b"\x00",
    b"\x1c",
    b"\x1f",
    b"\x85",
    b"\xa0",
    b"\xff\xfe",
    b"\xe2\x80\x83",
    b"\n",
    b".",
    b"*",
    b">",
)


# ---- the reading of the document ---------------------------------------------------------------------------------------
def matches(pattern: str, subject: bytes) -> bool:
    """Whether the tokens of ``subject`` are what ``pattern`` asks for."""
    wanted, tokens = [token.encode() for token in pattern.split(".")], subject.split(b".")
    for place, token in enumerate(wanted):
        if token == b">":
            return len(tokens) > place and all(tokens[place:])
        if place >= len(tokens) or not tokens[place] or token not in (b"*", tokens[place]):
            return False
    return len(tokens) == len(wanted)


def strict(stream: bytes) -> tuple[Got, Counter[str], bool]:
    """(what is dispatched, what is counted, whether the stream ends in an error), of a stream that arrives whole."""
    got: Got = []
    counted: Counter[str] = Counter()
    while stream:
        line, crlf, rest = stream.partition(b"\r\n")
        if not crlf:
            break
        if line in (b"PING", b"PONG", b"+OK"):
            got.append((line,))
            stream = rest
            continue
        frame = re.fullmatch(rb"(MSG|HMSG)(?: .*)? ([0-9]{1,9})", line, re.DOTALL)
        if frame is None or int(frame[2]) > 256 << 20:
            return got, counted, True
        total = int(frame[2])
        if len(rest) < total + 2:
            break
        content, stream = rest[:total], rest[total + 2 :]
        _message(line, content, got, counted)
    return got, counted, False


def _message(line: bytes, content: bytes, got: Got, counted: Counter[str]) -> None:
    plain = re.fullmatch(rb"MSG ([^ ]+) ([0-9a-z]+) (?:([^ ]+) )?([0-9]{1,9})", line)
    headed = re.fullmatch(rb"HMSG ([^ ]+) ([0-9a-z]+) (?:([^ ]+) )?([0-9]{1,9}) ([0-9]{1,9})", line)
    found = plain or headed
    header = int(headed[4]) if headed else 0
    if found is None or header > len(content) or not re.fullmatch(rb"[0-9]{1,9}", found[2]):
        counted["malformed"] += 1
        return
    subject, sid, reply = found[1], int(found[2]), found[3] or b""
    pattern = {**SINKS, **OWN}.get(sid)
    if pattern is None:
        return
    if not matches(pattern, subject):
        counted["foreign_subject"] += 1
        return
    whose = "sink" if sid in SINKS else "nats-py"
    if whose == "nats-py" and not (_text(subject) and _text(reply)):
        counted["undecodable"] += 1
        return
    got.append((whose, sid, subject, reply, content[header:], content[:header]))


def _text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---- the parser, and what it calls --------------------------------------------------------------------------------------
class Recorder:
    """A connection that writes down what the parser does."""

    def __init__(self) -> None:
        self.got: Got = []
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self._subs = {sid: Subscription(self, sid, pattern) for sid, pattern in {**SINKS, **OWN}.items()}

    async def _process_ping(self) -> None:
        self.got.append((b"PING",))

    async def _process_pong(self) -> None:
        self.got.append((b"PONG",))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid in self._subs:
            subject.decode(), reply.decode()
            self.got.append(("nats-py", sid, subject, reply, data, headers))


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that waits for nothing. An event loop for each stream would take most of the time."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("the parser waits")


def parsed(chunks: list[bytes], *, at_once: bool = False) -> tuple[Got, Counter[str], bool]:
    """As ``strict``, by the parser, of a stream that arrives in pieces. ``at_once``: fed, and parsed only where that is not enough."""
    connection = Recorder()
    got = connection.got

    def sink(sid: int) -> Any:
        return lambda subject, reply, payload, headers: got.append(("sink", sid, subject, reply, payload, headers))

    parser = SinkParser(connection, {b"%d" % sid: sink(sid) for sid in SINKS})
    for sid, pattern in SINKS.items():
        parser.expect(sid, pattern)

    async def feed() -> bool:
        try:
            for chunk in chunks:
                if not at_once:
                    await parser.parse(chunk)
                elif not parser.feed(chunk):
                    await parser.parse()
        except ProtocolError:
            return True
        return False

    failed = complete(feed())
    return [what for what in got if what != (b"+OK",)], parser.errors, failed


# ---- streams ---------------------------------------------------------------------------------------------------------------
def _token(rng: random.Random, token: bytes) -> bytes:
    while rng.random() < 0.3:
        at = rng.randrange(len(token) + 1)
        poison = rng.choice((*HOSTILE, b"\x0b%d" % rng.randrange(10), b"\x0c%d" % rng.randrange(10), b" 7 "))
        token = token[:at] + poison + token[at:]
    return token


def _size(rng: random.Random, size_bytes: int) -> bytes:
    if rng.random() < 0.97:
        return b"%d" % size_bytes
    return rng.choice((b"0%d", b"+%d", b"%d\x0b", b"\xd9\xa1%d", b"%d_0", b"-%d", b"%d99999999", b" %d", b"0x%d")) % size_bytes


def frame(rng: random.Random) -> bytes:
    """One command or message; most are as a server sends them, subject and reply apart."""
    if rng.random() < 0.15:
        return rng.choice((b"PING\r\n", b"PONG\r\n", b"+OK\r\n"))
    payload = rng.choice((b"", b"x", b"MSG shop.a 7 2\r\nhi\r\n", b"\r\n", b"z" * rng.randrange(30), b"y" * 5000))
    whole = rng.choice(SUBJECTS)
    theirs = [sid for sid, pattern in {**SINKS, **OWN}.items() if matches(pattern, whole)]
    sid = b"%d" % rng.choice(theirs) if rng.random() < 0.8 else rng.choice((b"1", b"7", b"8", b"55", b"1\x0b7", b"x"))
    fields = [_token(rng, whole), sid]
    if rng.random() < 0.5:
        fields.append(_token(rng, rng.choice(SUBJECTS)))
    header = b""
    if rng.random() < 0.4:
        header = rng.choice((b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n", b"\r\n", b"NATS/1.0 \xff\r\n\r\n"))
        wrong = len(header) + len(payload) + 1
        fields.append(_size(rng, len(header) if rng.random() < 0.95 else wrong))
    fields.append(_size(rng, len(header) + len(payload)))
    blank = b" " if rng.random() < 0.98 else rng.choice((b"  ", b"\t", b"\x0b"))
    return blank.join((b"HMSG" if header else b"MSG", *fields)) + b"\r\n" + header + payload + b"\r\n"


def run_of(rng: random.Random, one: bytes) -> bytes:
    """``one``, sometimes several times, with different payloads of one size: a publisher's burst."""
    count = rng.randint(2, 5) if rng.random() < 0.3 else 1
    has_payload = one[:1] in b"MH" and not one.endswith(b"\r\n\r\n")
    return b"".join(one[:-3] + rng.choice((b"a", b"b", b" ")) + b"\r\n" if has_payload else one for _ in range(count))


def check(seed: int, *, every_byte: bool) -> int:
    """One stream in several cuts against the plain reading; the number of messages that it dispatched."""
    rng = random.Random(seed)
    stream = b"".join(run_of(rng, frame(rng)) for _ in range(rng.randint(1, 12)))
    got, counted, failed = strict(stream)
    wanted = ([what for what in got if what != (b"+OK",)], counted, failed)
    edges = sorted({0, len(stream), *(rng.randrange(len(stream)) for _ in range(rng.randrange(8)))})
    cuts = [[stream], [stream[a:b] for a, b in pairwise(edges)]]
    if every_byte:
        cuts += [[stream[:at], stream[at:]] for at in range(1, min(len(stream), 300))]
        cuts.append([stream[at : at + 1] for at in range(len(stream))])
    for number, chunks in enumerate(cuts):
        for at_once in (False, True) if number < 2 else (bool(number % 2),):
            found = parsed(chunks, at_once=at_once)
            assert found == wanted, f"seed {seed}, fed at once {at_once}: {chunks}\n  found {found}\n  wanted {wanted}"
    return len(wanted[0])


def fuzz(count: int, seed: int) -> int:
    """Check ``count`` streams, every twentieth cut at each of its bytes; the number of messages that were dispatched."""
    return sum(check(seed * 1_000_000 + number, every_byte=number % 20 == 0) for number in range(count))


def main() -> None:
    """The command."""
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("--count", type=int, default=100_000)
    asking.add_argument("--seed", type=int, default=int(time.time()))
    asked = asking.parse_args()
    print(f"seed {asked.seed}: {asked.count} streams, {fuzz(asked.count, asked.seed)} messages, no difference")


if __name__ == "__main__":
    main()
