"""``Services``: call replicated services. ``client.services`` is one.

A query is a NATS request that one process of the service answers. A command is a record of the stream that the service
reads. It names two inboxes: one for the ack of the stream and one for the reply of the service. It has a message id and
is sent again under this id until it is answered. The service runs it once. All attempts use the same inbox for the
reply, so a slow reply to an earlier attempt counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from liftpy.client.arguments import check_number, check_offset, check_partition
from liftpy.client.encode_publish import MESSAGE_ID, Address, check_message_id
from liftpy.client.in_flight import NOT_STORED_NOW, ack_reason
from liftpy.client.retrying import look_up, retry_attempts
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.base.ids import check_name
from liftpy.core.metadata.image import StreamImage
from liftpy.core.services.queries import (
    AT_LEAST_HEADER,
    ERROR_HEADER,
    NODE_HEADER,
    PARTITIONS_HEADER,
    POSITION_HEADER,
    QueryFailedError,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.headers import HeadersLike, Pairs, pairs_of
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.cancellation import AnswerDeadline
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError, Transport

_MAX_DIGITS = 9
_MAX_OFFSET_DIGITS = 19
_QUERY_ATTEMPT_S = 3.0
"""Time limit of one attempt of a query, in seconds. It is longer than the time that a service lets a query wait."""
SERVICE_HEADER = "Lift-Service"
"""Reply header: name of the service."""
OFFSET_HEADER = "Lift-Offset"
"""Reply header: offset of the answered record. For a repeated command: offset of the newest one."""
_COMMAND_ATTEMPT_S = 2.0
_LEAST_ATTEMPT_S = 0.5
Answering = tuple[str, asyncio.Future[Any]]
"""Inbox subject, and the future of the message that arrives there."""


class MisaddressedError(UnavailableError):
    """The address of the stream is not current, so nothing was stored.

    Another stream listens on the subject. The client requests the current address and retries.
    """

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
    """One command to a service, as ``Services.call`` describes it.

    Args:
        service: Name of the service.
        stream: Stream that the service reads.
        partition: Partition of the stream.
        value: Value of the record.
        key: Key of the record. None: no key.
        headers: Headers of the record, as pairs of name and value.
        message_id: Id for deduplication. '': a random id.
    """

    service: str
    stream: str
    partition: int
    value: bytes
    key: bytes | None = None
    headers: Pairs = ()
    message_id: str = ""


class QueryRejectedError(LiftError):
    """The service cannot answer the query now, because of load or because it is behind. Retry."""

    code = "QUERY_REJECTED"
    retryable = True


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The answer of a replicated service to a query.

    Attributes:
        value: Bytes that ``Service.on_query`` returned.
        position: The state contained every record below this offset.
        node: Node of the service that answered.
        partition: Partition of the instance that answered.
        partitions: Number of partitions of the service. 0: not known.
    """

    value: bytes
    position: int
    node: str
    partition: int = 0
    partitions: int = 0


