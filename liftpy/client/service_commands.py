"""Sending a command to a replicated service and waiting for its answer: the command is a record of the stream that the service reads.

answer = await client.call_service("bank", "commands", b'{"do": "deposit", "account": "a", "amount": 5}')
answer.value, answer.offset

The record names two inboxes: one for the stream's ack, one for the service's reply, so that neither is taken for the other. A command
carries a message id, and is sent again under it when no answer comes: the service carries it out once, and answers it twice. The inbox
for the reply is one for all attempts: a service that takes longer than one of them (a record that can't be applied) is heard, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from liftpy.client.encode_publish import MESSAGE_ID, Address
from liftpy.client.retrying import retrying
from liftpy.core.services.queries import ERROR_HEADER, NODE_HEADER
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.headers import Pairs
from liftpy.errors import (
    LiftError,
    NotAllowedError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError, Transport

SERVICE_HEADER = "Lift-Service"
"""Of a reply: who answers."""
OFFSET_HEADER = "Lift-Offset"
"""Of a reply: the record that is answered; of a repeated command the newest one's."""
_ATTEMPT_S = 2.0
Answering = tuple[str, asyncio.Future[Any]]
"""An inbox, and what comes there."""
_Error = client_pb2.Ack
_AGAIN = frozenset({_Error.NOT_LEADER, _Error.OVERLOADED, _Error.BELOW_MIN_ISR, _Error.QUOTA})


class MisaddressedError(UnavailableError):
    """Another stream, or another incarnation of it, takes what goes there: nothing was stored. The address is asked for anew."""

    code = "MISADDRESSED"


class CommandFailedError(LiftError):
    """The service answered that it did not carry the command out: the record was passed over. Blame: the command, or the service."""

    code = "COMMAND_FAILED"


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """``value``: what the service replied. ``offset``: of the command's record. ``node``: whose service answered."""

    value: bytes
    offset: int
    node: str


@dataclass(frozen=True, slots=True)
class Command:
    """One, as it is sent. ``message_id``: "" for one of its own."""

    service: str
    stream: str
    partition: int
    value: bytes
    key: bytes | None = None
    headers: Pairs = ()
    message_id: str = ""


async def call(
    transport: Transport, find: Callable[[bool], Awaitable[Address]], command: Command, timeout_s: float
) -> CommandAnswer:
    """Send it until it is answered or ``timeout_s`` have passed; see ``Client.call_service``. ``find``: the address, asked for anew or
    as it is known."""
    message_id = command.message_id or secrets.token_hex(16)
    attempt_s, address = min(_ATTEMPT_S, timeout_s), None
    maybe_stored = doubtful = False
    async with contextlib.AsyncExitStack() as stack:
        answering: Answering | None = None
        async for attempt in retrying(timeout_s):
            with attempt:
                try:
                    if address is None:
                        address = await find(False)
                    elif doubtful:
                        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):  # nobody is there to ask
                            address = await asyncio.wait_for(find(True), attempt_s)
                    if answering is None:  # one for all attempts: the answer to an earlier one counts
                        answering = await stack.enter_async_context(transport.expecting(address.subject, attempt_s))
                    return await _once(transport, address, command, message_id, attempt_s, answering)
                except OutcomeUnknownError:
                    maybe_stored = doubtful = True
                    raise
                except (UnavailableError, PublishRejectedError, NotAllowedError) as error:
                    doubtful = isinstance(error, MisaddressedError | NoRespondersError)
                    if maybe_stored:  # what is said of this attempt is nothing about an earlier one
                        text = f"{error}; an earlier attempt may have been stored ({message_id})"
                        raise OutcomeUnknownError(text, message_id) from None
                    raise
    raise AssertionError("unreachable: the attempts end with a result or an error")


async def _once(
    transport: Transport, address: Address, command: Command, message_id: str, timeout_s: float, answering: Answering
) -> CommandAnswer:
    subject = address.subject
    answer_to, answer = answering
    if answer.done():
        return _read(answer.result(), command)
    async with transport.expecting(subject, timeout_s) as (ack_to, ack):
        message = client_pb2.Message(
            offset=-1,
            value=command.value,
            key=command.key or b"",
            keyed=command.key is not None,
            stream=command.stream,
            streamUid=address.uid,
            partition=command.partition,
            headers=[
                client_pb2.Header(name=name, value=value)
                for name, value in (*command.headers, (MESSAGE_ID, message_id.encode()))
            ],
            replySubject=answer_to,
            ackPolicy=client_pb2.ALL,
        )
        await transport.publish(subject, frames.encode(message), ack_to)
        waiting: set[asyncio.Future[Any]] = {ack, answer}
        try:
            async with asyncio.timeout(timeout_s):
                while not answer.done():
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if ack in done and not answer.done():
                        _look_at(ack.result(), subject, command)
        except TimeoutError:
            raise RequestTimeoutError(
                f"Service {command.service} did not answer on {subject} within {timeout_s:g} s. Check that it runs "
                "and that it replies to commands."
            ) from None
        return _read(answer.result(), command)


def _look_at(message: Any, subject: str, command: Command) -> None:
    """The stream's answer; raises what it says against the command. An answer of somebody else says nothing [A9]."""
    if not message.data:
        raise NoRespondersError(f"No responders on {subject}. Check that the stream has a leader: `liftpy status`.")
    try:
        ack = frames.decode(message.data, client_pb2.Ack)
    except ProtocolError:
        return
    if (ack.stream, ack.partition) != (command.stream, command.partition) or ack.ackError == client_pb2.Ack.OK:
        return
    reason = client_pb2.Ack.Error.Name(ack.ackError) if ack.ackError in client_pb2.Ack.Error.values() else str(ack.ackError)
    text = f"{command.stream}/{command.partition} refused: {reason} {ack.detail}".rstrip()
    if ack.ackError == client_pb2.Ack.WRONG_STREAM:
        raise MisaddressedError(text)
    if ack.ackError in _AGAIN:
        raise UnavailableError(text)
    raise PublishRejectedError(text, reason)


def _read(message: Any, command: Command) -> CommandAnswer:
    headers = dict(message.headers or {})
    who, offset = headers.get(SERVICE_HEADER), headers.get(OFFSET_HEADER, "")
    if who != command.service or not (offset.isascii() and offset.isdigit() and len(offset) <= 19):
        raise ProtocolError(
            f"The answer came from {who or 'no service'}, not from service {command.service}. Check the service "
            "name and the stream."
        )
    if ERROR_HEADER in headers:
        raise CommandFailedError(
            f"The service failed on the command: {headers[ERROR_HEADER]}: {bytes(message.data).decode(errors='replace')}"
        )
    return CommandAnswer(bytes(message.data), int(offset), headers.get(NODE_HEADER, ""))
