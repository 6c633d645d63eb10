from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest

from liftpy.client import publisher as publisher_module
from liftpy.client.encode_publish import Address, headers_with_conditions
from liftpy.client.in_flight import PublishAck, PublishOptions, now_ns
from liftpy.client.publisher import Publisher
from liftpy.config import AckPolicy
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ClientClosedError, ConfigError, LiftError, OutcomeUnknownError, PublishRejectedError, UnavailableError
from liftpy.nats import transport as transport_module
from liftpy.nats.transport import Transport, open_connection
from sidecar.dev.nats_server import NatsServer

_Ack = client_pb2.Ack
SWEEP_S = 0.002


@pytest.fixture(autouse=True)
def quick_sweeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SWEEP_S", SWEEP_S)


class Leader:
    """A scripted leader. Without a script, each publish gets the next offset."""

    def __init__(self, transport: Transport, subject: str) -> None:
        self.transport, self.subject = transport, subject
        self.stored: list[client_pb2.Message] = []
        self.script: list[_Ack | bytes | None] = []
        self.seen = 0
        self.mute: set[bytes] = set()
        """Values that are not answered."""
        self.unanswered: list[Any] = []
        """The messages that the script left without an answer."""
        self.ids: list[bytes] = []
        """The message id of each publish."""

    async def start(self) -> Leader:
        self.subscription = await self.transport.connection.subscribe(self.subject, cb=self.on_message)
        await self.transport.settle()
        return self

    async def on_message(self, message: Any) -> None:
        self.seen += 1
        if message.data.startswith(envelope.MAGIC) and frames.decode(message.data, client_pb2.Message).value in self.mute:
            return
        self.ids += [h.value for h in frames.decode(message.data, client_pb2.Message).headers if h.name == "Nats-Msg-Id"]
        answer = self.script.pop(0) if self.script else _Ack()
        if answer is None:
            self.unanswered.append(message)
            return
        if isinstance(answer, _Ack):
            published = frames.decode(message.data, client_pb2.Message)
            if not answer.stream:
                answer = _Ack.FromString(answer.SerializeToString())
                answer.stream, answer.partition = published.stream, published.partition
            if (answer.ackError, answer.stream) == (_Ack.OK, published.stream):
                answer = _Ack(stream=published.stream, partition=published.partition, offset=len(self.stored), leaderEpoch=7)
                self.stored.append(published)
            answer = frames.encode(answer)
        await message.respond(answer)


@pytest.fixture
async def leader(server_side: Transport, request: pytest.FixtureRequest) -> Leader:
    return await Leader(server_side, f"data.{request.node.name}").start()


def publisher(transport: Transport, leader: Leader, **options: float) -> Publisher:
    return Publisher(transport, "flights", 0, Address(leader.subject), PublishOptions(**options))  # type: ignore[arg-type]


async def test_publisher_retries_a_message_after_a_retryable_rejection(transport: Transport, leader: Leader) -> None:
    leader.script = [_Ack(ackError=_Ack.OVERLOADED), _Ack(ackError=_Ack.NOT_LEADER, leader="node-2")]
    async with publisher(transport, leader) as p:
        ack = await p.publish(b"x")
    assert ack is not None
    assert ack.offset == 0
    assert leader.seen == 3
    assert len(leader.stored) == 1


async def test_publisher_with_overload_patience_waits_until_the_leader_has_room(transport: Transport, leader: Leader) -> None:
    leader.script = [_Ack(ackError=_Ack.OVERLOADED)] * 4
    async with publisher(transport, leader, patience_s=0.2, overload_patience_s=30) as p:
        futures = [await p.send(b"%d" % number) for number in range(8)]
        assert sorted([(await future).offset for future in futures]) == list(range(8))
        leader.script = [_Ack(ackError=_Ack.OVERLOADED)] * 1000
        with pytest.raises(PublishRejectedError, match="OVERLOADED"):
            await p.publish(b"x", timeout_s=0.2)


