"""Test commands to a service: the sent message, acks and answers, and retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tenacity import AsyncRetrying, stop_after_attempt

from liftpy.client import services
from liftpy.client.encode_publish import Address
from liftpy.client.services import Command, CommandAnswer, CommandFailedError, ReplyTooLargeError, _send_once, send_command
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import NotFoundError, OutcomeUnknownError, ProtocolError, PublishRejectedError, UnavailableError
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError

_Ack = client_pb2.Ack
COMMAND = Command("bank", "commands", 3, b"pay", b"k", (("h", b"1"),), "id-1")


def message(data: bytes = b"", **headers: str) -> Any:
    return SimpleNamespace(data=data, headers={name.replace("_", "-"): value for name, value in headers.items()} or None)


def ack(**fields: Any) -> Any:
    return message(frames.encode(_Ack(**{"stream": "commands", "partition": 3, **fields})))


def reply(data: bytes = b"done", **headers: str) -> Any:
    return message(data, **{"Lift_Service": "bank", "Lift_Offset": "17", "Lift_Node": "n2", **headers})


class Wire:
    """A replacement of Transport. ``script`` has (ack, reply) of each attempt. Both may be None."""

    def __init__(self, *script: tuple[Any, Any]) -> None:
        self.script = list(script)
        self.sent: list[tuple[str, client_pb2.Message, str]] = []
        self.expected: list[tuple[str, float]] = []
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.accepts: dict[str, Callable[[Any], bool]] = {}
        self.found_anew: list[bool] = []
        self.reconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def check_server(self) -> None:
        pass

    @contextlib.asynccontextmanager
    async def expect_answer(
        self, subject: str, timeout_s: float, accepts: Callable[[Any], bool] = bool
    ) -> AsyncIterator[tuple[str, asyncio.Future[Any]]]:
        name = f"inbox.{len(self.expected)}"
        self.accepts[name] = accepts
        self.expected.append((subject, timeout_s))
        self.waiting[name] = asyncio.get_running_loop().create_future()
        try:
            yield name, self.waiting[name]
        finally:
            del self.waiting[name]

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        sent = frames.decode(payload, client_pb2.Message)
        self.sent.append((subject, sent, reply))
        for name, said in zip((reply, sent.replySubject), self.script.pop(0), strict=True):
            if said is not None and self.accepts[name](said):
                self.waiting[name].set_result(said)

    async def found(self, anew: bool, newest: bool) -> Address:
        self.found_anew.append(anew)
        return Address("shop.commands", f"u{len(self.found_anew)}")

    async def call(self, command: Command = COMMAND, timeout_s: float = 30.0) -> CommandAnswer:
        transport: Any = self
        try:
            return await send_command(transport, self.found, command, timeout_s)
        finally:
            assert not self.waiting, "every inbox is given back"


@pytest.mark.parametrize("said", [_Ack.NOT_LEADER, _Ack.OVERLOADED, _Ack.WRONG_STREAM, _Ack.BELOW_MIN_ISR])
async def test_service_command_rejected_with_a_retryable_error_is_resent_with_the_same_id(said: Any) -> None:
    wire = Wire((ack(ackError=said), None), (ack(), reply()))
    assert (await wire.call(Command("bank", "commands", 3, b"pay"))).offset == 17
    first, second = (sent.headers[0].value for _, sent, _ in wire.sent)
    assert first == second


async def test_service_command_rejected_with_a_final_error_is_not_resent() -> None:
    wire = Wire((ack(ackError=_Ack.READ_ONLY, detail="retired"), None))
    with pytest.raises(PublishRejectedError, match=r"^commands/3 refused: READ_ONLY retired$") as caught:
        await wire.call()
    assert caught.value.reason == "READ_ONLY"
    with pytest.raises(PublishRejectedError, match=r"^commands/3 refused: 99$") as caught:
        await Wire((ack(ackError=99), None)).call()
    assert caught.value.reason == "99"


@pytest.mark.parametrize(
    "foreign",
    [
        message(b"{}"),
        ack(stream="other", ackError=_Ack.READ_ONLY),
        ack(partition=4, ackError=_Ack.READ_ONLY),
        ack(),
    ],
)
async def test_service_command_ignores_an_ack_of_another_stream_and_returns_the_answer(foreign: Any) -> None:
    wire = Wire((foreign, None))
    asking = asyncio.create_task(wire.call())
    while "inbox.1" not in wire.waiting or not wire.waiting["inbox.1"].done():
        assert not asking.done()
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    wire.waiting["inbox.0"].set_result(reply())
    assert await asking == CommandAnswer(b"done", 17, "n2")


async def test_service_command_without_responders_raises_unavailable_if_no_attempt_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = (message(), None)
    late = Wire(nobody, nobody, (ack(), reply()))
    assert (await late.call()).offset == 17
    assert len(late.sent) == 3
    twice = AsyncRetrying(stop=stop_after_attempt(2), reraise=True)
    monkeypatch.setattr(services, "retry_attempts", lambda patience_s: twice)
    monkeypatch.setattr(services, "_COMMAND_ATTEMPT_S", 0.01)
    with pytest.raises(NoRespondersError, match=r"^No responders on shop\.commands\."):
        await Wire(nobody, nobody).call()
    with pytest.raises(
        OutcomeUnknownError,
        match=r"No responders on shop\.commands\. .*`\. An earlier attempt may have been stored\. \(message id id-1\)$",
    ):
        await Wire((None, None), nobody).call()


@pytest.mark.parametrize("said", [_Ack.NOT_LEADER, _Ack.PAUSED, _Ack.READ_ONLY])
async def test_service_command_rejected_after_an_unanswered_attempt_raises_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    twice = AsyncRetrying(stop=stop_after_attempt(2), reraise=True)
    monkeypatch.setattr(services, "retry_attempts", lambda patience_s: twice)
    monkeypatch.setattr(services, "_COMMAND_ATTEMPT_S", 0.01)
    with pytest.raises(OutcomeUnknownError, match=r"An earlier attempt may have been stored\. \(message id id-1\)$") as caught:
        await Wire((None, None), (ack(ackError=said), None)).call()
    assert caught.value.message_id == "id-1"


@pytest.mark.parametrize("said", [(ack(ackError=_Ack.WRONG_STREAM), None), (message(), None)])
async def test_service_command_answered_by_another_stream_is_resent_after_a_lookup(said: Any) -> None:
    wire = Wire(said, (ack(), reply()))
    assert (await wire.call()).offset == 17
    assert [sent.streamUid for _, sent, _ in wire.sent] == ["u1", "u2"]
    assert wire.found_anew == [False, True]


async def test_service_command_rejected_by_a_follower_is_resent_to_the_same_address() -> None:
    wire = Wire((ack(ackError=_Ack.NOT_LEADER), None), (ack(ackError=_Ack.WRONG_STREAM), None), (ack(), reply()))
    real = wire.found

    async def found(anew: bool, newest: bool) -> Address:
        address = await real(anew, newest)
        if anew:
            raise UnavailableError("no metadata group")
        return address

    wire.found = found  # type: ignore[method-assign]
    assert (await wire.call()).offset == 17
    assert [sent.streamUid for _, sent, _ in wire.sent] == ["u1"] * 3
    assert wire.found_anew == [False, True]


async def test_service_command_without_an_answer_raises_timeout_with_the_service_name() -> None:
    wire = Wire(*[(ack(), None)] * 100)
    text = r"^Service bank did not answer on shop\.commands within 0\.02 s\. Check that it runs"
    with pytest.raises(RequestTimeoutError, match=text):
        await wire.call(timeout_s=0.02)
    assert {timeout_s for _, timeout_s in wire.expected} == {0.02}


async def test_service_command_with_several_attempts_ends_at_the_total_timeout_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "_COMMAND_ATTEMPT_S", 0.4)
    monkeypatch.setattr(services, "_LEAST_ATTEMPT_S", 0.05)
    wire = Wire(*[(ack(), None)] * 100)
    with pytest.raises(RequestTimeoutError, match=r"within 0\.5 s"):
        await wire.call(timeout_s=0.5)
    (_, *attempts) = wire.expected  # the first inbox is that of the answer
    assert len(attempts) >= 2
    assert sum(timeout_s for _, timeout_s in attempts) <= 0.51


async def test_service_command_without_an_answer_raises_with_the_message_id_of_all_attempts() -> None:
    wire = Wire(*[(ack(), None)] * 100)
    with pytest.raises(OutcomeUnknownError) as raised:
        await wire.call(replace(COMMAND, message_id=""), timeout_s=0.02)
    assert raised.value.message_id
    assert {(sent.headers[-1].name, sent.headers[-1].value) for _, sent, _ in wire.sent} == {
        ("Nats-Msg-Id", raised.value.message_id.encode())
    }


async def test_service_command_to_a_missing_stream_raises_not_found_and_sends_nothing() -> None:
    wire = Wire()

    async def find(anew: bool, newest: bool) -> Address:
        raise NotFoundError("no stream")

    transport: Any = wire
    with pytest.raises(NotFoundError):
        await send_command(transport, find, COMMAND, 30)
    assert wire.expected == []


async def test_service_command_answered_by_another_service_waits_for_its_own_service() -> None:
    """Several services may read one stream. Each of them replies."""
    wire = Wire(*[(ack(), reply(Lift_Service="audit"))] * 100)
    with pytest.raises(RequestTimeoutError, match=r"within 0\.02 s\. Only audit answered: check the service name"):
        await wire.call(timeout_s=0.02)


@pytest.mark.parametrize("said", [reply(Lift_Service=""), message(b"x")])
async def test_service_command_answered_by_no_service_raises_protocol_error(said: Any) -> None:
    with pytest.raises(ProtocolError, match="came from no service, not from service bank"):
        await Wire((None, said)).call()


@pytest.mark.parametrize(
    ("offset", "right"),
    [("0", True), ("9" * 19, True), ("9" * 20, False), ("", False), ("-1", False), ("\u0661", False), ("x", False)],
)
async def test_service_command_answer_with_an_invalid_offset_raises_protocol_error(offset: str, right: bool) -> None:
    wire = Wire((None, reply(Lift_Offset=offset)))
    if right:
        assert (await wire.call()).offset == int(offset)
    else:
        with pytest.raises(ProtocolError, match="answer came from bank, not"):
            await wire.call()


async def test_service_command_with_a_reply_that_is_too_large_raises_that_it_was_executed() -> None:
    wire = Wire((ack(), reply(b"the reply has 9 bytes", Lift_Error="REPLY_TOO_LARGE")))
    with pytest.raises(ReplyTooLargeError, match="executed the command at offset"):
        await wire.call()
    assert len(wire.sent) == 1


async def test_service_command_that_the_service_skipped_raises_with_the_reason() -> None:
    wire = Wire((ack(), reply(b"no money\xff", Lift_Error="REFUSED")))
    with pytest.raises(CommandFailedError) as caught:
        await wire.call()
    assert "REFUSED: no money�" in str(caught.value)
    assert len(wire.sent) == 1


async def test_service_command_that_is_already_answered_is_not_sent_again() -> None:
    wire = Wire()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(reply(b"late"))
    transport: Any = wire
    found = await _send_once(transport, Address("shop.commands", "u1"), COMMAND, "id-1", 2.0, ("inbox.0", answer), 2.0)
    assert (found, wire.sent, wire.expected) == (CommandAnswer(b"late", 17, "n2"), [], [])
