"""Test the steps of a publisher without a server: sends, acks, resends, timeouts and errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import publisher as publisher_module
from liftpy.client.encode_publish import Address, envelope_of
from liftpy.client.in_flight import PublishAck, PublishOptions
from liftpy.client.publisher import Publisher
from liftpy.config import AckPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)

_Ack = client_pb2.Ack


@pytest.fixture(autouse=True)
def no_sweeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the timeout task. The tests of the task enable it again."""
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 3600.0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Wire:
    """A replacement of Transport. ``fails`` has the errors of the next writes."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.connection = SimpleNamespace(new_inbox=lambda: f"in{len(self.listened)}")
        self.has_room = True
        self.full: Any = None
        self.is_closed = False
        self.listened: list[tuple[str, float]] = []
        self.on_listen: Any = lambda: None
        self.left: list[str] = []
        self.sent: list[Any] = []
        self.posted: list[Any] = []
        self.fails: list[Exception] = []
        self.denied: Any = None
        self.close_callback: Any = None
        self.settled = 0
        self.on_settle: Any = lambda: None
        self.reconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def must_be_usable(self) -> None:
        if self.is_closed:
            raise ClientClosedError("The client is closed. Open a new client.")

    def check_event_loop(self) -> None:
        pass

    def check_server(self) -> None:
        pass

    def on_denial(self, callback: Any) -> Any:
        self.denied = callback
        return lambda: setattr(self, "denied", None)

    def on_close(self, callback: Any) -> Any:
        self.close_callback = callback
        return lambda: setattr(self, "close_callback", None)

    async def listen(self, subject: str, callback: Any, timeout_s: float) -> Any:
        self.listened.append((subject, timeout_s))
        self.on_listen()

        async def unsubscribe() -> None:
            self.left.append(subject)

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def room(self, give_up_at: float) -> None:
        await self.full(give_up_at)

    def try_write(self, subject: str, payload: bytes, reply: str) -> bool:
        return False

    async def write(self, subject: str, payload: bytes, reply: str, headers: Any, give_up_at: float) -> None:
        self.sent.append((subject, payload, reply, headers, give_up_at))
        if self.fails:
            raise self.fails.pop(0)

    async def publish(self, subject: str, payload: bytes, *, headers: Any = None, give_up_at: float) -> None:
        self.posted.append((subject, payload, headers))

    async def settle(self) -> None:
        self.settled += 1
        self.on_settle()


class Found:
    """The address that the metadata group returns."""

    def __init__(self) -> None:
        self.answer: Address | LiftError = Address("shop.s", "u1")
        self.asked = 0

    async def __call__(self) -> Address:
        self.asked += 1
        if isinstance(self.answer, LiftError):
            raise self.answer
        return self.answer


def publisher(answered: bool = True, uid: str = "u1", **options: Any) -> tuple[Any, Wire, Found]:
    wire, found = Wire(), Found()
    transport: Any = wire
    made = Publisher(transport, "s", 0, Address("shop.s", uid, answered), PublishOptions(**options), find=found)
    return made, wire, found


def ack(number: int = 0, inbox: str = "in0", **fields: Any) -> Any:
    data = frames.encode(_Ack(**{"stream": "s", "partition": 0, "streamUid": "u1", **fields}))
    return SimpleNamespace(subject=f"{inbox}.{number}", data=data, headers=None)


def nobody(number: int = 0) -> Any:
    return SimpleNamespace(subject=f"in0.{number}", data=b"", headers={"Status": "503"})


async def test_publisher_sends_envelopes_and_subscribes_one_inbox() -> None:
    made, wire, _ = publisher(timeout_s=7.0, patience_s=9.0)
    before = asyncio.get_running_loop().time()
    future = await made.send(b"v", key=b"k", headers={"h": "1"}, ack=AckPolicy.LEADER)
    payload = envelope_of("s", 0, "u1", b"v", b"k", {"h": "1"}, AckPolicy.LEADER, runs=True)
    [(subject, sent, reply, headers, give_up_at)] = wire.sent
    assert (subject, sent, reply, headers) == ("shop.s", payload, "in0.0", None)
    message = made._in_flight[0]
    assert before + 7 <= give_up_at == message.deadline
    assert message.give_up - message.deadline == pytest.approx(2)
    assert message.resend_at == 0
    assert (made.in_flight, made.in_flight_bytes) == (1, len(payload))
    assert wire.listened == [("in0.*", 7.0)]
    await made.send(b"w")
    assert (wire.sent[1][2], len(wire.listened), made.in_flight) == ("in0.1", 1, 2)
    await made._on_ack(ack(0, offset=5, leaderEpoch=3))
    assert future.result() == PublishAck("s", 0, 5, 3)
    assert made.in_flight == 1
    await made.close()


async def test_publisher_send_with_ack_policy_none_or_after_close_is_rejected() -> None:
    made, wire, _ = publisher()
    with pytest.raises(ConfigError, match="A message without an ack has no result"):
        await made.send(b"v", ack=AckPolicy.NONE)
    mute, _, _ = publisher(answered=False)
    with pytest.raises(ConfigError, match="has the ack policy none"):
        await mute.send(b"v")
    await made.close()
    for use in (made.send, made.post):
        with pytest.raises(ClientClosedError, match=r"^The publisher of s/0 is closed\."):
            await use(b"v")
    wire.is_closed = True
    with pytest.raises(ClientClosedError, match=r"^The client is closed\."):
        await made.post(b"v")
    assert (wire.sent, wire.posted, wire.listened) == ([], [], [])


async def test_publisher_without_a_stream_address_looks_up_the_stream_before_sending() -> None:
    made, wire, found = publisher()
    found.answer = NotFoundError("no stream")
    made._addressing.doubt()
    await turns()
    assert made._addressing.unknown
    for use in (made.send, made.post):
        with pytest.raises(NotFoundError):
            await use(b"v")
    assert (wire.sent, wire.posted, found.asked) == ([], [], 3)
    found.answer = Address("shop.t", "u2")
    await made.post(b"v", key=b"k")
    await made.send(b"v")
    assert found.asked == 4
    assert wire.posted == [("shop.t", envelope_of("s", 0, "u2", b"v", b"k", None, AckPolicy.NONE), None)]
    assert wire.sent[0][:2] == ("shop.t", envelope_of("s", 0, "u2", b"v", None, None, AckPolicy.ALL, runs=True))
    await made.close()


async def test_publisher_post_that_is_denied_raises_not_allowed_in_the_next_call() -> None:
    made, wire, _ = publisher()
    assert await made.publish(b"v", headers={"h": "1"}, ack=AckPolicy.NONE) is None
    await made.post(b"v", addressed=True)
    await made.post(None)
    await made.post(b"v", key=b"")
    assert wire.posted == [
        ("shop.s", b"v", {"h": "1"}),
        ("shop.s", envelope_of("s", 0, "u1", b"v", None, None, AckPolicy.NONE), None),
        ("shop.s", envelope_of("s", 0, "u1", None, None, None, AckPolicy.NONE), None),
        ("shop.s", envelope_of("s", 0, "u1", b"v", b"", None, AckPolicy.NONE), None),
    ]
    await made.flush()
    await made.flush()
    assert wire.settled == 1, "there is nothing more to settle"
    await made.post(b"v")
    wire.on_settle = lambda: wire.denied(True, "shop.s")
    with pytest.raises(NotAllowedError, match=r"publish on shop\.s"):
        await made.flush()
    await made.post(b"v")
    wire.denied(True, "shop.s")
    with pytest.raises(NotAllowedError):
        await made.post(b"w")
    await made.close()
    await made.flush()
    assert (wire.settled, len(wire.posted)) == (2, 6)
    assert wire.denied is None


async def test_publisher_closed_during_its_first_send_leaves_no_subscription() -> None:
    made, wire, _ = publisher()
    wire.on_listen = lambda: setattr(made, "_closed", True)
    with pytest.raises(ClientClosedError):
        await made.send(b"v")
    assert wire.left == ["in0.*"]
    assert (made._subscription, made._sweeper, made.in_flight) == (None, None, 0)


async def test_publisher_after_a_subscription_denial_subscribes_a_new_inbox() -> None:
    made, wire, _ = publisher()
    future = await made.send(b"v")
    sweeper = made._sweeper
    wire.denied(False, "in0.*")
    assert isinstance(future.exception(), NotAllowedError)
    await made.send(b"w")
    assert [subject for subject, _ in wire.listened] == ["in0.*", "in1.*"]
    assert made._sweeper is sweeper
    await made.close()
    assert wire.left == ["in1.*"]
    assert sweeper.done()


async def test_publisher_permission_denial_after_an_ack_fails_messages_in_flight_with_outcome_unknown() -> None:
    made, wire, _ = publisher()
    first, second = await made.send(b"v"), await made.send(b"w")
    await made._on_ack(ack(0))
    assert first.done()
    wire.denied(True, "shop.s")
    assert isinstance(second.exception(), OutcomeUnknownError)
    await made.close()


async def test_publisher_send_with_a_full_buffer_waits_and_sends_nothing_if_cancelled() -> None:
    made, wire, _ = publisher()
    wire.has_room = False
    gate = asyncio.get_running_loop().create_future()
    until: list[float] = []

    async def full(give_up_at: float) -> None:
        until.append(give_up_at)
        await asyncio.shield(gate)

    wire.full = full
    cancelled = asyncio.create_task(made.send(b"v"))
    goes_on = asyncio.create_task(made.send(b"w"))
    await turns()
    assert (wire.sent, made.in_flight, until) == ([], 2, [made._in_flight[0].deadline, made._in_flight[1].deadline])
    inner = made._in_flight[0].answer
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert (cancelled.cancelled(), inner.cancelled(), made.in_flight) == (True, True, 1)
    gate.set_result(None)
    await goes_on
    assert [reply for _, _, reply, _, _ in wire.sent] == ["in0.1"]
    given_up = asyncio.get_running_loop().create_future()

    async def none(give_up_at: float) -> None:
        await given_up

    wire.full = none
    late = asyncio.create_task(made.send(b"x"))
    await turns()
    given_up.set_exception(UnavailableError("no room"))
    future = await late
    assert (len(wire.sent), made._refused) == (1, {2})
    assert (str(made._in_flight[2].refusal), future.done()) == ("no room", False)
    await made.close()


async def test_publisher_does_not_send_a_message_that_failed_while_waiting_for_buffer_space() -> None:
    made, wire, _ = publisher()
    wire.has_room = False

    async def full(give_up_at: float) -> None:
        made._connection_lost(NotFoundError("it is gone"))

    wire.full = full
    future = await made.send(b"v")
    assert isinstance(future.exception(), NotFoundError)
    assert (wire.sent, made.in_flight) == ([], 0)

    async def closes(give_up_at: float) -> None:
        await made.close()
        raise ClientClosedError("closed")

    wire.full = closes
    with pytest.raises(ClientClosedError):
        await made.send(b"v")
    assert made.in_flight == 0


async def test_publisher_send_that_cannot_be_written_fails_only_a_too_large_message() -> None:
    made, wire, _ = publisher()
    wire.fails = [
        ProtocolError(
            "The message has 9 bytes, more than the NATS server accepts. Send a smaller message, or increase max_payload on the server."
        ),
        UnavailableError("cut"),
    ]
    large = await made.send(b"v")
    error = large.exception()
    assert isinstance(error, PublishRejectedError)
    assert (str(error), error.reason) == (
        "The message has 9 bytes, more than the NATS server accepts. Send a smaller message, or increase max_payload on the server.",
        "TOO_LARGE",
    )
    again = await made.send(b"w")
    assert (again.done(), made._refused, made.in_flight) == (False, {1}, 1)
    await made.close()
    with pytest.raises(OutcomeUnknownError, match=r"^the publisher was closed before the ack came$"):
        again.result()


async def test_publisher_retry_delays_double_up_to_a_bound() -> None:
    made, _, _ = publisher()
    await made.send(b"v")
    loop, message = asyncio.get_running_loop(), made._in_flight[0]
    for wait_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert message.wait_s == wait_s
        before = loop.time()
        made._send_again(0, message, UnavailableError("x"))
        assert before + wait_s <= message.resend_at <= loop.time() + wait_s
    made._send_again(5, message, UnavailableError("gone meanwhile"))
    assert (made._refused, str(message.refusal)) == ({0}, "x")
    await made.close()


async def test_publisher_retries_a_due_message_if_buffer_space_and_time_remain() -> None:
    made, wire, _ = publisher(timeout_s=7.0, patience_s=9.0)
    future = await made.send(b"v")
    message = made._in_flight[0]
    made._send_again(0, message, UnavailableError("the reason"))
    at = message.resend_at
    await made._try_again(0, message, at - 0.001)
    wire.has_room = False
    await made._try_again(0, message, at)
    assert (len(wire.sent), made._refused) == (1, {0})
    wire.has_room = True
    await made._try_again(0, message, at)
    assert (message.resend_at, message.deadline, message.refusal, made._refused) == (0.0, at + 7.0, None, set())
    assert wire.sent[1][:3] == wire.sent[0][:3]
    assert wire.sent[1][4] == at + 7.0
    made._send_again(0, message, UnavailableError("the reason"))
    await made._try_again(0, message, message.give_up)
    assert str(future.exception()) == "the reason"
    assert (len(wire.sent), made.in_flight, made._refused) == (2, 0, set())
    without = await made.send(b"w")
    await made._try_again(1, made._in_flight[1], made._in_flight[1].give_up)
    assert "on shop.s" in str(without.exception())
    await made.close()


async def test_publisher_resends_a_message_to_the_current_subject_of_the_stream() -> None:
    made, wire, _ = publisher()
    await made.send(b"v")
    message = made._in_flight[0]
    size_bytes = made.in_flight_bytes
    made._addressing.address = Address("shop.t", "u2")
    await made._send_to_nats(0, message)
    assert wire.sent[1][:3] == ("shop.t", envelope_of("s", 0, "u2", b"v", None, None, AckPolicy.ALL, runs=True), "in0.0")
    assert (message.uid, made.in_flight_bytes) == ("u2", size_bytes)
    unaddressed, wire, _ = publisher(uid="")
    await unaddressed.send(b"v")
    unaddressed._addressing.address = Address("shop.s", "u2")
    await unaddressed._send_to_nats(0, unaddressed._in_flight[0])
    assert wire.sent[1] == wire.sent[0], "it was for whoever has the name"
    await made.close()
    await unaddressed.close()


async def test_publisher_over_quota_resends_after_the_delay_in_the_ack() -> None:
    made, wire, _ = publisher()
    loop = asyncio.get_running_loop()
    for _ in range(3):
        await made.send(b"v")
    before = loop.time()
    for number, wait_ms in enumerate((1000, 2000, 3000)):
        await made._on_ack(ack(number, ackError=_Ack.QUOTA, retryAfterMs=wait_ms))
    first, second, third = (made._in_flight[number] for number in range(3))
    for wait_s, message in enumerate((first, second, third), 1):
        assert before + wait_s <= message.resend_at <= loop.time() + wait_s
        assert message.wait_s == 0.05, "pauses grow for other refusals"
    del wire.sent[:]
    await made._send_refused(before + 0.9)
    assert wire.sent == []
    await made._send_refused(first.resend_at)
    assert [reply for _, _, reply, *_ in wire.sent] == ["in0.0"]
    await made._on_ack(ack(0, offset=5))
    assert second.resend_at == second.not_before, "that another was taken changes nothing"
    await made._send_refused(third.resend_at)
    assert [reply for _, _, reply, *_ in wire.sent] == ["in0.0", "in0.1", "in0.2"], "none goes alone: there is somebody"
    await made._on_ack(ack(1, ackError=_Ack.OVERLOADED, retryAfterMs=9000))
    assert second.resend_at <= loop.time() + 0.05
    await made.close()


async def test_publisher_ack_of_one_message_does_not_shorten_the_quota_delay_of_another() -> None:
    made, wire, _ = publisher()
    for number, said, after_ms in ((0, _Ack.NOT_LEADER, 0), (1, _Ack.QUOTA, 60_000)):
        await made.send(b"v")
        await made._on_ack(ack(number, ackError=said, retryAfterMs=after_ms))
    now = asyncio.get_running_loop().time()
    wire.sent.clear()
    await made._send_refused(now + 1)
    await made._on_ack(ack(0))
    await made._send_refused(now + 1)
    assert [reply for _, _, reply, *_ in wire.sent] == ["in0.0"]
    assert made._in_flight[1].resend_at == made._in_flight[1].not_before > now + 59
    await made.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ack(0, stream="t"), "an ack on shop.s came from 't'/0"),
        (ack(0, partition=1), "an ack on shop.s came from 's'/1"),
        (ack(0, streamUid="u2"), "an ack on shop.s came from an older stream of this name, u2"),
        (
            SimpleNamespace(subject="in0.0", data=b"{}", headers=None),
            "an answer on shop.s is not a liftpy ack (The message has 2 bytes, less than an envelope header. "
            "Check the version of its sender.)",
        ),
    ],
)
async def test_publisher_counts_answers_of_other_streams_and_reports_them_in_the_timeout(answer: Any, why: str) -> None:
    made, wire, found = publisher(timeout_s=7.0)
    assert made._no_ack_text() == "No ack from s/0 on shop.s within 7 s. The message may be stored."
    future = await made.send(b"v")
    await made._on_ack(answer)
    await turns()
    assert (future.done(), made.foreign_answers, wire.counters, found.asked) == (False, 1, {"acks by somebody else": 1}, 1)
    assert made._no_ack_text().startswith(f"No ack from s/0 on shop.s within 7 s ({why}). The message may be stored.")
    await made.close()


async def test_publisher_flush_raises_the_first_unretrieved_error_once() -> None:
    made, _, _ = publisher()
    futures = [await made.send(b"v") for _ in range(4)]
    futures[0].cancel()
    made._fail(0, UnavailableError("of one that was cancelled"))
    assert (made._unreported, made.in_flight) == (None, 3)
    made._fail(1, UnavailableError("seen"))
    assert str(futures[1].exception()) == "seen"
    made._fail(2, UnavailableError("first"))
    made._fail(3, UnavailableError("second"))
    assert made._unreported is futures[2], "who was told is not told again"
    with pytest.raises(UnavailableError, match=r"^first$"):
        await made.flush()
    await made.flush()
    await made.close()
    await made.close()


async def test_publisher_ack_of_a_cancelled_message_frees_its_window_space() -> None:
    made, _, _ = publisher(window=1)
    (await made.send(b"v")).cancel()
    await made._on_ack(ack(0))
    assert (made.in_flight, made._has_right) == (0, True)
    await asyncio.wait_for(made.send(b"w"), 30)
    await made.close()


async def test_publisher_timeout_task_resends_messages_and_fails_them_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 0.0)
    made, wire, found = publisher(timeout_s=60.0)
    refused, silent, fine = [await made.send(b"v") for _ in range(3)]
    made._in_flight[0].resend_at, made._in_flight[0].deadline = 0.001, 0.0
    made._refused.add(0)
    made._in_flight[1].deadline = asyncio.get_running_loop().time()
    await turns(30)
    assert [reply for _, _, reply, _, _ in wire.sent] == ["in0.0", "in0.1", "in0.2", "in0.0"]
    assert (refused.done(), silent.done(), fine.done()) == (False, True, False)
    assert str(silent.exception()) == "No ack from s/0 on shop.s within 60 s. The message may be stored."
    assert (found.asked, made._refused) == (1, set())
    wire.has_room = False
    made._in_flight[2].deadline, made._in_flight[2].resend_at = 0.0, 1e12
    made._refused.add(2)
    await turns(30)
    assert not fine.done(), "it was refused, and waits for its next try"
    await made.close()


async def test_publisher_timeout_task_skips_a_message_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", 0.0)
    made, _, _ = publisher()
    tried: list[int] = []

    async def try_again(number: int, message: Any, now: float) -> None:
        tried.append(number)
        for other in list(made._refused):
            made._fail(other, UnavailableError("all of them"))

    made._try_again = try_again
    for _ in range(2):
        await made.send(b"v")
    made._refused |= {0, 1}
    await turns(10)
    assert len(tried) == 1
    assert not made._sweeper.done()
    await made.close()