async def test_publisher_raises_a_final_rejection_with_its_reason(transport: Transport, leader: Leader) -> None:
    leader.script = [_Ack(ackError=_Ack.READ_ONLY, detail="retired")]
    async with publisher(transport, leader) as p:
        with pytest.raises(PublishRejectedError, match="READ_ONLY retired") as caught:
            await p.publish(b"x")
        assert caught.value.reason == "READ_ONLY"
        leader.script = [_Ack(ackError=_Ack.OVERLOADED)] * 50
        hasty = publisher(transport, leader, patience_s=0.2)
        with pytest.raises(PublishRejectedError, match="OVERLOADED"):
            await hasty.publish(b"x")
        await hasty.close()
        await p.flush()  # what was handled is not told again
        leader.script = [_Ack(ackError=_Ack.READ_ONLY, detail="first"), _Ack(ackError=_Ack.READ_ONLY, detail="second")]
        futures = [await p.send(b"x"), await p.send(b"y")]
        with pytest.raises(PublishRejectedError, match="first"):  # what nobody awaited is told, once
            await p.flush()
        await p.flush()
        with pytest.raises(PublishRejectedError, match="second"):
            await futures[1]


async def test_publisher_without_an_ack_ends_soon_with_a_timeout_of_zero(transport: Transport, leader: Leader) -> None:
    leader.script = [None]
    async with publisher(transport, leader) as p, asyncio.timeout(5):
        with pytest.raises(OutcomeUnknownError, match="No ack"):
            await p.publish(b"x", timeout_s=0)


async def test_publisher_retry_without_an_ack_ends_with_the_timeout_of_the_message(
    transport: Transport, leader: Leader
) -> None:
    """The last attempt begins shortly before the end of the timeout. It does not get the time of a whole attempt."""
    leader.script = [None, *[_Ack(ackError=_Ack.NOT_LEADER)] * 3, None]
    async with publisher(transport, leader) as p:
        longer = await p.send(b"longer", timeout_s=0.6)
        shorter = await p.send(b"shorter", timeout_s=0.4)  # attempts begin after 0, 0.05, 0.15 and 0.35 s
        await asyncio.wait({longer, shorter}, return_when=asyncio.FIRST_COMPLETED)
        assert shorter.done()
        for future in (longer, shorter):
            with pytest.raises(LiftError):
                await future


async def test_publisher_without_responders_raises_unavailable_unless_a_leader_starts_in_time(
    transport: Transport, server_side: Transport
) -> None:
    late = Leader(server_side, "data.late")
    p = publisher(transport, late, patience_s=0.15)
    with pytest.raises(UnavailableError, match=r"No responders on data\.late"):
        await p.publish(b"x")
    await p.close()
    async with publisher(transport, late) as patient:
        future = await patient.send(b"y")
        await transport.settle()  # the server has said that there are no responders
        await late.start()
        assert (await future).offset == 0


async def test_publisher_answer_that_is_not_an_ack_raises_outcome_unknown(transport: Transport, leader: Leader) -> None:
    leader.script = [b"{}", envelope.encode(envelope.MessageType.ACK, b"\xff\xff")]
    p = publisher(transport, leader, timeout_s=0.2)
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="is not a liftpy ack"):
            await p.publish(b"x")
    assert p.foreign_answers == 2
    await p.close()


@pytest.mark.parametrize(
    "foreign",
    [
        _Ack(stream="other", partition=0, offset=99),
        _Ack(stream="flights", partition=1, offset=99),
        _Ack(stream="other", ackError=_Ack.READ_ONLY),
        _Ack(stream="other", ackError=_Ack.NOT_LEADER),
        b'{"stream":"flights","seq":100}',
    ],
)
async def test_publisher_ignores_an_ack_of_another_stream_and_waits_for_its_ack(
    transport: Transport, server_side: Transport, leader: Leader, foreign: _Ack | bytes
) -> None:
    """Two streams share one subject [A9]."""
    ours = leader.on_message

    async def both(message: Any) -> None:
        await message.respond(foreign if isinstance(foreign, bytes) else frames.encode(foreign))
        await ours(message)

    leader.mute = {b"mute"}
    leader.on_message = both  # type: ignore[method-assign]
    await leader.subscription.unsubscribe()
    await leader.start()
    async with publisher(transport, leader, timeout_s=0.5) as p:
        assert await p.publish(b"x") == PublishAck("flights", 0, 0, 7)
        assert (p.foreign_answers, leader.seen) == (1, 1)
        with pytest.raises(OutcomeUnknownError, match=r"within \d+\.\d s \(an"):
            await p.publish(b"mute")
        with contextlib.suppress(OutcomeUnknownError):
            await p.flush()


async def test_publisher_ignores_an_ack_with_an_invalid_reply_subject(transport: Transport, leader: Leader) -> None:
    async with publisher(transport, leader) as p:
        leader.script = [None]
        first = await p.send(b"x")
        while not leader.unanswered:
            await asyncio.sleep(0)
        inbox = leader.unanswered[0].reply.rpartition(".")[0]
        for token in ("x", "1_0", "-1", "\u0661", "9" * 200):
            await transport.publish(f"{inbox}.{token}", frames.encode(_Ack(stream="flights")))
        assert (await p.publish(b"y")).offset == 0  # type: ignore[union-attr]
        assert not first.done()
        await leader.unanswered[0].respond(frames.encode(_Ack(stream="flights", offset=1)))
        assert (await first).offset == 1


