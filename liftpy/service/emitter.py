"""Writes a LEADER's outputs to the output stream, each at its own offset; lets followers read along. See ``outbox.py``.

One append per output, many in flight, each with the offset that it expects. The first refusal or missing ack stops the window:
then the end of the output stream is learned anew, by a read, before anything else is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from liftpy.client import Client
from liftpy.client.transport import Transport
from liftpy.errors import ConfigError, LiftError, OffsetOutOfRangeError, UnavailableError
from liftpy.service.base import DivergedError
from liftpy.service.outbox import EXPECTED_HEADER, DisprovenError, Outbox, Output, OutputConflictError
from liftpy.service.settings import ServiceSettings
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.batch import Record
from liftpy.wire.subjects import data_subject

logger = logging.getLogger("liftpy.service")

_AGAIN_S = 0.05
"""The first wait after an output that was not written; twice as long each time, up to ``emit_poll_s``."""
_LOST_AFTER_S = 3.0
"""An output stream that ends below what was acknowledged for so long was cut; a leader that has just begun says less for a moment."""


class NotWrittenError(UnavailableError):
    """An output was not acknowledged, or refused because it was not its turn: look at the stream and go on from there."""

    code = "NOT_WRITTEN"


class Emitter:
    """The output side of one service. ``leads`` tells whether outputs may leave now; ``fatal`` takes what ends the service,
    ``disproven`` what only ends the state (an earlier snapshot may be right). ``known`` is called once the end of the output stream
    is known."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        settings: ServiceSettings,
        outbox: Outbox,
        leads: Callable[[], bool],
        fatal: Callable[[LiftError], None],
        disproven: Callable[[], None],
        known: Callable[[], None],
    ) -> None:
        self._client = client
        self._transport = transport
        self._stream = settings.output_stream
        self._partition = settings.partition
        self._settings = settings
        self._outbox = outbox
        self._leads = leads
        self._fatal = fatal
        self._disproven = disproven
        self._known = known
        self._subject = ""
        self._uid = ""
        self._wake = asyncio.Event()
        self._must_look = True
        """Whether the end of the output stream has to be learned before anything is sent."""
        self._shorter_since_s: float | None = None
        """Since when the output stream has ended below what is known to be written."""
        self._wait_s = _AGAIN_S
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
            except DisprovenError as error:
                self._must_look, self.problem = True, f"outputs: {error.code}: {error}"
                self._disproven()
            except DivergedError as error:
                self._fatal(error)
                return
            except LiftError as error:
                again = isinstance(error, NotWrittenError)
                problem = f"outputs: {error.code}: {error}"
                if problem != self.problem and not again:
                    logger.warning("to %s/%d: %s", self._stream, self._partition, problem)
                self._must_look, self.problem = True, problem
                await asyncio.sleep(min(self._wait_s, self._settings.emit_poll_s) if again else self._settings.emit_poll_s)
                self._wait_s *= 2
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
        if stream.config.compaction:
            raise ConfigError(
                f"{self._stream} is compacted: output n would not stay at offset n; outputs need a stream that is not"
            )
        self._subject, self._uid = subject, stream.uid

    # ---- reading along -----------------------------------------------------------------------------------------------------
    async def _learn(self) -> None:
        """Take in what the output stream holds now, and check it."""
        outbox = self._outbox
        bounds = await self._client.bounds(self._stream, self._partition)
        if bounds.uid != self._uid:
            raise OutputConflictError(f"the output stream {self._stream} was deleted and made again while it was written to")
        end = bounds.end_offset
        self._look_for_a_cut(end)
        proof = outbox.proof_at(bounds.log_start_offset, end)
        if proof is not None:
            await self._read(proof, proof + 1, outbox.prove)
        outbox.starts_at(bounds.log_start_offset, end)
        if outbox.emitted_end < end:
            await self._read(outbox.emitted_end, end, outbox.learned)
            self.advanced.set()
        self._must_look = self._shorter_since_s is not None
        if not outbox.known:
            outbox.known = True
            self._known()

    def _look_for_a_cut(self, end: int) -> None:
        now_s = time.monotonic()
        if end >= self._outbox.emitted_end:
            self._shorter_since_s = None
        elif self._shorter_since_s is None:
            self._shorter_since_s = now_s
        elif now_s - self._shorter_since_s >= _LOST_AFTER_S:
            where, known = f"{self._stream}/{self._partition}", self._outbox.emitted_end
            logger.error(
                "%s ends at %d, below the %d outputs that were written: it was cut, they are written again", where, end, known
            )
            self._outbox.lost(end)
            self._shorter_since_s = None

    async def _read(self, start: int, end: int, take: Callable[[Record], None]) -> None:
        try:
            pieces = self._client.read_range(self._stream, self._partition, start, end, uid=self._uid)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    for record in piece.records():
                        take(record)
        except OffsetOutOfRangeError:
            raise NotWrittenError("the output stream's retention overtook the reading") from None

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
                outbox.wrote(output)
                self._wait_s = _AGAIN_S
                self.advanced.set()

    async def _write(self, output: Output) -> None:
        """Append one output at its own offset; raises NotWrittenError unless it is acknowledged there."""
        message = client_pb2.Message(
            offset=output.number,
            value=output.value,
            key=b"" if output.key is None else output.key,
            keyed=output.key is not None,
            stream=self._stream,
            streamUid=self._uid,
            partition=self._partition,
            headers=[client_pb2.Header(name=name, value=value) for name, value in self._outbox.headers_of(output)],
            ackPolicy=client_pb2.ALL,
        )
        expected = {EXPECTED_HEADER: "0"} if output.number == 0 else None  # an envelope can't say that it expects offset 0
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
