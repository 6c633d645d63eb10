"""Test acks for several consecutive messages: each message completes once with its own offset [A1, A8, A9]."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import publisher as publisher_module
from liftpy.client.in_flight import PublishAck
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from tests.unit.client.test_client_publisher_steps import ack, publisher, turns

_Ack = client_pb2.Ack


@pytest.fixture(autouse=True)
def no_sweeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 3600.0)


async def sent(made: Any, count: int) -> list[asyncio.Future[PublishAck]]:
    return [await made.send(b"v%d" % number) for number in range(count)]


def offsets(answers: list[asyncio.Future[PublishAck]]) -> list[int]:
    return [answer.result().offset if answer.done() else -1 for answer in answers]


async def test_publisher_message_with_ack_policy_all_has_the_batch_ack_flag() -> None:
    made, wire, _ = publisher()
    await made.send(b"v")
    await made.send(b"v", key=b"k", headers={"h": "1"}, msg_id="m")
    await made.post(b"v", key=b"k")
    said = [frames.decode(payload, client_pb2.Message).runs for _, payload, *_ in wire.sent]
    assert said == [True, True]
    assert not frames.decode(wire.posted[0][1], client_pb2.Message).runs, "nobody answers it"


async def test_batch_ack_completes_each_message_with_its_own_offset() -> None:
    made, _, _ = publisher()
    answers = await sent(made, 6)
    await made._on_ack(ack(1, offset=70, recordCount=4, leaderEpoch=9))
    assert offsets(answers) == [-1, 70, 71, 72, 73, -1]
    assert answers[2].result() == PublishAck("s", 0, 71, 9)
    assert made.in_flight == 2
    assert made.in_flight_bytes == made._in_flight[0].size_bytes + made._in_flight[5].size_bytes
    await made._on_ack(ack(0, offset=4))
    await made._on_ack(ack(5, offset=90))
    assert (offsets(answers), made.in_flight, made.in_flight_bytes) == ([4, 70, 71, 72, 73, 90], 0, 0)


async def test_batch_ack_ignores_messages_that_are_already_acknowledged_or_cancelled() -> None:
    made, _, _ = publisher()
    answers = await sent(made, 4)
    answers[2].cancel()
    await made._on_ack(ack(0, offset=10))
    await made._on_ack(ack(0, offset=50, recordCount=4))
    assert (answers[0].result().offset, answers[1].result().offset, answers[3].result().offset) == (10, 51, 53)
    assert answers[2].cancelled()
    assert (made.in_flight, made.in_flight_bytes) == (0, 0)


async def test_batch_ack_with_a_count_above_the_sent_messages_completes_only_sent_messages() -> None:
    """Any NATS client may publish to an inbox."""
    made, _, _ = publisher()
    answers = await sent(made, 2)
    await made._on_ack(ack(1, offset=5, recordCount=(1 << 32) - 1))
    assert offsets(answers) == [-1, 5]
    later = await sent(made, 1)
    assert offsets(later) == [-1], "what was not sent by then is not answered"
    await made._on_ack(ack(10**17, offset=5, recordCount=(1 << 32) - 1))
    await made._on_ack(SimpleNamespace(subject="in0.x", data=ack(0, offset=5, recordCount=9).data, headers=None))
    assert offsets([answers[0], *later]) == [-1, -1]


@pytest.mark.parametrize("said", [{"stream": "t"}, {"partition": 1}, {"streamUid": "u2"}])
async def test_batch_ack_of_another_stream_is_ignored(said: dict[str, Any]) -> None:
    made, _, _ = publisher()
    answers = await sent(made, 3)
    await made._on_ack(ack(0, **{"offset": 5, "recordCount": 3} | said))
    assert (offsets(answers), made.in_flight, made.foreign_answers) == ([-1] * 3, 3, 1)


async def test_batch_ack_of_a_recreated_stream_completes_only_messages_of_that_stream() -> None:
    made, _, _ = publisher()
    answers = await sent(made, 3)
    made._in_flight[1].uid = "u2"
    await made._on_ack(ack(0, offset=5, recordCount=3))
    assert (offsets(answers), [*made._in_flight]) == ([5, -1, 7], [1])


async def test_batch_ack_stops_the_resending_of_its_messages() -> None:
    made, wire, _ = publisher()
    answers = await sent(made, 3)
    now = asyncio.get_running_loop().time()
    for number in range(3):
        made._send_again(number, made._in_flight[number], publisher_module.UnavailableError("nobody"))
    await made._send_refused(now + 10)
    assert [reply for _, _, reply, *_ in wire.sent[3:]] == ["in0.0"], "the first goes alone"
    later = await made.send(b"v")
    await made._on_ack(ack(0, offset=5, recordCount=3))
    assert (offsets(answers), made._refused) == ([5, 6, 7], {3})
    await made._send_refused(asyncio.get_running_loop().time())
    assert [reply for _, _, reply, *_ in wire.sent[4:]] == ["in0.3"], "somebody has taken the first: the others follow"
    assert not later.done()


async def test_batch_ack_with_an_error_fails_only_its_first_message() -> None:
    made, _, _ = publisher()
    answers = await sent(made, 2)
    await made._on_ack(ack(0, ackError=_Ack.TOO_LARGE, recordCount=2))
    assert [answer.done() for answer in answers] == [True, False]
    answers[0].exception()


async def test_publisher_that_receives_no_acks_sends_at_most_the_messages_of_its_window() -> None:
    """Further sends wait, so the memory does not grow."""
    made, wire, _ = publisher(window=100, window_bytes=1 << 20)
    await sent(made, 100)
    waiting = [asyncio.ensure_future(made.send(b"w")) for _ in range(50)]
    await turns()
    assert (made.in_flight, len(made._in_flight), len(wire.sent)) == (100, 100, 100)
    await made._on_ack(ack(0, offset=0, recordCount=100))
    await asyncio.gather(*waiting)
    assert (made.in_flight, len(wire.sent)) == (50, 150)


async def test_publisher_memory_stays_constant_over_many_messages() -> None:
    made, wire, _ = publisher(window=100)
    wire.try_write = lambda *given: True  # type: ignore[method-assign]

    async def round_trip() -> None:
        first = made._next_id
        for _ in range(100):
            await made.send(b"v" * 100)
        await made._on_ack(ack(first, offset=first, recordCount=100))

    for _ in range(3):
        await round_trip()
    before = sys.getallocatedblocks()
    for _ in range(10):
        await round_trip()
    grown = sys.getallocatedblocks() - before
    assert (made.in_flight, made.in_flight_bytes, len(made._in_flight)) == (0, 0, 0)
    assert grown < 500, "1,000 messages, each of several blocks of memory"