async def test_publish_without_ack_and_key_sends_the_value_without_an_envelope(
    transport: Transport, server_side: Transport
) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    await server_side.connection.subscribe("data.plain", cb=heard.put)
    await server_side.settle()
    p = Publisher(transport, "flights", 0, Address("data.plain"), PublishOptions())
    assert await p.publish(b"bare", headers={"a": b"1"}, ack=AckPolicy.NONE) is None
    message = await asyncio.wait_for(heard.get(), 5)
    assert (message.data, message.headers, message.reply) == (b"bare", {"a": "1"}, "")
    await p.post(b"keyed", key=b"k")
    message = await asyncio.wait_for(heard.get(), 5)
    assert frames.decode(message.data, client_pb2.Message).ackPolicy == client_pb2.NONE
    with pytest.raises(ConfigError, match="UTF-8"):
        await p.post(b"v", headers={"a": b"\xff"})


async def test_publisher_rejects_an_invalid_message_without_using_the_window(transport: Transport, leader: Leader) -> None:
    async with publisher(transport, leader, window=1) as p:
        bad: list[dict[str, Any]] = [
            {"value": "text"},
            {"value": ""},
            {"value": b"", "key": ""},
            {"value": b"", "headers": {"a": 1}},
            {"value": b"", "ack": 3},
        ]
        for arguments in bad:
            with pytest.raises(ConfigError):
                await p.send(**arguments)
        async with asyncio.timeout(30):
            await p.publish(b"x")
    assert leader.seen == 1


async def test_publisher_close_fails_waiting_and_later_sends(transport: Transport, leader: Leader) -> None:
    leader.script = [None] * 10
    p = publisher(transport, leader, window=1)
    first = await p.send(b"x")
    waiting = [asyncio.create_task(p.send(b"y")) for _ in range(5)]
    flushing = asyncio.create_task(p.flush())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await p.close()
        await p.close()
        told = await asyncio.gather(*waiting, flushing, return_exceptions=True)
    assert [type(error) for error in told[:5]] == [ClientClosedError] * 5
    assert isinstance(told[5], OutcomeUnknownError) or told[5] is None
    with pytest.raises(OutcomeUnknownError, match="closed"):
        await first
    with pytest.raises(ClientClosedError):
        await p.send(b"z")
    assert not any(task.get_name().startswith("acks of") for task in asyncio.all_tasks())


async def test_publisher_flush_waits_only_for_messages_sent_before_the_flush(transport: Transport, leader: Leader) -> None:
    p = publisher(transport, leader)
    leader.mute = {b"mute"}
    futures = [await p.send(b"before") for _ in range(3)]
    flushing = asyncio.create_task(p.flush())
    await asyncio.sleep(0)
    after = await p.send(b"mute")
    async with asyncio.timeout(30):
        await flushing
    assert all(future.done() for future in futures)
    assert not after.done()
    await p.close()


