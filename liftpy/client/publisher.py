"""Publishing with acks: many messages in flight, a window as the bound, every message answered or failed.

A message travels as the published envelope ``Message`` on the stream's own subject, its reply subject names it, the Ack
envelope comes back there. What the other side certainly did not store (no subscriber, "not leader", "overloaded") is sent
again until ``patience_s``; a missing ack is OutcomeUnknownError and is never repeated here, since the record may be stored.
Without an ack (policy NONE) the bytes go out as they are: a plain NATS publish that needs no library of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from liftpy.client.ending import end_tasks
from liftpy.client.transport import Transport
from liftpy.config import AckPolicy
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2

_Ack = client_pb2.Ack
_POLICIES = {AckPolicy.LEADER: client_pb2.LEADER, AckPolicy.ALL: client_pb2.ALL, AckPolicy.NONE: client_pb2.NONE}
_AGAIN = frozenset({_Ack.NOT_LEADER, _Ack.OVERLOADED})
_SWEEP_S = 0.05
_TICKS_PER_DEADLINE_CHECK = 10
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_NO_RESPONDERS = "503"
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class PublishAck:
    """Where a message was stored. ``offset``: its own, in its partition; ``leader_epoch``: in which it was appended."""

    stream: str
    partition: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """``window``: messages in flight before ``send`` waits. ``timeout_s``: for an ack. ``patience_s``: for sending again."""

    window: int = 4096
    timeout_s: float = 10.0
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        for name, (low, high) in {"window": (1, 1 << 20), "timeout_s": (0.01, 600), "patience_s": (0, 3600)}.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} = {getattr(self, name)} is outside {low}..{high}")


@dataclass(slots=True)
class _InFlight:
    """One message. ``deadline``, ``give_up``, ``resend_at``: loop time in s; ``resend_at`` 0: it is out there."""

    payload: bytes
    answer: asyncio.Future[PublishAck]
    give_up: float
    deadline: float
    resend_at: float = 0.0
    wait_s: float = _FIRST_WAIT_S
    refusal: LiftError | None = None


class Publisher:
    """Publishes on one partition's subject. Use as ``async with``: leaving it waits for every ack (``flush``).

    Order: messages are sent in call order and stored in that order, except where one had to be sent again; use a window of 1
    where that matters.
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        partition: int,
        subject: str,
        options: PublishOptions,
        *,
        answered: bool = True,
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._partition = partition
        self._subject = subject
        self._options = options
        self._room = asyncio.Semaphore(options.window)
        self._in_flight: dict[int, _InFlight] = {}
        self._refused: set[int] = set()
        self._next_id = 0
        self._unseen: asyncio.Future[PublishAck] | None = None
        """The first that failed and whose error nobody has looked at: ``flush`` raises it."""
        self._inbox = ""
        self._subscription: Any = None
        self._sweeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self.foreign_answers = 0
        """Answers on the stream's subject by somebody else than the partition: not counted as acks."""
        self._last_foreign = ""
        self._answered = answered

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        ack: AckPolicy = AckPolicy.ALL,
    ) -> asyncio.Future[PublishAck]:
        """Send and return a future of the ack; waits only while ``window`` messages are in flight. Not for AckPolicy.NONE.

        ``value`` None: a tombstone, by which compaction deletes ``key``. An empty value is a value, an empty key a key.

        The future raises PublishRejectedError (not stored, ``reason``), UnavailableError (not stored, nobody took it) or
        OutcomeUnknownError (no ack in ``timeout_s``). ``send`` itself raises ConfigError for what is no message, and
        ClientClosedError.
        """
        if ack is AckPolicy.NONE:
            raise ConfigError("a message without an ack has no future: use post()")
        if not self._answered:
            raise ConfigError(
                f"{self._stream} has the ack policy none and answers nobody: use post(), or publish with ack NONE"
            )
        payload = self._encode(value, key, headers, ack)
        self._must_be_open()
        if self._subscription is None:
            await self._open()
        await self._room.acquire()
        if self._closed:  # meanwhile; whoever waits behind is woken by this permit
            self._room.release()
            self._must_be_open()
        number = self._next_id
        self._next_id += 1
        loop = asyncio.get_running_loop()
        now = loop.time()
        message = _InFlight(
            payload=payload,
            answer=loop.create_future(),
            give_up=now + self._options.patience_s,
            deadline=now + self._options.timeout_s,
        )
        self._in_flight[number] = message
        await self._put_on_the_wire(number, message)
        return message.answer

    async def post(self, value: bytes | None, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None) -> None:
        """Send without an ack: nothing tells whether it is stored. Plain bytes, or the envelope where there is a key or no value."""
        if key is not None or value is None:
            await self._transport.publish(self._subject, self._encode(value, key, headers, AckPolicy.NONE))
            return
        try:
            text = {name: content.decode() for name, content in (headers or {}).items()}
        except UnicodeDecodeError as error:
            raise ConfigError(f"a header that travels as a NATS header must be UTF-8; send it with an ack: {error}") from error
        await self._transport.publish(self._subject, value, headers=text or None)

    async def publish(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        ack: AckPolicy = AckPolicy.ALL,
    ) -> PublishAck | None:
        """Send one message and wait for its ack; None with AckPolicy.NONE. Errors as of ``send``."""
        if ack is AckPolicy.NONE:
            await self.post(value, key=key, headers=headers)
            return None
        return await (await self.send(value, key=key, headers=headers, ack=ack))

    async def flush(self) -> None:
        """Wait until everything sent before is answered; raise the first error that nobody has looked at."""
        waiting = [message.answer for message in self._in_flight.values() if not message.answer.done()]
        if waiting:
            await asyncio.wait(waiting)
        unseen, self._unseen = self._unseen, None
        if unseen is not None and not _was_looked_at(unseen):
            unseen.result()

    async def close(self) -> None:
        """Stop without waiting; what is in flight fails with OutcomeUnknownError, who waits to send with ClientClosedError."""
        self._closed = True
        for number in list(self._in_flight):
            self._fail(number, OutcomeUnknownError("the publisher was closed before the ack came"))
        if self._unseen is not None:
            self._unseen.exception()  # nobody is left who would flush
        subscription, self._subscription = self._subscription, None
        try:
            await end_tasks([self._sweeper])
        finally:
            if subscription is not None:
                with contextlib.suppress(Exception):
                    await subscription.unsubscribe()

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _must_be_open(self) -> None:
        self._transport.must_be_usable()
        if self._closed:
            raise ClientClosedError(f"the publisher of {self._stream}/{self._partition} is closed")

    async def _open(self) -> None:
        """Listen for acks; the first of those who send at once does it for all."""
        async with self._opening:
            if self._subscription is None:
                connection = self._transport.connection
                self._inbox = connection.new_inbox()
                subscription = await connection.subscribe(f"{self._inbox}.*", cb=self._on_ack)
                self._must_be_open()
                self._sweeper = asyncio.create_task(self._sweep(), name=f"acks of {self._stream}/{self._partition}")
                self._subscription = subscription

    def _encode(self, value: bytes | None, key: bytes | None, headers: Mapping[str, bytes] | None, ack: AckPolicy) -> bytes:
        try:
            message = client_pb2.Message(
                offset=-1,
                key=b"" if key is None else key,
                keyed=key is not None,
                value=b"" if value is None else value,
                tombstone=value is None,
                stream=self._stream,
                partition=self._partition,
                headers=dict(headers or {}),
                ackPolicy=_POLICIES[ack],
            )
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"value and key are bytes or None, headers a mapping of str to bytes, ack an AckPolicy: {error}"
            ) from error
        return frames.encode(message)

    async def _put_on_the_wire(self, number: int, message: _InFlight) -> None:
        try:
            await self._transport.publish(self._subject, message.payload, reply=f"{self._inbox}.{number}")
        except ProtocolError as error:
            self._fail(number, PublishRejectedError(str(error), "TOO_LARGE"))
        except UnavailableError as error:
            self._send_again(number, message, error)

    async def _on_ack(self, message: Any) -> None:
        token = message.subject.rpartition(".")[2]
        number = int(token) if token.isascii() and token.isdigit() and len(token) <= _MAX_DIGITS else -1
        waiting = self._in_flight.get(number)
        if waiting is None:
            return
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            nobody = UnavailableError(f"nobody listens on {self._subject}: does {self._stream} have a leader?")
            self._send_again(number, waiting, nobody)
            return
        try:
            ack = frames.decode(message.data, _Ack)
        except ProtocolError as error:
            self._not_ours(f"an answer on {self._subject} is not an ack of ours: {error}")
            return
        if (ack.stream, ack.partition) != (self._stream, self._partition):
            self._not_ours(f"an ack on {self._subject} is that of {ack.stream!r}/{ack.partition}")
            return
        if ack.ackError == _Ack.OK:
            answer = self._done(number)
            if not answer.done():
                answer.set_result(PublishAck(ack.stream, ack.partition, ack.offset, ack.leaderEpoch))
            return
        reason = _Ack.Error.Name(ack.ackError) if ack.ackError in _Ack.Error.values() else str(ack.ackError)
        refusal = PublishRejectedError(f"{self._stream}/{self._partition} refused: {reason} {ack.detail}".rstrip(), reason)
        if ack.ackError in _AGAIN:
            self._send_again(number, waiting, refusal)
        else:
            self._fail(number, refusal)

    def _not_ours(self, why: str) -> None:
        """Somebody else answers on the subject; what it says is nothing about our stream [A9]. The ack is waited for."""
        self.foreign_answers += 1
        self._last_foreign = f"; {why}"

    def _send_again(self, number: int, message: _InFlight, refusal: LiftError) -> None:
        message.refusal = refusal
        message.resend_at = asyncio.get_running_loop().time() + message.wait_s
        message.wait_s = min(message.wait_s * 2, _LONGEST_WAIT_S)
        self._refused.add(number)

    def _done(self, number: int) -> asyncio.Future[PublishAck]:
        """The future of a message that is answered or given up; done already if who waited for it has cancelled it."""
        message = self._in_flight.pop(number)
        self._refused.discard(number)
        self._room.release()
        return message.answer

    def _fail(self, number: int, error: LiftError) -> None:
        answer = self._done(number)
        if answer.done():
            return
        answer.set_exception(error)
        if self._unseen is None or _was_looked_at(self._unseen):
            self._unseen = answer
        else:
            answer.exception()  # it counts as looked at: one error is enough for flush()

    async def _sweep(self) -> None:
        """Every tick what was refused is sent again, every tenth what was not answered is given up."""
        loop = asyncio.get_running_loop()
        for tick in itertools.count():
            await asyncio.sleep(_SWEEP_S)
            now = loop.time()
            for number in list(self._refused):
                await self._try_again(number, self._in_flight[number], now)
            if tick % _TICKS_PER_DEADLINE_CHECK == 0:
                late = [n for n, message in self._in_flight.items() if not message.resend_at and now >= message.deadline]
                for number in late:
                    self._fail(number, OutcomeUnknownError(self._silence()))

    def _silence(self) -> str:
        where = f"{self._stream}/{self._partition} on {self._subject}"
        return f"no ack of {where} within {self._options.timeout_s:g} s{self._last_foreign}"

    async def _try_again(self, number: int, message: _InFlight, now: float) -> None:
        if now >= message.give_up:
            self._fail(number, message.refusal or UnavailableError(f"nobody took it on {self._subject}"))
        elif now >= message.resend_at:
            message.resend_at, message.deadline = 0.0, now + self._options.timeout_s
            self._refused.discard(number)
            await self._put_on_the_wire(number, message)


def _was_looked_at(failed: asyncio.Future[PublishAck]) -> bool:
    """Whether somebody was told the error of a future that failed: then it was his to handle."""
    return not getattr(failed, "_log_traceback", True)
