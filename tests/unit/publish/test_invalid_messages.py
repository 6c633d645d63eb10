"""Test that invalid messages of one read do not change the answers to the other messages."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from tests.batches import build_batch
from tests.unit.publish.ingest_bench import turn
from tests.unit.publish.test_conditional_publishes import LAST_ID, NAMED, OF, Bench

EXPECTED = "Nats-Expected-Last-Sequence"
WALL_NS = 1_700_000_000_000_000_000
Raw = tuple[str, bytes, bytes, bytes]
"""Subject, reply, payload, header block."""


def block(*headers: tuple[str, object]) -> bytes:
    return b"NATS/1.0\r\n%b\r\n" % b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)


class Messages:
    """Random messages, of which each has a reply subject and a payload of its own."""

    def __init__(self, seed: int, bad: float) -> None:
        self.rng, self.bad, self.count = random.Random(seed), bad, 0

    def some(self, count: int) -> list[Raw]:
        return [self.one() for _ in range(count)]

    def one(self) -> Raw:
        rng = self.rng
        self.count += 1
        reply, payload = b"_INBOX.%d" % self.count if rng.random() < 0.8 else b"", b"v%d" % self.count
        if rng.random() < self.bad:
            return self._unfit(f"ev.{rng.randrange(3)}", reply, payload)
        return self._fit(f"ev.{rng.randrange(3)}", reply, payload)

    def _fit(self, subject: str, reply: bytes, payload: bytes) -> Raw:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return subject, reply, payload, block(("Nats-Msg-Id", f"id{rng.randrange(self.count)}"))
            case 1:
                return subject, reply, frames.encode(client_pb2.Message(value=payload, offset=-1, stream="s")), b""
            case 2:
                return subject, reply, payload, block(("a", 1))
            case 3 if rng.random() < 0.3:
                batch = build_batch([payload, payload])
                return subject, reply, frames.batch_publish(client_pb2.BatchPublish(stream="s", streamUid="u1"), batch), b""
        return subject, reply, payload, b""

    def _unfit(self, subject: str, reply: bytes, payload: bytes) -> Raw:
        """Some of them expect what happens to be so."""
        rng = self.rng
        near = rng.randrange(max(self.count - 3, 0), self.count + 3)
        headers: list[tuple[str, object]] = []
        match rng.randrange(14):
            case 0:
                headers = [("Nats-Batch-Id", "b")]
            case 1:
                headers = [("Nats-TTL", "1h")]
            case 2:
                headers = [("Nats-Msg-Id", "x" * 300)]
            case 3:
                headers = [("Lift-Tombstone", 1)]
            case 4:
                return subject, b"_INBOX.%d.$FI" % self.count, payload, b""
            case 5:
                return subject, reply, frames.encode(client_pb2.Message(value=payload, offset=-1, stream="other")), b""
            case 6:
                headers = [("Nats-Rollup", "sub")]
            case 7:
                headers = [("Nats-Rollup", "sub"), (EXPECTED, near)]
            case 8:
                payload *= 60
            case 9 | 10:
                headers = [(EXPECTED, near)]
            case 11:
                headers = [(OF, near), *([(NAMED, rng.choice(("ev.1", "ev.*", "ev.none")))] if rng.random() < 0.5 else [])]
            case 12:
                headers = [(LAST_ID, f"id{rng.randrange(self.count)}"), *([(OF, 0)] if rng.random() < 0.2 else [])]
            case _:
                return subject, reply, b"\xb9\x0e\x43\xb4\x00\x08\x00\x08" + payload, b""
        return subject, reply, payload, block(*headers)


def answers_of(bench: Bench) -> dict[bytes, list[bytes]]:
    """Reply subject -> what was published to it."""
    found = defaultdict[bytes, list[bytes]](list)
    for line in bench.bus.lines:
        head, _, body = line.partition(b"\r\n")
        found[head.split()[1]].append(body)
    return dict(found)


def records_of(bench: Bench) -> list[Any]:
    return [(r.subject, r.value, r.headers) for batch in bench.batches for r in parse_batch(batch).records()]


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still: answers name times."""
    monkeypatch.setattr(time, "time_ns", lambda: WALL_NS)


def made(*, wants_offsets: bool = False) -> Bench:
    bench = Bench()
    bench.ingest.reader.max_message_bytes = 150
    bench.ingest.reader.wants_offsets = wants_offsets
    return bench


async def read(bench: Bench, messages: list[Raw]) -> None:
    for subject, reply, payload, headers in messages:
        bench.bus.sink(subject.encode(), reply, payload, headers)
    await turn()


def outcome(bench: Bench) -> tuple[Any, ...]:
    for policy in (AckPolicy.LEADER, AckPolicy.ALL):
        bench.acks.release(policy, bench.end - 1, 1, WALL_NS)
    counters = bench.ingest.counters
    return records_of(bench), answers_of(bench), counters.rejected, counters.duplicates, counters.dropped, counters.records


@pytest.mark.parametrize("bad", [0.02, 0.2, 0.6, 1.0])
async def test_ingest_of_mixed_valid_and_invalid_messages_answers_as_if_each_came_alone(bad: float) -> None:
    for seed in range(8):
        messages, together, apart = Messages(seed, bad), made(wants_offsets=seed % 5 == 4), made(wants_offsets=seed % 5 == 4)
        for _ in range(3):
            batch = messages.some(messages.rng.randrange(1, 40))
            await read(together, batch)
            for message in batch:
                await read(apart, [message])
        assert outcome(together) == outcome(apart), (seed, bad)


@pytest.mark.parametrize(
    ("header", "batches"),
    [(("Nats-Batch-Id", "b"), 1), (("Nats-Rollup", "sub"), 1), ((EXPECTED, 9_999), 5)],
    ids=["unsupported", "against_settings", "condition"],
)
async def test_ingest_of_a_socket_read_with_five_invalid_messages_stores_the_others_in_few_batches(
    header: tuple[str, object], batches: int
) -> None:
    bench = made()
    bad = (100, 200, 201, 350, 480)  # two stand beside each other
    await read(bench, [("ev.1", b"_INBOX.%d" % i, b"v", block(header) if i in bad else b"") for i in range(500)])
    assert (bench.end, bench.ingest.counters.rejected, len(bench.batches)) == (495, 5, batches)


async def test_ingest_of_a_socket_read_skips_only_the_message_whose_decoding_raises() -> None:
    bench = made()
    real = bench.ingest.reader.read

    def fail_at_seven(messages: Any, now_wall_ns: int) -> Any:
        if any(payload == b"7" for _, _, payload, _ in messages):
            raise RuntimeError("nobody thought of this")
        return real(messages, now_wall_ns)

    bench.ingest.reader.read = fail_at_seven
    await read(bench, [("ev.1", b"_INBOX.%d" % i, b"%d" % i, b"") for i in range(256)])
    assert [value for _, value, _ in records_of(bench)] == [b"%d" % i for i in range(256) if i != 7]
    assert len(bench.bus.failed) == 1
    assert len(bench.batches) <= 8
