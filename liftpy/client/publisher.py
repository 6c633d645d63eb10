"""``Publisher``: publishes single messages with acks, many of them in flight.

A message with an ack is an envelope that names a stream, a uid and a partition. Only this partition may answer it.

The publisher retries a message until ``patience_s`` is over if the message was certainly not stored. This is so if NATS
reports no responders, or if the answer is ``NOT_LEADER``, ``OVERLOADED``, ``QUOTA``, ``BELOW_MIN_ISR`` or
``WRONG_STREAM``. A message without an answer may be stored. The publisher sends it again only with a message id, within
the stream's deduplication window. Otherwise it fails with OutcomeUnknownError.

Order: while a message waits to be sent again, later messages wait behind it. Then the first one is sent alone, as a
probe. When a leader accepts it, the others follow. So only messages that were in flight behind a rejected one can be
out of order.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypedDict, Unpack, overload

from liftpy.client.arguments import check_number, check_text
from liftpy.client.encode_publish import (
    Address,
    Addressing,
    NatsHeaders,
    envelope_of,
    headers_with_conditions,
    plain,
    with_new_uid,
)
from liftpy.client.in_flight import (
    NOT_STORED_NOW,
    PROBE_S,
    PROBING_S,
    InFlight,
    MessageIds,
    PublishAck,
    PublishOptions,
    Window,
    is_final,
    now_ns,
    rejection,
)
from liftpy.client.retrying import look_up
from liftpy.config import AckPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import MAX_DIGITS, FastEnvelope
from liftpy.core.wire.headers import HeadersLike
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    NotAllowedError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.cancellation import end_tasks, suspended_s
from liftpy.nats.transport import SILENT_S, Transport, is_no_responders, unsubscribe

_Ack = client_pb2.Ack
_SWEEP_S = 0.05
_TICKS_PER_DEADLINE_CHECK = 10
_EXTEND_EVERY_S = 0.2
"""Minimum time between two extensions of the deadlines of an overloaded leader's messages, in seconds."""
FIRST_ATTEMPT_S = 2.0
"""Time to wait for an ack of a message that may be sent again, in seconds."""
_EARLIER_ATTEMPT = (
    "An earlier attempt got no ack, so the message may be stored. Send it again with the same message id (message_id)."
)
_OF_THE_WINDOW = 0.8
"""Share of the deduplication window in which a message may be sent again. The rest allows for the time in the network."""


class MessageFields(TypedDict, total=False):
    """Arguments of ``publish`` that its overloads have in common. ``Client.publish`` describes them."""

    key: bytes | None
    headers: HeadersLike | None
    msg_id: str
    expected_last: int | None
    timeout_s: float | None


