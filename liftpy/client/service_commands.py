"""Commands to a replicated service: records of the stream that it reads, with a reply.

    answer = await client.services.call("bank", "commands", b'{"do": "deposit", "account": "a", "amount": 5}')
    answer.value, answer.offset

A command names two inboxes: one for the ack of the stream and one for the reply of the service. It has a message id and
is sent again under this id until it is answered. The service runs it once. All attempts use the same inbox for the
reply, so a slow reply to an earlier attempt counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from liftpy.client.encode_publish import MESSAGE_ID, Address
from liftpy.client.in_flight import ack_reason
from liftpy.client.retrying import retry_attempts
from liftpy.core.base.ids import is_utf8, quote
from liftpy.core.services.queries import ERROR_HEADER, NODE_HEADER
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.headers import Pairs
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotAllowedError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError, Transport

SERVICE_HEADER = "Lift-Service"
"""Reply header: name of the service."""
OFFSET_HEADER = "Lift-Offset"
"""Reply header: offset of the answered record. For a repeated command: offset of the newest one."""
_ATTEMPT_S = 2.0
Answering = tuple[str, asyncio.Future[Any]]
"""Inbox subject, and the future of the message that arrives there."""
_Error = client_pb2.Ack
_AGAIN = frozenset({_Error.NOT_LEADER, _Error.OVERLOADED, _Error.BELOW_MIN_ISR, _Error.QUOTA})


class MisaddressedError(UnavailableError):
    """Another stream listens on this subject. Nothing was stored. The client requests the current address and retries."""

    code = "MISADDRESSED"


class CommandFailedError(LiftError):
    """The service skipped the command, because ``on_record`` raised an error or rejected the command."""

    code = "COMMAND_FAILED"


class ReplyTooLargeError(LiftError):
    """The service executed the command, but its reply is larger than the NATS server accepts."""

    code = "REPLY_TOO_LARGE"


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The reply of a replicated service to a command.

    Attributes:
        value: Bytes that the service replied.
        offset: Offset of the command's record.
        node: Node of the service that replied.
    """

    value: bytes
    offset: int
    node: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command to a service. ``message_id``: id for deduplication, '' for a random one."""

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
    """Send a command, again and again until the service replies or ``timeout_s`` seconds are over. Return the reply.

    ``find``: returns the address of the stream. Its argument True skips the cache. ``Services.call`` describes the errors.
    """
    if not is_utf8(command.message_id):
        raise ConfigError(f"Invalid message id {quote(command.message_id)}. Use UTF-8 text.")
    message_id = command.message_id or secrets.token_hex(16)
    attempt_s, address = min(_ATTEMPT_S, timeout_s), None
    maybe_stored = doubtful = False
    async with contextlib.AsyncExitStack() as stack:
        answering: Answering | None = None
        async for attempt in retry_attempts(timeout_s):
            with attempt:
                try:
                    if address is None:
                        address = await find(False)
                    elif doubtful:
                        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):  # no answer
                            address = await asyncio.wait_for(find(True), attempt_s)
                    if answering is None:  # one inbox for all attempts, because the answer to an earlier attempt counts
                        answering = await stack.enter_async_context(transport.expect_answer(address.subject, attempt_s))
                    return await _once(transport, address, command, message_id, attempt_s, answering, timeout_s)
                except OutcomeUnknownError:
                    maybe_stored = doubtful = True
                    raise
                except (UnavailableError, PublishRejectedError, NotAllowedError) as error:
                    doubtful = isinstance(error, MisaddressedError | NoRespondersError)
                    if maybe_stored:  # this rejection says nothing about an earlier attempt
                        text = f"{error} An earlier attempt may have been stored."
                        raise OutcomeUnknownError(text, message_id) from None
                    raise
    raise AssertionError("Internal error: all attempts ended without a result. Please report it.")


async def _once(
    transport: Transport,
    address: Address,
    command: Command,
    message_id: str,
    timeout_s: float,
    answering: Answering,
    total_s: float,
) -> CommandAnswer:
    """Send the command once, and wait ``timeout_s`` seconds for its answer.

    ``total_s``: time limit of all attempts, for error texts.
    """
    subject = address.subject
    answer_to, answer = answering
    if answer.done():
        return _read_answer(answer.result(), command)
    async with transport.expect_answer(subject, timeout_s) as (ack_to, ack):
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
        renewed = transport.reconnected
        waiting: set[asyncio.Future[Any]] = {ack, answer, renewed}
        try:
            async with asyncio.timeout(timeout_s):
                while not answer.done():
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if ack in done and not answer.done():
                        _raise_if_rejected(ack.result(), subject, command)
                    if renewed in done and not answer.done():  # the command, or its answer, may be lost
                        raise RequestTimeoutError(
                            f"The connection to NATS was lost before service {command.service} answered on {subject}. Call "
                            "again with the same message_id."
                        )
        except TimeoutError:
            transport.check_server()
            raise RequestTimeoutError(
                f"Service {command.service} did not answer on {subject} within {total_s:g} s. Check that it runs "
                "and that it replies to commands."
            ) from None
        return _read_answer(answer.result(), command)


def _raise_if_rejected(message: Any, subject: str, command: Command) -> None:
    """Raise the error if ``message`` is the rejection of a command. Return otherwise, also for an answer of another partition [A9].

    ``subject``: subject of the command, for the error text.
    """
    if not message.data:
        raise NoRespondersError(f"No responders on {subject}. Check that the stream has a leader: `liftpy status`.")
    try:
        ack = frames.decode(message.data, client_pb2.Ack)
    except ProtocolError:
        return
    if (ack.stream, ack.partition) != (command.stream, command.partition) or ack.ackError == client_pb2.Ack.OK:
        return
    reason = ack_reason(ack)
    text = f"{command.stream}/{command.partition} refused: {reason} {ack.detail}".rstrip()
    if ack.ackError == client_pb2.Ack.WRONG_STREAM:
        raise MisaddressedError(text)
    if ack.ackError in _AGAIN:
        raise UnavailableError(text)
    raise PublishRejectedError(text, reason)


def _read_answer(message: Any, command: Command) -> CommandAnswer:
    headers = dict(message.headers or {})
    who, offset = headers.get(SERVICE_HEADER), headers.get(OFFSET_HEADER, "")
    if who != command.service or not (offset.isascii() and offset.isdigit() and len(offset) <= 19):
        raise ProtocolError(
            f"The answer came from {who or 'no service'}, not from service {command.service}. Check the service "
            "name and the stream."
        )
    if headers.get(ERROR_HEADER) == ReplyTooLargeError.code:
        why = bytes(message.data).decode(errors="replace")
        raise ReplyTooLargeError(
            f"Service {who} executed the command at offset {offset}, but sent no reply: {why}. "
            "Do not repeat the command. Increase max_payload of the NATS server, or make the replies smaller."
        )
    if ERROR_HEADER in headers:
        raise CommandFailedError(
            f"The service failed on the command: {headers[ERROR_HEADER]}: {bytes(message.data).decode(errors='replace')}"
        )
    return CommandAnswer(bytes(message.data), int(offset), headers.get(NODE_HEADER, ""))