async def test_publisher_flush_waits_for_the_server_after_a_post_during_an_earlier_flush(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, flushes, answer = publisher(transport, leader), 0, asyncio.Event()

    async def settle() -> None:
        nonlocal flushes
        flushes += 1
        await answer.wait()

    monkeypatch.setattr(transport, "settle", settle)
    await p.post(b"before")
    flushing = asyncio.create_task(p.flush())
    while not flushes:
        await asyncio.sleep(0)
    await p.post(b"during")
    answer.set()
    await flushing
    for _ in range(2):
        await p.flush()
    assert flushes == 2
    await p.close()


def with_ids(transport: Transport, leader: Leader, window_s: float = 120.0, **options: Any) -> Publisher:
    """Return a publisher of a stream that knows message ids for ``window_s``."""
    return Publisher(transport, "flights", 0, Address(leader.subject, "", True, window_s), PublishOptions(**options))


async def test_publisher_resends_an_unanswered_message_only_with_a_message_id(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "FIRST_ATTEMPT_S", 0.05)
    leader.script = [None, None]
    async with with_ids(transport, leader, message_ids=True) as p:
        ack = await p.publish(b"x")
        assert (ack and ack.offset, leader.seen) == (0, 3)
        assert len(leader.ids) == 3
        assert len(set(leader.ids)) == 1
    leader.script = [None]
    for window_s, message_ids, options in ((120.0, False, {}), (0.0, True, {"msg_id": "one"})):
        p = with_ids(transport, leader, window_s, message_ids=message_ids, timeout_s=0.2)
        leader.script, leader.seen = [None], 0
        with pytest.raises(OutcomeUnknownError) as caught:
            await p.publish(b"x", **options)
        assert (caught.value.message_id, leader.seen) == (options.get("msg_id", ""), 1)
        await p.close()


async def test_publisher_does_not_resend_an_unanswered_message_after_the_machine_slept(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the event loop stops during the sleep, but the deduplication window of the leader ends."""
    leader.mute = {b"x"}
    p = with_ids(transport, leader, 120.0, timeout_s=10.0, patience_s=600.0)
    coming = await p.send(b"x", msg_id="one")
    monkeypatch.setattr(publisher_module, "now_ns", lambda: now_ns() + 3600 * 10**9)
    with pytest.raises(OutcomeUnknownError, match="message id one"):
        await asyncio.wait_for(coming, 30)
    assert leader.seen == 1
    await p.close()


async def test_publisher_that_is_idle_wakes_only_for_the_next_message(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_sleep, ticks = asyncio.sleep, 0

    async def count_ticks(delay_s: float) -> None:
        nonlocal ticks
        is_tick = delay_s == SWEEP_S
        ticks += is_tick
        await real_sleep(0 if is_tick else delay_s)

    monkeypatch.setattr(asyncio, "sleep", count_ticks)
    async with publisher(transport, leader) as p, asyncio.timeout(30):
        for value in (b"x", b"y"):
            before = ticks
            await p.publish(value)
            assert ticks > before
            before = ticks
            for _ in range(100):  # a publisher that is not idle ticks at almost every turn
                await real_sleep(0)
            assert ticks <= before + 1, "the tick that finds no message in flight is the last"


async def test_publisher_does_not_resend_an_unanswered_message_after_the_dedup_window(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "FIRST_ATTEMPT_S", 0.02)
    leader.mute = {b"x"}
    p = with_ids(transport, leader, 1.0, timeout_s=0.1, patience_s=600.0)
    with pytest.raises(OutcomeUnknownError, match="message id one"):
        await asyncio.wait_for(p.publish(b"x", msg_id="one"), 30)
    assert leader.seen > 1
    await p.close()


@pytest.mark.parametrize(
    ("error", "kind"), [(_Ack.READ_ONLY, OutcomeUnknownError), (_Ack.INCORRECT_OFFSET, PublishRejectedError)]
)
async def test_publisher_rejection_after_an_unanswered_attempt_says_if_the_message_may_be_stored(
    transport: Transport, leader: Leader, monkeypatch: pytest.MonkeyPatch, error: Any, kind: type[Exception]
) -> None:
    monkeypatch.setattr(publisher_module, "FIRST_ATTEMPT_S", 0.05)
    leader.script = [None, _Ack(ackError=error)]
    p = with_ids(transport, leader)
    with pytest.raises(kind) as caught:
        await p.publish(b"x", msg_id="one")
    assert type(caught.value) is kind
    await p.close()


async def test_publisher_sends_later_messages_after_a_resent_message(transport: Transport, leader: Leader) -> None:
    leader.script = [_Ack(ackError=_Ack.NOT_LEADER)]
    async with publisher(transport, leader) as p:
        first = await p.send(b"0")
        while not leader.seen:
            await asyncio.sleep(0)
        for side in (leader.transport, transport):
            await side.settle()
        later = [await p.send(b"%d" % number) for number in range(1, 4)]
        assert [(await future).offset for future in (first, *later)] == [0, 1, 2, 3]
    assert [message.value for message in leader.stored] == [b"0", b"1", b"2", b"3"]


async def test_publisher_over_quota_resends_after_the_delay_in_the_ack(transport: Transport, leader: Leader) -> None:
    leader.script = [_Ack(ackError=_Ack.QUOTA, retryAfterMs=400)]
    loop = asyncio.get_running_loop()
    async with publisher(transport, leader) as p:
        began = loop.time()
        assert await p.publish(b"x")
        assert loop.time() - began >= 0.4


async def test_publisher_batch_ack_completes_each_sent_message_with_its_own_offset(
    transport: Transport, leader: Leader
) -> None:
    leader.script = [None] * 4
    async with publisher(transport, leader) as p:
        answers = [await p.send(b"%d" % number) for number in range(4)]
        answers[2].cancel()
        while len(leader.unanswered) < 4:
            await asyncio.sleep(0)
        told = _Ack(stream="flights", offset=70, recordCount=(1 << 32) - 1, leaderEpoch=9)
        await leader.unanswered[1].respond(frames.encode(_Ack(stream="other", offset=5, recordCount=3)))
        await leader.unanswered[1].respond(frames.encode(told))
        assert await answers[3] == PublishAck("flights", 0, 72, 9)
        assert (answers[1].result().offset, answers[0].done(), p.in_flight) == (70, False, 1)
        await leader.unanswered[0].respond(frames.encode(_Ack(stream="flights", offset=4, recordCount=4)))
        assert ((await answers[0]).offset, p.in_flight, p.in_flight_bytes) == (4, 0, 0)


async def test_publisher_resends_unacked_messages_when_a_stalled_nats_server_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server process is stopped and keeps its connections. The ack of the first attempt is lost."""
    monkeypatch.setattr(transport_module, "SILENT_S", 0.2)
    monkeypatch.setattr(publisher_module, "SILENT_S", 0.2)
    with NatsServer() as server:
        ours, theirs = Transport(await open_connection(server.url)), Transport(await open_connection(server.url))
        leader = await Leader(theirs, "data.silence").start()
        address = Address(leader.subject, "", True, 120.0)
        made = Publisher(ours, "flights", 0, address, PublishOptions(message_ids=True))
        monkeypatch.setattr(publisher_module, "FIRST_ATTEMPT_S", 10.0)
        await made.publish(b"before")
        leader.script = [None]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            answer = await made.send(b"during")
            async with asyncio.timeout(30):
                while not ours.counters["nats_server_silent"]:
                    await asyncio.sleep(0)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        async with asyncio.timeout(5):  # half an attempt
            assert (await answer).offset == 1
        await made.close()
        await ours.close()
        await theirs.close()


@pytest.mark.parametrize("has_ids", [True, False])
async def test_publisher_after_a_nats_server_restart_gets_acks_within_two_seconds(has_ids: bool) -> None:
    """The leader is not ready at first and loses the first message. The next resend follows within a fraction of a second."""
    loop = asyncio.get_running_loop()
    with NatsServer() as server:
        ours, theirs = Transport(await open_connection(server.url)), Transport(await open_connection(server.url))
        leader = await Leader(theirs, "data.outage").start()
        address = Address(leader.subject, "", True, 120.0)
        made = Publisher(ours, "flights", 0, address, PublishOptions(message_ids=has_ids, timeout_s=5.0))
        await made.publish(b"before")
        renewed = ours.reconnected, theirs.reconnected
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(30):
            while (
                ours.connection.is_connected
            ):  # a message that a dead connection takes is lost: without an id it is not repeated
                await asyncio.sleep(0)
        leader.script = [None]
        answers = [await made.send(b"%d" % number) for number in range(3)]
        await asyncio.to_thread(server.resume)
        await asyncio.gather(*renewed)
        back = loop.time()
        done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert loop.time() - back < 1.5, "not the time-out of an attempt"
        assert [one.result().stream for one in done] == ["flights"] * len(done)
        if has_ids:
            await asyncio.wait(answers)
            assert {message.value for message in leader.stored} == {b"before", b"0", b"1", b"2"}
        await made.close()
        await asyncio.gather(*answers, return_exceptions=True)
        await ours.close()
        await theirs.close()


def test_publish_with_message_id_or_expected_offset_sends_the_nats_header_of_each() -> None:
    assert headers_with_conditions({"a": "1"}, "id", None) == (("a", b"1"), ("Nats-Msg-Id", b"id"))
    assert headers_with_conditions(None, "", -1) == (("Nats-Expected-Last-Sequence", b"0"),)
    assert headers_with_conditions(None, "", 41) == (("Nats-Expected-Last-Sequence", b"42"),)
    for wrong in ("a\r\nb", " a", "x" * 256, "é" * 128):
        with pytest.raises(ConfigError, match="Invalid message id"):
            headers_with_conditions(None, wrong, None)
    headers_with_conditions(None, "x" * 255, (1 << 62) - 1)
    for offset in (-2, 1 << 62):
        with pytest.raises(ConfigError, match="expected_last ="):
            headers_with_conditions(None, "", offset)
    with pytest.raises(ConfigError, match="Pass the id as msg_id=, or remove this header"):
        headers_with_conditions({"Nats-Msg-Id": "a"}, "b", None)