class Publisher:
    """Publishes messages to one partition and keeps many in flight.

    Create it with ``client.publisher``. Leaving the ``async with`` block waits for all acks (``flush``).

    Messages are stored in call order, with one exception: messages in flight behind one that had to be sent again may
    be stored before it. Use ``PublishOptions(window=1)`` for strict order. If the stream is deleted and created again,
    the publisher continues with the new one.

    Example:
        async with client.publisher("orders") as publisher:
            future = await publisher.send(b"one")
            ack = await future
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        partition: int,
        address: Address,
        options: PublishOptions,
        *,
        find: Callable[[bool], Awaitable[Address]] | None = None,
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._partition = partition
        self._options = options
        self._addressing = Addressing(address, find, self._use_new_address, self._connection_lost)
        self._ids = MessageIds()
        self._template: FastEnvelope | None = None
        self._window = Window(options.window, options.window_bytes)
        self._in_flight: dict[int, InFlight] = {}
        self._refused: set[int] = set()
        """Numbers of messages that wait to be sent again, and of the later messages that wait behind them."""
        self._is_accepted = True
        """True if no message was rejected since a leader accepted one."""
        self._first = -1
        """Number of the message that was sent again alone, as a probe. -1: none."""
        self._first_sent_at = 0.0
        self._probing_until = 0.0
        """End of the time after a reconnect in which probes are sent often. 0: an ack has arrived since."""
        self._unanswered_since: float | None = None
        """Time since which no answer has arrived, checked at each tick. None: an answer has arrived since the last tick."""
        self._extended_at = 0.0
        """Time of the last extension of the deadlines, because the leader had no room."""
        self._next_id = 0
        self._unreported: asyncio.Future[PublishAck] | None = None
        """First failed message whose error the application has not seen. ``flush`` raises it."""
        self._inbox = ""
        self._loop = asyncio.get_running_loop()
        """Event loop of the transport. Getting it for each message would cost as much as encoding the message."""
        self._subscription: Any = None
        self._sweeper: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        """Set while messages may be in flight. The sweeper of an idle publisher waits for it."""
        self._posted = self._settled = 0
        """Number of messages without acks that were sent, and number of those that the NATS server has certainly received."""
        self._denied: NotAllowedError | None = None
        """Last permission error of NATS that ``post`` or ``flush`` has not raised yet. None: no such error."""
        self._has_right = False
        """True if an ack has arrived on this address. A later permission error then does not apply to earlier messages."""
        self._opening = asyncio.Lock()
        self._closed = False
        self._unwatch = [transport.on_denial(self._on_denial), transport.on_close(self._on_close)]
        self.foreign_answers = 0
        """Number of answers on the stream's subject from other senders than the partition. They do not count as acks."""
        self._last_foreign = ""

    @property
    def in_flight(self) -> int:
        """Number of messages that were sent and have no ack yet."""
        return self._window.count

    @property
    def in_flight_bytes(self) -> int:
        """Size of the messages in flight, in bytes as they are sent."""
        return self._window.size_bytes

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        ack: AckPolicy = AckPolicy.ALL,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[PublishAck]:
        """Send one message and return a future of its ack.

        The call waits only for room in the window and in the connection. If it is cancelled while it waits, nothing was
        sent.

        Args:
            value: Payload. None is a tombstone: compaction deletes ``key``.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Names may repeat. ``Lift-*`` names are reserved. Default
                None.
            ack: ALL (default): flushed on all in-sync replicas. LEADER: flushed on the leader. For NONE use ``post``.
            msg_id: Id for deduplication within the stream's ``dedup_window_s``. Default '': none, or a random one with
                ``PublishOptions(message_ids=True)``.
            expected_last: Store the record only directly after this offset. -1: only as the first record. Default None:
                no condition.
            timeout_s: Total time for all attempts, in seconds. Default None: ``options.patience_s``.

        Returns:
            A future of the ack. It raises PublishRejectedError, NotFoundError, NotAllowedError or UnavailableError if
            the message was not stored. It raises OutcomeUnknownError if no ack came in time. Then send the message
            again with ``msg_id=error.message_id``.

        Raises:
            ConfigError: The message is not valid, or ``ack`` is NONE.
            NotFoundError: No such stream or partition.
            ClientClosedError: The publisher or its client is closed.

        Example:
            future = await publisher.send(b"one", key=b"k")
            print((await future).offset)
        """
        if ack is AckPolicy.NONE:
            raise ConfigError("A message without an ack has no result. Use post() instead of send().")
        self._must_be_open()
        if self._addressing.unknown:
            _, timeout_s = await look_up(self._addressing.refresh, self._stream, timeout_s)
        if not self._addressing.address.answers:
            raise ConfigError(
                f"Stream {self._stream} has the ack policy none and sends no acks. Use post(), or publish with ack NONE."
            )
        if timeout_s is not None:
            check_number("timeout_s", timeout_s)
        if not isinstance(msg_id, str):
            check_text("msg_id", msg_id)
        address, options = self._addressing.address, self._options
        new_id = self._ids.next() if not msg_id and options.message_ids and address.window_s else b""
        uid, window_s = address.uid, address.window_s if msg_id or new_id else 0.0
        if type(value) is bytes and value and not (msg_id or headers) and key is None and expected_last is None:
            template = self._template
            if template is None or template.uid_and_policy != (uid, ack):
                template = self._template = FastEnvelope(self._stream, self._partition, uid, ack, runs=True)
            payload = template.envelope(value, new_id)
        else:
            if msg_id or new_id or expected_last is not None:
                headers = headers_with_conditions(headers, msg_id or new_id.decode(), expected_last)
            payload = envelope_of(self._stream, self._partition, uid, value, key, headers, ack, runs=True)
        if self._subscription is None:
            await self._open()
        if not self._window.try_enter(size_bytes := len(payload)):
            await self._enter(size_bytes)
        now = (loop := self._loop).time()
        attempt_s = options.timeout_s if timeout_s is None else min(options.timeout_s, timeout_s)
        message = InFlight(
            payload,
            uid,
            asyncio.Future(loop=loop),
            now + (options.patience_s if timeout_s is None else timeout_s),
            size_bytes,
            min(attempt_s, FIRST_ATTEMPT_S) if window_s else attempt_s,
            msg_id.encode() or new_id,
            now_ns() + round(window_s * _OF_THE_WINDOW * 1e9) if window_s else 0,
            overload_give_up=now + options.overload_patience_s if timeout_s is None and options.overload_patience_s else 0.0,
            began=now,
        )
        message.deadline = now + message.attempt_s
        number = self._next_id
        self._next_id = number + 1
        self._in_flight[number] = message
        self._has_work.set()
        if self._refused:
            message.resend_at = now
            self._refused.add(number)
        elif (
            address is not self._addressing.address
            or not self._transport.try_write(address.subject, payload, f"{self._inbox}.{number}")
        ) and (self._transport.has_room or await self._wait_for_room(number, message)):
            await self._send_to_nats(number, message)
        return message.answer

    async def post(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        addressed: bool = False,
    ) -> None:
        """Publish one message without an ack.

        The call does not report whether the message is stored. The message is a plain NATS message. With a key, or
        without a value, it is an envelope. A plain message has no address: any stream on the subject stores it.

        Args:
            value: Payload. None is a tombstone.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Default None.
            addressed: If True, send an envelope that only this stream accepts. Plain NATS subscribers then see the
                envelope. Default False.

        Raises:
            ConfigError: NATS cannot carry the message as it is.
            ProtocolError: The message is too large.
            UnavailableError: The message was not sent.
            NotAllowedError: NATS has denied an earlier message.
            ClientClosedError: The publisher or its client is closed.

        Example:
            await publisher.post(b"one")
        """
        self._must_be_open()
        if self._addressing.unknown:
            await self._addressing.refresh()
        self._raise_denied()
        address, give_up_at = self._addressing.address, self._loop.time() + self._options.timeout_s
        nats_headers: NatsHeaders | None = None
        if addressed or key is not None or value is None:
            payload = envelope_of(self._stream, self._partition, address.uid, value, key, headers, AckPolicy.NONE)
        else:
            payload, nats_headers = plain(value, headers)
        try:
            await self._transport.publish(address.subject, payload, headers=nats_headers, give_up_at=give_up_at)
        finally:
            self._posted += 1

    @overload
    async def publish(
        self, value: bytes | None, *, ack: Literal[AckPolicy.ALL, AckPolicy.LEADER] = ..., **fields: Unpack[MessageFields]
    ) -> PublishAck: ...

    @overload
    async def publish(self, value: bytes | None, *, ack: Literal[AckPolicy.NONE], **fields: Unpack[MessageFields]) -> None: ...

    @overload
    async def publish(self, value: bytes | None, *, ack: AckPolicy, **fields: Unpack[MessageFields]) -> PublishAck | None: ...

    async def publish(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        ack: AckPolicy = AckPolicy.ALL,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout_s: float | None = None,
    ) -> PublishAck | None:
        """Send one message and wait for its ack.

        The arguments and errors are those of ``send``, and the errors of its future, except that ``ack`` may be NONE.
        Then the message has no ack, and the errors are those of ``post``.

        Returns:
            Partition, offset and LeaderEpoch of the record. None with ``ack=AckPolicy.NONE``.

        Example:
            ack = await publisher.publish(b"one", key=b"k")
        """
        if ack is AckPolicy.NONE:
            if msg_id or expected_last is not None:
                headers = headers_with_conditions(headers, msg_id, expected_last)
            await self.post(value, key=key, headers=headers)
            return None
        coming = await self.send(
            value, key=key, headers=headers, ack=ack, msg_id=msg_id, expected_last=expected_last, timeout_s=timeout_s
        )
        return await coming

    async def flush(self) -> None:
        """Wait until every message is acked. Raise the first error that the application has not seen.

        The NATS server has received all messages without an ack by then.

        Raises:
            LiftError: The first error of a message whose future was never awaited.
            NotAllowedError: NATS denied a message without an ack.

        Example:
            for value in values:
                await publisher.send(value)
            await publisher.flush()
        """
        self._transport.check_event_loop()
        waiting = [message.answer for message in self._in_flight.values() if not message.answer.done()]
        if waiting:
            await asyncio.wait(waiting)
        if (posted := self._posted) > self._settled and not self._closed:
            await self._transport.settle()
            self._settled = max(posted, self._settled)  # not the messages that were sent during the wait
            self._raise_denied()
        unseen, self._unreported = self._unreported, None
        if unseen is not None and not _is_retrieved(unseen):
            unseen.result()

    async def close(self) -> None:
        """Stop without waiting for acks.

        Messages in flight fail with OutcomeUnknownError. Senders that wait for room get ClientClosedError. Call
        ``flush`` first to wait for acks.
        """
        self._transport.check_event_loop()
        self._end("the publisher was closed before the ack came")
        for unwatch in self._unwatch:
            unwatch()
        if self._unreported is not None:
            self._unreported.exception()  # no later flush would raise it
        subscription, self._subscription = self._subscription, None
        try:
            await end_tasks([self._sweeper, self._addressing.task])
        finally:
            await unsubscribe(subscription)

    def _end(self, why: str) -> None:
        self._closed = True
        for number in list(self._in_flight):
            self._fail(number, OutcomeUnknownError(why))

    def _on_close(self) -> None:
        """Close the publisher, because its client closes. Messages in flight fail, because no ack will arrive."""
        self._end("the client was closed before the ack came")
        for task in (self._sweeper, self._addressing.task):
            if task is not None:
                task.cancel()

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    # ---- sending -----------------------------------------------------------------------------------------------------
    def _must_be_open(self) -> None:
        self._transport.must_be_usable()
        if self._closed:
            raise ClientClosedError(f"The publisher of {self._stream}/{self._partition} is closed. Open a new publisher.")

    async def _open(self) -> None:
        """Subscribe to acks before the first message is sent. Concurrent callers share one subscription."""
        async with self._opening:
            if self._subscription is None:
                self._inbox = self._transport.connection.new_inbox()
                listening = await self._transport.listen(f"{self._inbox}.*", self._on_ack, self._options.timeout_s)
                if self._closed:
                    await listening.unsubscribe()
                self._must_be_open()
                if self._sweeper is None:
                    self._sweeper = asyncio.create_task(
                        self._sweep(self._transport.reconnected), name=f"acks of {self._stream}/{self._partition}"
                    )
                self._subscription = listening

    async def _enter(self, size_bytes: int) -> None:
        await self._window.enter(size_bytes)
        if self._closed:  # it was closed during the wait; this permit wakes the next waiting sender
            self._window.leave(size_bytes)
            self._must_be_open()

    async def _wait_for_room(self, number: int, message: InFlight) -> bool:
        """Wait until the connection has room for message ``number``. Return whether the message must still be sent.

        The result is False if the message has failed, or if it was scheduled for another attempt. A canceled call sends nothing.
        """
        try:
            await self._transport.room(message.answer_by)
        except UnavailableError as error:  # the sweeper retries until the patience is over
            self._send_again(number, message, error)
            return False
        except BaseException:
            if number in self._in_flight:
                self._pop_future(number).cancel()
            raise
        return number in self._in_flight  # False: it was closed or given up during the wait

    async def _send_to_nats(self, number: int, message: InFlight) -> None:
        address = self._addressing.address
        if message.uid not in ("", address.uid):
            if message.maybe_stored:
                self._fail(
                    number,
                    OutcomeUnknownError(
                        f"Stream {self._stream} was deleted and created again before the ack arrived. The message may have "
                        "been stored in the deleted stream. Send it again if the current stream needs it."
                    ),
                )
                return
            message.payload, message.uid = with_new_uid(message.payload, address.uid), address.uid
        try:
            reply = f"{self._inbox}.{number}"
            await self._transport.write(address.subject, message.payload, reply, None, message.answer_by)
        except ProtocolError as error:  # another server with a higher limit may have received an earlier attempt
            text = f"{_EARLIER_ATTEMPT} Last error: {error}"
            unknown = OutcomeUnknownError(text) if message.maybe_stored else None
            self._fail(number, unknown or PublishRejectedError(str(error), "TOO_LARGE"))
        except UnavailableError as error:
            self._send_again(number, message, error)

    # ---- answers -----------------------------------------------------------------------------------------------------
    async def _on_ack(self, message: Any) -> None:
        self._unanswered_since = None
        token = message.subject.rpartition(".")[2]
        number = int(token) if token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS else -1
        waiting = self._in_flight.get(number)
        if waiting is not None and is_no_responders(message):
            text = f"No responders on {self._addressing.address.subject}. {self._stream} may have no leader: check `liftpy status`."
            self._addressing.doubt()
            self._send_again(number, waiting, UnavailableError(text))
            return
        try:
            ack = frames.decode(message.data, _Ack)
        except ProtocolError as error:
            if waiting is not None:
                self._count_foreign_answer(f"an answer on {self._addressing.address.subject} is not a liftpy ack ({error})")
            return
        if waiting is None and not (ack.recordCount > 1 and number >= 0):
            return  # the message has its ack. Other messages of a run may wait for this one
        if (ack.stream, ack.partition) != (self._stream, self._partition):
            self._count_foreign_answer(f"an ack on {self._addressing.address.subject} came from {ack.stream!r}/{ack.partition}")
            if ack.ackError == _Ack.WRONG_STREAM and waiting is not None:
                waiting.refusal = PublishRejectedError(
                    f"Another stream, {ack.stream}/{ack.partition}, stores this subject: {ack.detail}. Check `liftpy stream "
                    "list`.",
                    "WRONG_STREAM",
                )
            return
        other = bool(waiting is not None and waiting.uid and ack.streamUid and ack.streamUid != waiting.uid)
        if other and ack.ackError != _Ack.WRONG_STREAM:
            self._count_foreign_answer(
                f"an ack on {self._addressing.address.subject} came from an older stream of this name, {ack.streamUid}"
            )
        elif ack.ackError == _Ack.OK:
            self._messages_stored(number, ack)
        elif waiting is not None:
            self._refusal(number, waiting, ack, other)

    def _messages_stored(self, first: int, ack: _Ack) -> None:
        """Complete the messages that one ack answers: message ``first``, and the messages sent directly after it.

        The first message gets the offset of the ack, and the others get the offsets after it.
        """
        in_flight, refused, uid = self._in_flight, self._refused, ack.streamUid
        named, epoch, behind, duplicate = (ack.stream, ack.partition), ack.leaderEpoch, ack.offset - first, ack.duplicate
        end = first + 1 if ack.recordCount <= 1 else min(first + ack.recordCount, self._next_id)
        count = size_bytes = 0
        for number in range(first, end):
            message = in_flight.get(number)
            if message is None or (message.uid != uid and message.uid and uid):
                continue
            del in_flight[number]
            if refused:
                refused.discard(number)
            if number == self._first:
                self._send_waiting()
            count += 1
            size_bytes += message.size_bytes
            answer = message.answer
            if not answer.done():
                answer.set_result(PublishAck(*named, behind + number, epoch, duplicate))
        if count:
            self._has_right = True
            self._probing_until = 0.0
            self._addressing.sure()
            self._window.leave(size_bytes, count)

    def _send_waiting(self) -> None:
        """Send all messages that wait for another attempt, because the leader has accepted the first one."""
        self._is_accepted, self._first, now = True, -1, asyncio.get_running_loop().time()
        for other in map(self._in_flight.__getitem__, self._refused):
            other.resend_at = max(now, other.not_before)

    def _refusal(self, number: int, waiting: InFlight, ack: _Ack, other: bool) -> None:
        refusal = rejection(ack, "message")
        is_wrong = ack.ackError == _Ack.WRONG_STREAM
        is_condition = is_wrong and bool(waiting.uid) and ack.streamUid == waiting.uid  # Nats-Expected-Stream names another one
        if is_condition:
            self._fail(number, refusal)
            return
        if other or is_wrong or not ack.streamUid:
            self._addressing.doubt(is_wrong=is_wrong)
        if ack.ackError in NOT_STORED_NOW:
            if ack.ackError == _Ack.OVERLOADED and self._options.overload_patience_s:
                self._leader_overloaded(self._loop.time())
            self._send_again(number, waiting, refusal, ack.retryAfterMs / 1000 if ack.ackError == _Ack.QUOTA else 0.0)
        else:
            self._fail(number, refusal)

    def _leader_overloaded(self, now: float) -> None:
        """Give all messages in flight more time, because a leader answers and has no room. ``now``: time of the event loop."""
        if now < self._extended_at + _EXTEND_EVERY_S:
            return
        self._extended_at, give_up = now, now + self._options.patience_s
        for message in self._in_flight.values():
            message.give_up = max(message.give_up, min(give_up, message.overload_give_up))

    def _count_foreign_answer(self, why: str) -> None:
        """Count an ack that does not come from the addressed partition, and continue to wait for the right one [A9]."""
        self.foreign_answers += 1
        self._transport.counters["acks by somebody else"] += 1
        self._last_foreign = f" ({why})"
        self._addressing.doubt()

    def _on_denial(self, is_publish: bool, subject: str) -> None:
        """Fail the messages in flight, because NATS denies publishing (``is_publish``) or subscribing to ``subject``."""
        if (is_publish and subject != self._addressing.address.subject) or (not is_publish and subject != f"{self._inbox}.*"):
            return
        what = f"publish on {subject}" if is_publish else f"subscribe for acks on {subject}"
        denial = NotAllowedError(
            f"The NATS permissions of this user do not allow it to {what}. Change the permissions: `liftpy permissions "
            "--role publisher` prints them."
        )
        if self._posted > self._settled:
            self._denied = denial
        if not is_publish:
            self._subscription = None  # the next message subscribes again
        for number in list(self._in_flight):  # messages that were sent before the denial may be stored
            self._fail(number, OutcomeUnknownError(str(denial)) if self._has_right else denial)

    def _raise_denied(self) -> None:
        denied, self._denied = self._denied, None
        if denied is not None:
            raise denied

    def _use_new_address(self) -> None:
        """Send rejected messages to the new stream, because the stream was deleted and created again.

        Messages that may be stored in the old stream are never sent to the new one.
        """
        address, self._has_right = self._addressing.address, False
        for number, message in self._in_flight.items():
            if message.refusal is not None and message.uid not in ("", address.uid):
                message.resend_at = asyncio.get_running_loop().time()
                self._refused.add(number)

    def _connection_lost(self, error: LiftError) -> None:
        for number in list(self._in_flight):
            self._fail(number, error)

    # ---- what is not answered ----------------------------------------------------------------------------------------
    def _send_again(self, number: int, message: InFlight, refusal: LiftError, after_s: float = 0.0) -> None:
        """Schedule another attempt for message ``number``, which was rejected with ``refusal``.

        ``after_s``: time to wait that the leader requested, in seconds. 0: a pause that grows with each attempt.
        """
        if number in self._in_flight:
            now = asyncio.get_running_loop().time()
            self._is_accepted = self._is_accepted and after_s > 0
            message.schedule_retry(refusal, now, after_s)
            if not after_s and now < self._probing_until:
                message.resend_at = min(message.resend_at, now + PROBE_S)
            self._refused.add(number)

    def _pop_future(self, number: int) -> asyncio.Future[PublishAck]:
        """Remove message ``number`` from the messages in flight and return its future.

        The future may already be done, because its caller canceled it.
        """
        message = self._in_flight.pop(number)
        self._refused.discard(number)
        self._window.leave(message.size_bytes)
        return message.answer

    def _fail(self, number: int, error: LiftError) -> None:
        message = self._in_flight[number]
        if isinstance(error, OutcomeUnknownError):
            error = OutcomeUnknownError(str(error), message.message_id.decode())
        elif message.maybe_stored and not is_final(error):
            error = OutcomeUnknownError(f"{_EARLIER_ATTEMPT} Last error: {error}", message.message_id.decode())
        answer = self._pop_future(number)
        if answer.done():
            return
        answer.set_exception(error)
        if self._unreported is None or _is_retrieved(self._unreported):
            self._unreported = answer
        else:
            answer.exception()  # it counts as looked at: one error is enough for flush()

    async def _sweep(self, renewed: asyncio.Future[None]) -> None:
        """At every tick, send rejected messages again. At every tenth tick, resend or fail messages without an ack.

        Wait while no message is in flight.
        """
        loop = asyncio.get_running_loop()
        for tick in itertools.count():
            if not self._in_flight:
                self._has_work.clear()
                await self._has_work.wait()
                if renewed.done():  # no message of the old connection is in flight
                    renewed, self._probing_until = self._transport.reconnected, loop.time() + PROBING_S
            due_at = loop.time() + _SWEEP_S
            await asyncio.sleep(_SWEEP_S)
            try:
                self._transport.must_be_usable()
            except ClientClosedError:  # the application or nats-py has closed the connection of the client
                self._end("the NATS connection was closed before the ack came")
                return
            now = loop.time()
            if late_s := suspended_s(due_at):  # acks may have arrived during the suspension, and are not processed yet
                for message in self._in_flight.values():
                    message.extend(late_s)
            self._check_server(now)
            if renewed.done():  # it is unknown which messages of the old connection have arrived
                renewed = self._transport.reconnected
                self._resume_sending(now)
            elif now < self._probing_until and self._is_probe_unanswered(now):
                first = self._in_flight[self._first]
                if first.known_until_ns:  # the leader stores its message id once, so that the probe can be sent again
                    self._may_be_stored([self._first], now, growth=1)
                self._addressing.doubt()
            await self._send_refused(now)
            if tick % _TICKS_PER_DEADLINE_CHECK == 0:
                late = [n for n, message in self._in_flight.items() if not message.resend_at and now >= message.answer_by]
                self._may_be_stored(late, now)
                if late:
                    self._addressing.doubt()

    def _check_server(self, now: float) -> None:
        """Ping the NATS server if messages are in flight and no ack has arrived for ``SILENT_S`` seconds."""
        if not self._in_flight or self._unanswered_since is None:
            self._unanswered_since = now
        elif now >= self._unanswered_since + SILENT_S:
            self._transport.check_server()

    def _resume_sending(self, now: float) -> None:
        """Send messages in flight again after a reconnect, or after a silence of the server.

        One message is sent first, as a probe. The others follow when a leader has accepted it.
        """
        self._probing_until = now + PROBING_S
        known = [number for number, message in self._in_flight.items() if message.known_until_ns]
        self._may_be_stored(known, now, "the connection broke, or the NATS server was silent")
        for message in self._in_flight.values():
            message.connection_renewed(min(self._options.timeout_s, FIRST_ATTEMPT_S if message.known_until_ns else math.inf))
            if message.resend_at:
                message.resend_at = max(now, message.not_before)

    def _is_probe_unanswered(self, now: float) -> bool:
        """Return whether the probe, the message that is sent alone, has no answer for ``PROBE_S`` seconds."""
        return self._first in self._in_flight and self._first not in self._refused and now >= self._first_sent_at + PROBE_S

    async def _send_refused(self, now: float) -> None:
        """Send rejected messages again, in the order of their numbers.

        The first one is sent alone, as a probe. The others follow when a leader has accepted it.
        """
        waits = self._first in self._in_flight and self._first not in self._refused
        if waits and now < self._probing_until and self._is_probe_unanswered(now):
            waits = False  # a probe without a message id cannot be sent again: the next message is the probe
        for number in sorted(self._refused):
            message = self._in_flight.get(number)
            if message is None or number not in self._refused:
                continue
            if not waits or now >= message.give_up:
                await self._try_again(number, message, now)
            if number in self._refused:
                waits = True
            elif number in self._in_flight and not self._is_accepted:
                self._first, self._first_sent_at, waits = number, now, True

    def _may_be_stored(self, numbers: Iterable[int], now: float, reason: str = "", growth: int = 2) -> None:
        """Resend messages without an ack whose message ids the leader still knows. Fail the others with OutcomeUnknownError.

        ``reason``: cause that the error names. '': no ack has come. ``growth``: factor by which the timeout of the next attempt grows.
        """
        for number in numbers:
            message = self._in_flight[number]
            if message.resend_at:
                continue  # another attempt is already scheduled
            message.maybe_stored = True
            message.attempt_s = min(message.attempt_s * growth, self._options.timeout_s)
            why = reason or self._no_ack_text(now - message.began)
            if now >= message.give_up or now_ns() >= message.known_until_ns:
                self._fail(number, OutcomeUnknownError(why))
            else:
                self._send_again(number, message, UnavailableError(why))
                message.resend_at = now

    def _no_ack_text(self, waited_s: float) -> str:
        where = f"{self._stream}/{self._partition} on {self._addressing.address.subject}"
        return f"No ack from {where} within {waited_s:.1f} s{self._last_foreign}. The message may be stored."

    async def _try_again(self, number: int, message: InFlight, now: float) -> None:
        if now >= message.give_up or (message.maybe_stored and now_ns() >= message.known_until_ns):
            self._fail(
                number,
                message.refusal
                or UnavailableError(
                    f"No node accepted the message on {self._addressing.address.subject} in time. Check the leader with "
                    f"`liftpy status --stream {self._stream}`, or increase timeout_s."
                ),
            )
        elif now >= message.resend_at and self._transport.has_room:
            message.resend_at, message.deadline, message.refusal = 0.0, now + message.attempt_s, None
            self._refused.discard(number)
            await self._send_to_nats(number, message)


def _is_retrieved(failed: asyncio.Future[PublishAck]) -> bool:
    """Return whether the application has read the error of the future ``failed``."""
    return not getattr(failed, "_log_traceback", True)
