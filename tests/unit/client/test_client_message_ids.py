"""Test publishes with a message id: resends inside the dedup window, outcomes, and the order of messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftpy.client import publisher as publisher_module
from liftpy.client.encode_publish import Address, headers_with_conditions
from liftpy.client.in_flight import MessageIds, PublishAck, PublishOptions
from liftpy.client.publisher import Publisher
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ConfigError, LiftError, NotFoundError, OutcomeUnknownError, PublishRejectedError, UnavailableError
from tests.unit.client.test_client_publisher_steps import Found, Wire, ack, nobody

_Ack = client_pb2.Ack


@pytest.fixture(autouse=True)
def no_sweeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 3600.0)


def knowing(window_s: float = 120.0, **options: Any) -> tuple[Any, Wire]:
    wire: Any = Wire()
    made = Publisher(wire, "s", 0, Address("shop.s", "u1", True, window_s), PublishOptions(**options), find=Found())
    return made, wire


def headers(sent: Any) -> dict[str, str]:
    message = frames.decode(sent[1], client_pb2.Message)
    return {header.name: header.value.decode() for header in message.headers}


def replies(wire: Wire) -> list[str]:
    return [sent[2] for sent in wire.sent]


def test_publisher_message_ids_consist_of_a_random_prefix_and_a_counter() -> None:
    one, other = MessageIds(), MessageIds()
    ids = [one.next() for _ in range(3)] + [other.next()]
    assert len(set(ids)) == 4
    assert [i.rpartition(b".")[2] for i in ids] == [b"0", b"1", b"2", b"0"]
    assert len(ids[0]) == 18


def test_publish_with_message_id_or_expected_offset_sends_the_nats_header_of_each() -> None:
    assert headers_with_conditions({"a": "1"}, "id", None) == (("a", b"1"), ("Nats-Msg-Id", b"id"))
    assert headers_with_conditions(None, "", -1) == (("Nats-Expected-Last-Sequence", b"0"),)
    assert headers_with_conditions(None, "", 41) == (("Nats-Expected-Last-Sequence", b"42"),)
    for wrong in ("a\r\nb", " a", "x" * 256, "é" * 128):
        with pytest.raises(ConfigError, match="Invalid message id"):
            headers_with_conditions(None, wrong, None)
    headers_with_conditions(None, "x" * 255, (1 << 62) - 1)
    for offset in (-2, 1 << 62):
        with pytest.raises(ConfigError, match="Invalid expected_last ="):
            headers_with_conditions(None, "", offset)
    with pytest.raises(ConfigError, match="set twice"):
        headers_with_conditions({"Nats-Msg-Id": "a"}, "b", None)


async def test_publisher_adds_message_ids_only_if_the_stream_has_a_dedup_window() -> None:
    for window_s, wanted, made_one in ((120.0, True, True), (120.0, False, False), (0.0, True, False)):
        made, wire = knowing(window_s, message_ids=wanted)
        await made.send(b"v")
        await made.send(b"w", msg_id="mine", expected_last=3)
        assert ("Nats-Msg-Id" in headers(wire.sent[0])) is made_one
        assert headers(wire.sent[1]) == {"Nats-Msg-Id": "mine", "Nats-Expected-Last-Sequence": "4"}
        await made.close()


async def test_publisher_resends_an_unanswered_message_with_the_same_id_until_an_ack_arrives() -> None:
    made, wire = knowing()
    future = await made.send(b"v", msg_id="one")
    message, now = made._in_flight[0], asyncio.get_running_loop().time()
    assert (message.attempt_s, message.deadline <= now + 2.0) == (2.0, True)
    made._may_be_stored([0], now, "silence")
    assert (message.maybe_stored, message.attempt_s, made._refused) == (True, 4.0, {0})
    made._may_be_stored([0], now, "silence again")
    assert message.attempt_s == 4.0, "it waits to be sent already"
    await made._send_refused(now)
    assert wire.sent[1][:3] == wire.sent[0][:3]
    for attempt_s in (8.0, 10.0, 10.0):
        made._may_be_stored([0], now, "silence")
        assert message.attempt_s == attempt_s, "no longer than is waited for an ack at all"
        await made._send_refused(now)
    await made._on_ack(ack(0, offset=7, leaderEpoch=2))
    assert future.result() == PublishAck("s", 0, 7, 2)
    await made._on_ack(ack(0, offset=7, leaderEpoch=2))  # of the other attempt
    assert made.in_flight == 0
    await made.close()


async def test_publisher_without_a_dedup_window_does_not_resend_an_unanswered_message() -> None:
    for window_s, options in ((0.0, {"msg_id": "one"}), (120.0, {})):
        made, wire = knowing(window_s)
        future = await made.send(b"v", **options)
        assert made._in_flight[0].attempt_s == 10.0
        made._may_be_stored([0], asyncio.get_running_loop().time(), "silence")
        error = future.exception()
        assert isinstance(error, OutcomeUnknownError)
        assert (error.message_id, len(wire.sent)) == (options.get("msg_id", ""), 1)
        await made.close()


async def test_publisher_does_not_resend_an_unanswered_message_after_the_dedup_window() -> None:
    made, wire = knowing(window_s=10.0, patience_s=60.0)
    silent, refused = await made.send(b"v", msg_id="one"), await made.send(b"w", msg_id="two")
    known_until = made._in_flight[0].known_until
    now = asyncio.get_running_loop().time()
    assert now + 7.5 < known_until <= now + 8.0
    made._may_be_stored([0], known_until - 0.01, "silence")
    made._send_again(1, made._in_flight[1], UnavailableError("refused"))
    await made._send_refused(known_until + 0.01)
    assert "silence (message id one" in str(silent.exception())
    assert replies(wire)[2:] == ["in0.1"], "what was refused is not stored: it goes out again"
    made._may_be_stored([1], made._in_flight[1].known_until, "silence")
    assert isinstance(refused.exception(), OutcomeUnknownError)
    await made.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnavailableError("nobody"), OutcomeUnknownError),
        (PublishRejectedError("full", "NO_SPACE"), OutcomeUnknownError),
        (PublishRejectedError("lost the race", "INCORRECT_OFFSET"), PublishRejectedError),
        (NotFoundError("deleted"), NotFoundError),
    ],
)
async def test_publisher_rejection_after_an_unanswered_attempt_raises_outcome_unknown(
    error: LiftError, kind: type[LiftError]
) -> None:
    made, _ = knowing()
    known, unknown = await made.send(b"v", msg_id="one"), await made.send(b"w", msg_id="two")
    made._in_flight[1].maybe_stored = True
    made._fail(0, error)
    made._fail(1, error)
    assert known.exception() is error
    assert type(unknown.exception()) is kind
    assert getattr(unknown.exception(), "message_id", "two") == "two"
    await made.close()


async def test_publisher_does_not_resend_an_unanswered_message_to_a_recreated_stream() -> None:
    made, wire = knowing()
    maybe, never = await made.send(b"v", msg_id="one"), await made.send(b"w", msg_id="two")
    made._may_be_stored([0], asyncio.get_running_loop().time(), "silence")
    made._send_again(1, made._in_flight[1], UnavailableError("refused"))
    made._addressing.address = Address("shop.s", "u2", True, 120.0)
    await made._send_refused(asyncio.get_running_loop().time() + 0.1)
    assert "deleted stream" in str(maybe.exception())
    assert "(message id one" in str(maybe.exception())
    await made._send_refused(asyncio.get_running_loop().time() + 0.2)
    assert (never.done(), len(wire.sent)) == (False, 3)
    await made.close()


async def test_publisher_resends_all_messages_with_an_id_after_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 0.0)
    made, wire = knowing()
    for number in range(3):
        await made.send(b"v", msg_id=f"id{number}")
    without = await made.send(b"w")
    before, wire.reconnected = wire.reconnected, asyncio.get_running_loop().create_future()
    before.set_result(None)
    while len(wire.sent) < 5:
        await asyncio.sleep(0)
    assert replies(wire)[4:] == ["in0.0"], "one first, to see whether somebody takes it"
    await made._on_ack(ack(0, offset=0))
    while len(wire.sent) < 7:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert replies(wire)[5:] == ["in0.1", "in0.2"], "once each, and not what has no id"
    assert not without.done()
    await made.close()


async def test_publisher_sends_later_messages_after_a_resent_message() -> None:
    made, wire = knowing()
    first = await made.send(b"0")
    await made._on_ack(nobody())
    for number in range(1, 4):
        await made.send(b"%d" % number)
    assert (replies(wire), made._refused) == (["in0.0"], {0, 1, 2, 3})
    at = made._in_flight[0].resend_at
    await made._send_refused(at - 0.001)
    assert len(wire.sent) == 1, "none overtakes it"
    for _ in range(3):
        await made._send_refused(at)
    assert replies(wire) == ["in0.0", "in0.0"], "it goes alone"
    await made._on_ack(nobody())
    again = made._in_flight[0].resend_at
    await made._send_refused(again)
    await made._on_ack(ack(0, offset=0))
    await made._send_refused(asyncio.get_running_loop().time())
    assert first.result().offset == 0
    assert replies(wire)[2:] == ["in0.0", "in0.1", "in0.2", "in0.3"]
    await made.send(b"4")
    assert replies(wire)[6:] == ["in0.4"]
    await made.close()


async def test_publisher_sends_the_next_message_after_a_timeout_of_the_first() -> None:
    made, wire = knowing(patience_s=5.0)
    first = await made.send(b"0")
    await made._on_ack(nobody())
    second = await made.send(b"1", timeout_s=100.0)
    await made._send_refused(made._in_flight[0].give_up)
    assert isinstance(first.exception(), UnavailableError)
    assert (replies(wire), second.done()) == (["in0.0", "in0.1"], False)
    await made.close()


async def test_publish_timeout_of_one_message_overrides_the_publisher_options() -> None:
    made, _ = knowing(timeout_s=10.0, patience_s=30.0)
    now = asyncio.get_running_loop().time()
    for timeout_s, options, attempt_s in ((1.5, {"msg_id": "a"}, 1.5), (5.0, {}, 5.0), (60.0, {}, 10.0), (None, {}, 10.0)):
        await made.send(b"v", timeout_s=timeout_s, **options)
        message = made._in_flight[made._next_id - 1]
        assert message.attempt_s == attempt_s
        assert now + (timeout_s or 30.0) <= message.give_up <= asyncio.get_running_loop().time() + (timeout_s or 30.0)
    message = made._in_flight[0]
    assert message.deadline_from(message.give_up - 0.5) == message.give_up, "who may ask again waits no longer than that"
    await made.close()
