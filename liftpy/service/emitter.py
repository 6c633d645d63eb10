"""Writes a LEADER's outputs to the output stream, each at its own offset; lets followers read along. See ``outbox.py``.

One append per output, many in flight, each with the offset that it expects. The first refusal or missing ack stops the window:
then the end of the output stream is learned anew, by a read, before anything else is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from liftpy.client import Client
from liftpy.client.transport import Transport
from liftpy.errors import ConfigError, LiftError, OffsetOutOfRangeError, UnavailableError
from liftpy.service.base import DivergedError
from liftpy.service.outbox import ID_HEADER, NUMBER_HEADER, Outbox, Output, OutputConflictError
from liftpy.service.settings import ServiceSettings
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.subjects import data_subject

logger = logging.getLogger("liftpy.service")

_EXPECTED_HEADER = "Nats-Expected-Last-Sequence"
_AGAIN_S = 0.05


class NotWrittenError(UnavailableError):
    """An output was not acknowledged, or refused because it was not its turn: look at the stream and go on from there."""

    code = "NOT_WRITTEN"


class Emitter:
    """The output side of one service. ``leads`` tells whether outputs may leave now; ``fatal`` takes what ends the service."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        settings: ServiceSettings,
        outbox: Outbox,
        leads: Callable[[], bool],
        fatal: Callable[[LiftError], None],
    ) -> None:
        self._client = client
        self._transport = transport
        self._stream = settings.output_stream
        self._partition = settings.partition
        self._settings = settings
        self._outbox = outbox
        self._leads = leads
        self._fatal = fatal
        self._subject = ""
        self._uid = ""
        self._wake = asyncio.Event()
        self._must_look = True
        """Whether the end of the output stream has to be learned before anything is sent."""
        self.problem = ""
        """Why outputs don't leave; shown in status."""
        self.advanced = asyncio.Event()
        """Set whenever outputs were written."""

    def wake(self) -> None:
        """There is something to send, or the role is another one."""
        self._wake.set()

    def look_again(self) -> None:
        """The role is another one: what is known of the output stream may be old."""
        self._must_look = True
        self._wake.set()

    async def run(self) -> None:
        """Send, read along, for ever."""
        while True:
            self._wake.clear()
            try:
                await self._turn()
                self.problem = ""
            except DivergedError as error:
                self._fatal(error)
                return
            except LiftError as error:
                again = isinstance(error, NotWrittenError)
                problem = f"outputs: {error.code}: {error}"
                if problem != self.problem and not again:
                    logger.warning("to %s/%d: %s", self._stream, self._partition, problem)
                self._must_look, self.problem = True, problem
                await asyncio.sleep(_AGAIN_S if again else self._settings.emit_poll_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.emit_poll_s):  # not wait_for, which may swallow a cancellation
                    await self._wake.wait()

    async def _turn(self) -> None:
        if not self._subject:
            await self._open()
        if self._must_look or not self._leads():
            await self._learn()
        if self._leads() and not self._outbox.must_rewind:
            await self._send()

    async def _open(self) -> None:
        stream = await self._client.stream(self._stream)
        if self._partition >= len(stream.partitions):
            raise ConfigError(
                f"{self._stream} has {len(stream.partitions)} partitions, {self._partition} is needed for outputs"
            )
        subject = data_subject(stream.subject, self._partition)
        if any(token in ("*", ">") for token in subject.split(".")):
            raise ConfigError(f"{self._stream} listens on {subject}: outputs need a subject without wildcards")
        if not stream.answers:
            raise ConfigError(f"{self._stream} has the ack policy none and answers nobody: outputs need acknowledgements")
        self._subject, self._uid = subject, stream.uid

    # ---- reading along -----------------------------------------------------------------------------------------------------
    async def _learn(self) -> None:
        """Take in what the output stream holds now, and check it."""
        outbox = self._outbox
        bounds = await self._client.bounds(self._stream, self._partition)
        if bounds.uid != self._uid:
            raise OutputConflictError(f"the output stream {self._stream} was deleted and made again while it was written to")
        end = bounds.end_offset
        seen_before = min(end, outbox.restarted_at)  # what a snapshot covers was compared when it was made
        outbox.starts_at(max(bounds.log_start_offset, seen_before))
        if outbox.emitted_end < end:
            try:
                pieces = self._client.read_range(self._stream, self._partition, outbox.emitted_end, end, uid=bounds.uid)
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        for record in piece.records():
                            outbox.learned(record)
            except OffsetOutOfRangeError:
                raise NotWrittenError("the output stream's retention overtook the reading") from None
            self.advanced.set()
        self._must_look = False

    # ---- writing -----------------------------------------------------------------------------------------------------------
    async def _send(self) -> None:
        outbox = self._outbox
        while self._leads() and not self._must_look:
            outputs = outbox.take(outbox.emitted_end, self._settings.emit_window)
            if not outputs:
                return
            answers = await asyncio.gather(*map(self._write, outputs), return_exceptions=True)
            for output, answer in zip(outputs, answers, strict=True):
                if isinstance(answer, NotWrittenError | asyncio.CancelledError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise NotWrittenError(f"output {output.number}: {answer}") from answer
                outbox.written(output.number + 1)
                self.advanced.set()

    async def _write(self, output: Output) -> None:
        """Append one output at its own offset; raises NotWrittenError unless it is acknowledged there."""
        ours = ((ID_HEADER, self._outbox.id_of(output).encode()), (NUMBER_HEADER, b"%d" % output.number))
        message = client_pb2.Message(
            offset=output.number,
            value=output.value,
            key=b"" if output.key is None else output.key,
            keyed=output.key is not None,
            stream=self._stream,
            streamUid=self._uid,
            partition=self._partition,
            headers=[client_pb2.Header(name=name, value=value) for name, value in sorted((*output.headers, *ours))],
            ackPolicy=client_pb2.ALL,
        )
        expected = {_EXPECTED_HEADER: "0"} if output.number == 0 else None  # an envelope can't say that it expects offset 0
        answer = await self._transport.request(self._subject, frames.encode(message), self._settings.emit_timeout_s, expected)
        ack = frames.decode(answer, client_pb2.Ack)
        named = (ack.stream, ack.partition) == (self._stream, self._partition)
        if not named or ack.streamUid not in ("", self._uid):  # somebody else answers there: it says nothing [A9]
            raise NotWrittenError(
                f"output {output.number} was answered by {ack.stream!r}/{ack.partition} (uid {ack.streamUid})"
            )
        if ack.ackError != client_pb2.Ack.OK:
            reason = client_pb2.Ack.Error.Name(ack.ackError) if ack.ackError in client_pb2.Ack.Error.values() else ack.ackError
            raise NotWrittenError(f"output {output.number} was refused: {reason} {ack.detail}".rstrip())
        if ack.offset != output.number:
            raise OutputConflictError(f"output {output.number} was written at offset {ack.offset}")