class _Deadline:
    """End of a call that may need several attempts, ``timeout_s`` seconds from now."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + timeout_s

    @property
    def left_s(self) -> float:
        """Time until the end, in seconds."""
        return max(self._ends_at - self._loop.time(), 0.0)

    def attempt_s(self, longest_s: float) -> float:
        """Return the time limit of one attempt, in seconds: at most ``longest_s``.

        The last attempt has at least ``_LEAST_ATTEMPT_S``. With less time, it would more often have an unknown outcome.
        """
        return min(longest_s, self.timeout_s, max(self.left_s, _LEAST_ATTEMPT_S))


class Services:
    """Commands and queries to replicated services. ``client.services`` is one.

    Example:
        answer = await client.services.query("bank", b'{"account": "a"}')
        print(answer.value, answer.position)
    """

    def __init__(self, streams: StreamDirectory) -> None:
        self._streams = streams

    async def query(
        self,
        service: str,
        query: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        at_least: int | None = None,
        timeout_s: float = 5.0,
    ) -> QueryAnswer:
        """Send a query about the state of a replicated service.

        Any node of the service may answer. By default the state contains every record that was committed before this
        call (linearizable).

        Args:
            service: Name of the service.
            query: Bytes for ``Service.on_query``.
            partition: Partition whose instance answers. Default None: the only partition, or the one of ``key``.
            key: Query the partition that holds the records of this key. Default None.
            at_least: The state must contain all records below this offset. The service then does not ask the leader.
                Use ``ack.offset + 1`` to see your own publish, 0 for any state. Default None: linearizable.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The answer, with the offset that the state had reached and the node that answered.

        Raises:
            QueryFailedError: ``on_query`` raised an error.
            QueryRejectedError: The service cannot answer now. Retry.
            UnavailableError: No service answered in time.
            ProtocolError: The query is larger than the NATS server accepts.
            ConfigError: The service has several partitions and you named none, or you named both.

        Example:
            answer = await client.services.query("bank", b'{"account": "a"}')
            print(answer.value, answer.position)
        """
        _check_bytes("query", query)
        _check_bytes("key", b"" if key is None else key)
        check_number("timeout_s", timeout_s)
        if at_least is not None:
            check_offset(at_least, "at_least")
        if partition is not None:
            check_partition(partition)
        if partition is not None and key is not None:
            raise ConfigError("partition and key cannot be combined. Set one of them.")
        until = _Deadline(timeout_s)
        if partition is not None:
            return await self._ask(service, query, partition, at_least, until)
        # each instance knows the number of partitions
        answer = await self._try_to_ask(service, query, 0, at_least if key is None else 0, until)
        if key is not None:
            if not answer.partitions:  # a linearizable query lets the instance request the number
                answer = await self._try_to_ask(service, query, 0, None, until)
            known = 0
            while answer.partitions > known:  # partitions were added since the instance requested the number
                known = answer.partitions
                answer = await self._try_to_ask(service, query, partition_of(key, known), at_least, until)
            if not known:
                raise QueryRejectedError(
                    f"Service {service} does not know its number of partitions, because the metadata group has not answered "
                    "it yet. Retry, or name the partition (partition=, --partition)."
                )
        elif (partitions := answer.partitions) > 1:
            raise ConfigError(
                f"Service {service} has {partitions} partitions, each with its own state. Name the partition "
                "(partition=, --partition) or the key of the records (key=, --key)."
            )
        if isinstance(answer, QueryFailedError):
            raise answer
        return answer

    async def _try_to_ask(
        self, service: str, query: bytes, partition: int, at_least: int | None, until: _Deadline
    ) -> QueryAnswer | QueryFailedError:
        """Query the instance of one partition, as ``_ask`` does. Return the error if its ``on_query`` raised one."""
        try:
            return await self._ask(service, query, partition, at_least, until)
        except QueryFailedError as error:
            return error

    async def _ask(self, service: str, query: bytes, partition: int, at_least: int | None, until: _Deadline) -> QueryAnswer:
        """Send a query to the instance of one partition, again and again until the deadline, and return the answer."""
        headers = None if at_least is None else {AT_LEAST_HEADER: str(at_least)}

        refusal: LiftError | None = None

        async def attempt() -> QueryAnswer:
            nonlocal refusal
            try:
                return await self._ask_once(service, query, partition, until.attempt_s(_QUERY_ATTEMPT_S), headers)
            except RequestTimeoutError:
                raise refusal or UnavailableError(
                    f"Service {service} did not answer the query of partition {partition} within {until.timeout_s:g} s. Check "
                    "that it runs (`liftpy status`), then retry."
                ) from None
            except NoRespondersError:
                await self._check_partition(service, query, partition, until.attempt_s(_QUERY_ATTEMPT_S))
                refusal = NoRespondersError(
                    f"No process of service {service} answers queries of partition {partition}. Check the name, the partition "
                    "and --namespace, and that the service runs (`liftpy status`) and its class defines on_query."
                )
                raise refusal from None
            except QueryRejectedError as error:
                refusal = error
                raise

        return await retry_attempts(until.left_s)(attempt)

    async def _ask_once(
        self, service: str, query: bytes, partition: int, timeout_s: float, headers: dict[str, str] | None
    ) -> QueryAnswer:
        requests = self._streams.requests
        subject = data_subject(requests.subjects.service_query(check_name(service, "service")), partition)
        answer = await requests.transport.exchange(subject, query, timeout_s, headers)
        return _read_answer(subject, partition, bytes(answer.data), dict(answer.headers or {}))

    async def _check_partition(self, service: str, query: bytes, partition: int, timeout_s: float) -> None:
        """Raise NotFoundError if the service has no partition with this number.

        The instance of partition 0 is asked for the number of partitions. If it does not answer in time, no error is raised.
        """
        if partition == 0:
            return
        try:
            partitions = (await self._ask_once(service, query, 0, timeout_s, {AT_LEAST_HEADER: "0"})).partitions
        except QueryFailedError as error:
            partitions = error.partitions
        except (UnavailableError, OutcomeUnknownError, ProtocolError, QueryRejectedError):
            return  # the number of partitions is unknown
        if 0 < partitions <= partition:
            which = "the partition 0" if partitions == 1 else f"the partitions 0 to {partitions - 1}"
            raise NotFoundError(f"Service {service} has no partition {partition}. It has {which}.")

    async def call(
        self,
        service: str,
        stream: str,
        command: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        message_id: str = "",
        timeout_s: float = 5.0,
    ) -> CommandAnswer:
        """Send a command to a replicated service and wait for its reply.

        The command is a record of the stream that the service reads. When this call returns, the command is committed
        and its outputs are written. The client sends the command again with the same message id until it is answered. A
        service that replies runs it once (limits: ``liftpy.core.services.replies``).

        Args:
            service: Name of the service.
            stream: Name of the stream that the service reads.
            command: Value of the record.
            partition: Partition to publish to. Default None: the partition of ``key``, or the only partition.
            key: Key of the record. Default None.
            headers: Headers of the record. Default None.
            message_id: Id for deduplication, at most 255 bytes. Default '': a random one.
            timeout_s: Total time to wait, in seconds. Default 5.

        Returns:
            The reply, with the offset of the command and the node that answered.

        Raises:
            ConfigError: An argument is not allowed, or the stream has several partitions. Set ``partition`` or ``key``.
            CommandFailedError: The service skipped the command.
            ReplyTooLargeError: The service executed the command, but NATS does not accept its reply.
            PublishRejectedError: The command was not stored.
            UnavailableError: The command was not stored. No node accepted it in time.
            OutcomeUnknownError: No reply in time. The command may be stored. Call again with
                ``message_id=error.message_id``.

        Example:
            answer = await client.services.call("bank", "commands", b'{"do": "deposit", "amount": 5}')
            print(answer.value)
        """
        check_name(service, "service")
        check_name(stream, "stream")
        _check_bytes("command", command)
        _check_bytes("key", b"" if key is None else key)
        check_message_id(message_id)
        check_number("timeout_s", timeout_s)
        pairs = pairs_of(headers)
        for name, _ in pairs:
            if name == MESSAGE_ID:
                raise ConfigError(f"Invalid header {MESSAGE_ID}. Set the id of the command with message_id=.")
        place, left_s = await look_up(partial(self._partition_of, stream, partition, key), stream, timeout_s)
        check_partition(place)

        async def find(refresh: bool, newest: bool) -> Address:
            if refresh:
                return await self._streams.current_address(stream, place, newest)
            return await self._streams.address(stream, place)

        own_key = None if key is None else bytes(key)
        sent = Command(service, stream, place, bytes(command), own_key, pairs, message_id)
        return await send_command(self._streams.requests.transport, find, sent, timeout_s, left_s)

    async def _partition_of(self, stream: str, partition: int | None, key: bytes | None) -> int:
        """Return the partition of a command: ``partition``, or the partition of ``key``, or the only one of the stream."""
        if partition is not None:
            return partition
        if key is not None:
            return partition_of(key, len((await self._streams.stream(stream)).partitions))
        return _only_partition(await self._streams.cached_stream(stream, 0))


def _check_bytes(what: str, given: object) -> None:
    if not isinstance(given, bytes | bytearray | memoryview):
        raise ConfigError(f"Invalid {what} of type {type(given).__name__}. It must be bytes: encode text first.")


def _read_answer(subject: str, partition: int, data: bytes, headers: dict[str, str]) -> QueryAnswer:
    code, position = headers.get(ERROR_HEADER), headers.get(POSITION_HEADER, "")
    count = headers.get(PARTITIONS_HEADER, "")
    partitions = int(count) if count.isascii() and count.isdigit() and len(count) <= _MAX_DIGITS else 0
    if code == QueryRejectedError.code:
        raise QueryRejectedError(data.decode(errors="replace"))
    if code is not None:
        failed = QueryFailedError(data.decode(errors="replace"))
        failed.partitions = partitions
        raise failed
    if not (position.isascii() and position.isdigit() and len(position) <= _MAX_OFFSET_DIGITS):
        raise ProtocolError(
            f"The answer on {subject} does not come from a service: it has no header {POSITION_HEADER}. Check the "
            "service name and --namespace."
        )
    return QueryAnswer(data, int(position), headers.get(NODE_HEADER, ""), partition, partitions)


def _only_partition(stream: StreamImage) -> int:
    if len(stream.partitions) > 1:
        raise ConfigError(
            f"Stream {stream.name} has {len(stream.partitions)} partitions, and a service has its own state in each. Name the "
            "partition (partition=, --partition) or the key of the record (key=, --key)."
        )
    return 0


# ---- commands ------------------------------------------------------------------------------------------------------
async def send_command(
    transport: Transport,
    find: Callable[[bool, bool], Awaitable[Address]],
    command: Command,
    timeout_s: float,
    left_s: float | None = None,
) -> CommandAnswer:
    """Send a command, again and again until the service replies or the time is over. Return the reply.

    Args:
        transport: Connection to NATS.
        find: Returns the address of the stream. Arguments: True to skip the cache, and True to ask the metadata leader.
        command: The command.
        timeout_s: Time limit in seconds.
        left_s: Rest of ``timeout_s``. Default None: all of it.
    """
    message_id = command.message_id or secrets.token_hex(16)
    until, address = _Deadline(timeout_s if left_s is None else left_s), None
    maybe_stored = doubtful = is_wrong = False
    others: dict[str, None] = {}
    """Other services that have answered. Several services may read one stream, and each of them replies."""

    def accepts(message: Any) -> bool:
        who = (message.headers or {}).get(SERVICE_HEADER)
        if who and who != command.service:
            others[who] = None
        return not who or who == command.service

    async with contextlib.AsyncExitStack() as stack:
        answering: Answering | None = None
        async for attempt in retry_attempts(until.timeout_s):
            with attempt:
                attempt_s = until.attempt_s(_COMMAND_ATTEMPT_S)
                try:
                    if address is None:
                        found, _ = await look_up(partial(find, False, False), command.stream, attempt_s)
                        address = found
                    elif doubtful:
                        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):  # no answer
                            found = await asyncio.wait_for(find(True, False), attempt_s)
                            if is_wrong and found == address:  # the answering controller is behind
                                found = await asyncio.wait_for(find(True, True), attempt_s)
                            address = found
                    if answering is None:  # one inbox for all attempts, because the answer to an earlier attempt counts
                        expected = transport.expect_answer(address.subject, attempt_s, accepts)
                        answering = await stack.enter_async_context(expected)
                    return await _send_once(transport, address, command, message_id, attempt_s, answering, timeout_s, others)
                except OutcomeUnknownError:
                    maybe_stored = doubtful = True
                    raise
                except (UnavailableError, PublishRejectedError, NotAllowedError) as error:
                    is_wrong = isinstance(error, MisaddressedError)
                    doubtful = is_wrong or isinstance(error, NoRespondersError)
                    if maybe_stored:  # this rejection says nothing about an earlier attempt
                        text = f"{error} An earlier attempt may have been stored."
                        raise OutcomeUnknownError(text, message_id) from None
                    raise
    raise AssertionError("Internal error: all attempts ended without a result. Please report it.")


async def _send_once(
    transport: Transport,
    address: Address,
    command: Command,
    message_id: str,
    timeout_s: float,
    answering: Answering,
    total_s: float,
    others: Collection[str] = (),
) -> CommandAnswer:
    """Send the command once, and wait ``timeout_s`` seconds for its answer.

    ``total_s``: time limit of all attempts, for error texts. ``others``: other services that have answered, for error texts.
    """
    subject = address.subject
    answer_to, answer = answering
    if answer.done():
        return _read_reply(answer.result(), command)
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
        try:
            await transport.publish(subject, frames.encode(message), ack_to)
        except ProtocolError as too_large:
            raise PublishRejectedError(str(too_large), "TOO_LARGE") from None
        renewed = transport.reconnected
        waiting: set[asyncio.Future[Any]] = {ack, answer, renewed}
        deadline = AnswerDeadline(asyncio.get_running_loop().time() + timeout_s)
        while not answer.done() and (left_s := deadline.left_s()):
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if ack in done and not answer.done():
                _raise_if_rejected(ack.result(), address, command)
            if renewed in done and not answer.done():  # the command, or its answer, may be lost
                text = f"The connection to NATS was lost before service {command.service} answered on {subject}."
                raise RequestTimeoutError(f"{text} Call again with the same message_id.", message_id)
        if not answer.done():
            transport.check_server()
            text = f"Service {command.service} did not answer on {subject} within {total_s:g} s."
            if others:
                text += f" Only {', '.join(others)} answered: check the service name."
            error = RequestTimeoutError(f"{text} Check that it runs and that it replies to commands.", message_id)
            error.suspended_s = deadline.suspended_s
            raise error
        return _read_reply(answer.result(), command)


def _raise_if_rejected(message: Any, address: Address, command: Command) -> None:
    """Raise the error if ``message`` is the rejection of a command. Return otherwise, also for an answer of another partition [A9].

    ``address``: address to which the command was sent.
    """
    if not message.data:
        raise NoRespondersError(f"No responders on {address.subject}. Check that the stream has a leader: `liftpy status`.")
    try:
        ack = frames.decode(message.data, client_pb2.Ack)
    except ProtocolError:
        return
    if (ack.stream, ack.partition) != (command.stream, command.partition) or ack.ackError == client_pb2.Ack.OK:
        return
    reason = ack_reason(ack)
    text = f"{command.stream}/{command.partition} refused: {reason} {ack.detail}".rstrip()
    # the addressed stream itself answers this if the header Nats-Expected-Stream names another stream
    if ack.ackError == client_pb2.Ack.WRONG_STREAM and not (address.uid and ack.streamUid == address.uid):
        raise MisaddressedError(text)
    if ack.ackError == client_pb2.Ack.WRONG_STREAM:
        raise PublishRejectedError(text, reason)
    if ack.ackError in NOT_STORED_NOW:
        raise UnavailableError(text)
    raise PublishRejectedError(text, reason)


def _read_reply(message: Any, command: Command) -> CommandAnswer:
    headers = dict(message.headers or {})
    who, offset = headers.get(SERVICE_HEADER), headers.get(OFFSET_HEADER, "")
    if who != command.service or not (offset.isascii() and offset.isdigit() and len(offset) <= _MAX_OFFSET_DIGITS):
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
