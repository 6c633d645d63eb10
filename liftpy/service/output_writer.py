"""Writes the leader's outputs to the output stream, each at its own offset. Followers read them.

``liftpy/core/services/outbox.py`` has the rules. Record batches (BatchPublish) contain the outputs, and several batches are
in flight. Each batch names the expected offset of its first output, and gets one ack. The first rejection or missing ack
stops the writer. Then it reads the end of the output stream before it sends again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from liftpy.client import Client
from liftpy.client.in_flight import ack_reason
from liftpy.client.positions import Bounds
from liftpy.client.stream_info import StreamInfo
from liftpy.core.services.outbox import (
    CopiedOutputs,
    Outbox,
    Output,
    OutputConflictError,
    OutputMismatchError,
    Route,
    RouteTarget,
    headers_of,
    number_of,
    partitions_of,
    sort_in,
)
from liftpy.core.services.service import DivergedError, ServiceFailedError
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record, add_header, encode_body
from liftpy.core.wire.headers import Pairs
from liftpy.core.wire.subjects import data_subject, has_wildcards
from liftpy.errors import ConfigError, LiftError, NotFoundError, OffsetOutOfRangeError, UnavailableError
from liftpy.nats.transport import Transport
from liftpy.service.instance import ServiceInstance
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]] | Pairs]
"""(value, key, headers) of one output."""
_AGAIN_S = 0.05
"""First wait in seconds before a retry. It doubles each time, up to ``emit_poll_interval_s``."""
_BATCH_RECORDS = 1024
_LOST_AFTER_S = 3.0
"""Time in seconds for which an output stream may end below the acknowledged offset before it counts as truncated.

A new leader may report a lower end at first.
"""
_CHUNK_RECORDS = 4096
"""Maximum number of outputs that are processed in one turn."""


class OutputNotWrittenError(UnavailableError):
    """An output was not acknowledged, or was rejected as out of order. The writer reads the stream and continues from its end."""

    code = "OUTPUT_NOT_WRITTEN"


class Destination(NamedTuple):
    """Partition to which outputs are written. ``subject``: the subject to which they are published."""

    stream: str
    uid: str
    partition: int
    subject: str


def frame_of(to: Destination, expected_offset: int, rows: Sequence[Row]) -> bytes:
    """Return a publish message that appends ``rows`` to the partition ``to`` only if it ends at ``expected_offset``."""
    head = client_pb2.BatchPublish(
        stream=to.stream,
        streamUid=to.uid,
        partition=to.partition,
        expectedOffset=expected_offset,
        ackPolicy=client_pb2.ALL,
    )
    values, keys, headers = zip(*rows, strict=True)
    return frames.batch_publish(head, add_header(encode_body(values, keys=keys, headers=headers)))


def message_that_fits(to: Destination, expected_offset: int, rows: Sequence[Row], max_payload: int) -> tuple[bytes, int]:
    """Return a message with the first of ``rows`` that fit into ``max_payload`` bytes, and the number of these rows.

    The message has at least one row. The function halves the number of rows until they fit. ``expected_offset``: offset of the
    first row in the partition ``to``.
    """
    count = len(rows)
    frame = frame_of(to, expected_offset, rows)
    while len(frame) > max_payload and count > 1:
        count //= 2
        frame = frame_of(to, expected_offset, rows[:count])
    return frame, count


async def append(
    transport: Transport, to: Destination, frame: bytes, expected_offset: int, count: int, timeout_s: float
) -> None:
    """Send the publish message ``frame`` to the partition ``to`` and wait for its ack.

    Raises OutputNotWrittenError unless its ``count`` records are stored from ``expected_offset`` on.
    """
    which = f"output at offset {expected_offset} of {to.stream}/{to.partition}"
    ack = frames.decode(await transport.request(to.subject, frame, timeout_s), client_pb2.Ack)
    named = (ack.stream, ack.partition) == (to.stream, to.partition)
    if not named or ack.streamUid not in ("", to.uid):  # another stream stores the subject, so its ack proves nothing [A9]
        raise OutputNotWrittenError(
            f"The ack of {which} came from another stream: {ack.stream!r}/{ack.partition} (uid {ack.streamUid}). "
            "Only one stream may store this subject: check `liftpy stream list`."
        )
    if ack.ackError != client_pb2.Ack.OK:
        raise OutputNotWrittenError(f"The output stream rejected {which}: {ack_reason(ack)} {ack.detail}".rstrip())
    if (ack.offset, ack.recordCount) != (expected_offset, count):
        raise OutputConflictError(
            f"{which} and {count - 1} more were stored as {ack.recordCount} records from offset {ack.offset}. "
            "Another program writes to the output stream. Choose a new stream (--output-stream)."
        )


class StreamReplacedError(NotFoundError):
    """The output stream was deleted and created again. After a restart, the service writes its outputs from the first one on."""


class _Batch(NamedTuple):
    """Outputs that are sent in one message and stored together, from ``first`` to ``last`` (inclusive)."""

    first: Output
    last: Output
    frame: bytes

    @property
    def record_count(self) -> int:
        return self.last.number - self.first.number + 1


class Emitter:
    """Writes the outputs of a LEADER to the output stream. On a follower, it reads the stream and compares the outputs."""

    def __init__(
        self, client: Client, transport: Transport, settings: ServiceSettings, outbox: Outbox, instance: ServiceInstance
    ) -> None:
        self._client = client
        self._transport = transport
        self._stream = settings.output_stream
        self._partition = settings.partition
        self._settings = settings
        self._outbox = outbox
        self._instance = instance
        self._address = Destination(self._stream, "", self._partition, "")
        """Address of the output stream. It has no subject until the stream was found."""
        self._wake = asyncio.Event()
        self._must_check = True
        """True if the end of the output stream must be read before an output is sent."""
        self._shorter_since_s: float | None = None
        """Monotonic time in seconds since which the output stream ends below the written offset. None: it does not."""
        self._wait_s = _AGAIN_S
        self.problem = ""
        """Reason why outputs are not sent, for the status. '': none."""

    def wake(self) -> None:
        """Let ``run`` check for outputs to write now, because there are new ones or the role has changed."""
        self._wake.set()

    def reread_end(self) -> None:
        """Read the end of the output stream before the next output is sent, because the role has changed."""
        self._must_check = True
        self._wake.set()

    async def run(self) -> None:
        """As LEADER, write the outputs to the output stream. As follower, read and compare them. This never ends."""
        while True:
            self._wake.clear()
            try:
                await self._turn()
                self.problem = ""
            except OutputMismatchError as error:
                self._must_check, self.problem = True, f"outputs: {error.code}: {error}"
                self._instance.outputs_disproven()
            except (DivergedError, ConfigError, StreamReplacedError, ServiceFailedError) as error:
                self._instance.fail(error)
                return
            except LiftError as error:
                again = isinstance(error, OutputNotWrittenError)
                problem = f"outputs: {error.code}: {error}"
                if problem != self.problem and not again:
                    logger.warning(
                        "outputs not written stream=%s partition=%d problem=%s: retrying",
                        self._stream,
                        self._partition,
                        problem,
                    )
                self._must_check, self.problem = True, problem
                await asyncio.sleep(
                    min(self._wait_s, self._settings.emit_poll_interval_s) if again else self._settings.emit_poll_interval_s
                )
                self._wait_s *= 2
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.emit_poll_interval_s):  # wait_for may swallow a cancellation
                    await self._wake.wait()

    async def _turn(self) -> None:
        if not self._address.subject:
            await self._open()
        if self._must_check or not self._instance.leads:
            await self._learn()
        if self._instance.leads and not self._outbox.must_rewind:
            await self._send()

    async def _open(self) -> None:
        stream = await self._client.stream(self._stream)
        if self._partition >= len(stream.partitions):
            raise ConfigError(
                f"Output stream {self._stream} has {len(stream.partitions)} partitions, but partition "
                f"{self._partition} is needed. Add partitions (liftpy stream add-partitions)."
            )
        subject = data_subject(stream.subject, self._partition)
        if has_wildcards(subject):
            raise ConfigError(
                f"Output stream {self._stream} has the subject {subject} with wildcards. Use a stream without "
                "wildcards (--output-stream)."
            )
        if not stream.answers:
            raise ConfigError(
                f"Output stream {self._stream} has the ack policy none. Use a stream with the ack policy leader or "
                "all (--output-stream)."
            )
        if stream.config.compaction:
            raise ConfigError(
                f"Output stream {self._stream} is compacted, so offsets of outputs would not be stable. Use a stream "
                "without compaction (--output-stream)."
            )
        if self._settings.routes and stream.config.max_per_subject:
            raise ConfigError(
                f"Output stream {self._stream} has max_per_subject = {stream.config.max_per_subject}, so a route would miss outputs "
                "that are deleted before they are copied. Set max_per_subject to 0, or use no routes (--route)."
            )
        self._address = Destination(self._stream, stream.uid, self._partition, subject)

    # ---- reading ----------------------------------------------------------------------------------------------------------
    async def _learn(self) -> None:
        """Read the new records of the output stream, and compare them with the outputs in the outbox."""
        outbox = self._outbox
        bounds = await self._client.bounds(self._stream, self._partition)
        if bounds.uid != self._address.uid:
            raise StreamReplacedError(
                f"Output stream {self._stream} was deleted and created again. Restart the service: it writes all outputs again."
            )
        end = bounds.end_offset
        self._detect_truncation(end)
        proof = outbox.proof_at(bounds.log_start_offset, end)
        if proof is not None:
            await self._read_outputs(proof, proof + 1, outbox.prove)
        outbox.starts_at(bounds.log_start_offset, end)
        if outbox.emitted_end < end:
            await self._read_outputs(outbox.emitted_end, end, outbox.check_output)
            outbox.outputs_committed(end)  # the last outputs may have been purged
            self._instance.outputs_written()
        self._must_check = self._shorter_since_s is not None
        if not outbox.known:
            outbox.known = True
            self._instance.outputs_known()

    def _detect_truncation(self, end: int) -> None:
        now_s = time.monotonic()
        if end >= self._outbox.emitted_end:
            self._shorter_since_s = None
        elif self._shorter_since_s is None:
            self._shorter_since_s = now_s
        elif now_s - self._shorter_since_s >= _LOST_AFTER_S:
            where, known = f"{self._stream}/{self._partition}", self._outbox.emitted_end
            logger.error(
                "output stream truncated partition=%s end_offset=%d written_outputs=%d: writing the outputs again",
                where,
                end,
                known,
            )
            self._outbox.outputs_lost(end)
            self._shorter_since_s = None

    async def _read_outputs(self, start: int, end: int, take: Callable[[Record], None]) -> None:
        try:
            pieces = self._client.read_range(self._stream, self._partition, start, end, uid=self._address.uid, exact=True)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    for record in piece.records():
                        take(record)
        except OffsetOutOfRangeError:
            raise OutputNotWrittenError(
                "Retention deleted records of the output stream while the service read them. The service retries. "
                "Increase the retention of the output stream."
            ) from None

    # ---- writing -----------------------------------------------------------------------------------------------------------
    async def _send(self) -> None:
        outbox = self._outbox
        while self._instance.leads and not self._must_check:
            outputs = outbox.read(outbox.emitted_end, self._settings.emit_window)
            if not outputs:
                return
            batches = list(self._outputs_in_batches(outputs))
            answers = await asyncio.gather(*map(self._write, batches), return_exceptions=True)
            for batch, answer in zip(batches, answers, strict=True):
                if isinstance(answer, OutputNotWrittenError | asyncio.CancelledError):
                    raise answer
                if isinstance(answer, BaseException):
                    raise OutputNotWrittenError(
                        f"Output {batch.first.number} was not stored: {answer}. The service retries."
                    ) from answer
                outbox.wrote(batch.last)
                self._wait_s = _AGAIN_S
                self._instance.outputs_written()

    def _outputs_in_batches(self, outputs: Sequence[Output]) -> Iterator[_Batch]:
        """Yield ``outputs`` as record batches, each of which fits into one message."""
        max_payload = self._transport.max_payload_bytes
        start = 0
        while start < len(outputs):
            count = size_bytes = 0
            for output in outputs[start : start + _BATCH_RECORDS]:
                size_bytes += output.size_bytes
                if count and size_bytes > max_payload // 2:
                    break
                count += 1
            rows = [(o.value, o.key, self._outbox.headers_of(o)) for o in outputs[start : start + count]]
            frame, count = message_that_fits(
                self._address, outputs[start].number, rows, max_payload
            )  # the headers that are added to each output were not counted
            yield _Batch(outputs[start], outputs[start + count - 1], frame)
            start += count

    async def _write(self, batch: _Batch) -> None:
        """Append the outputs of ``batch`` at their own offsets of the output stream.

        Raises OutputNotWrittenError unless they are acknowledged there.
        """
        count = batch.record_count
        await append(self._transport, self._address, batch.frame, batch.first.number, count, self._settings.emit_timeout_s)


class Router:
    """Copies the outputs of one route from the output stream to the route's target stream.

    ``source``: uid and partition of the input, as in each output id.
    """

    def __init__(
        self,
        client: Client,
        transport: Transport,
        settings: ServiceSettings,
        route: Route,
        *,
        source: str,
        instance: ServiceInstance,
    ) -> None:
        self._client = client
        self._transport = transport
        self._settings = settings
        self.route = route
        self._source = source
        self._instance = instance
        self._target: StreamInfo | None = None
        self._places: dict[int, RouteTarget] = {}
        """Partition of the route's stream -> its end and last output. Empty: not known yet."""
        self._copied = CopiedOutputs(0)
        """Outputs at or above ``_next`` that the route's stream has."""
        self._next = 0
        """Offset in the output stream of the next output to process."""
        self._wake = asyncio.Event()
        self.problem = ""
        """Reason why copies are not sent, for the status. '': none."""

    def wake(self) -> None:
        """Check for outputs to copy now, because outputs were written or the role has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Copy outputs to the target stream while this service is LEADER, forever. An error of the route itself ends the service."""
        while True:
            self._wake.clear()
            try:
                if self._instance.leads:
                    await self._turn()
                else:
                    self._places = {}
                self.problem = ""
            except (ConfigError, OutputConflictError) as error:
                self._instance.fail(error)
                return
            except LiftError as error:
                self._places = {}
                self.problem = f"route {self.route.name}: {error.code}: {error}"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.emit_poll_interval_s):
                    await self._wake.wait()

    async def _turn(self) -> None:
        settings = self._settings
        if not self._places:
            await self._learn()
        bounds = await self._client.bounds(settings.output_stream, settings.partition)
        if self._next < bounds.log_start_offset:
            logger.warning(
                "outputs deleted before they were copied route=%s stream=%s log_start=%d: continuing there",
                *(self.route.name, settings.output_stream, bounds.log_start_offset),
            )
            self._next = bounds.log_start_offset
        while self._next < bounds.end_offset and self._instance.leads:
            end = min(bounds.end_offset, self._next + _CHUNK_RECORDS)
            pieces = self._client.read_range(
                settings.output_stream, settings.partition, self._next, end, uid=bounds.uid, exact=True
            )
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    sort_in(piece.records(), self.route, self._places, self._copied)
                    for partition, place in self._places.items():  # at most one batch of outputs is waiting
                        await self._write(partition, place)
            self._next = end

    async def _learn(self) -> None:
        """Read the end of each partition of the target stream, and the numbers of the outputs in it that may be copied again."""
        instances = len((await self._client.stream(self._settings.stream)).partitions)
        target = await self._client.stream(self.route.stream)
        if has_wildcards(target.subject) or not target.answers or target.config.compaction:
            raise ConfigError(
                f"Stream {self.route.stream} cannot be used for a route. It needs a subject without wildcards, an ack "
                "policy of leader or all, and no compaction. Choose another stream (--route)."
            )
        partitions = partitions_of(self._settings.partition, instances, len(target.partitions), self.route)
        bounds = {partition: await self._client.bounds(target.name, partition) for partition in partitions}
        places = {partition: await self._place(target, partition, bounds[partition]) for partition in partitions}
        first = min(place.last_number for place in places.values()) + 1
        copied = CopiedOutputs(first)
        for partition in partitions:
            async for numbers in self._numbers_from_end(target, partition, bounds[partition]):
                if max(numbers, default=first) < first:
                    break
                for number in numbers:
                    copied.add(number)
        self._target, self._places, self._copied, self._next = target, places, copied, first

    async def _place(self, target: StreamInfo, partition: int, bounds: Bounds) -> RouteTarget:
        """Return a partition of the target stream, with the number of the last output in it."""
        place = RouteTarget(bounds.end_offset)
        async for numbers in self._numbers_from_end(target, partition, bounds):
            if numbers:  # the last copies may have been purged
                place.last_number = numbers[-1]
                break
        start = bounds.log_start_offset
        if place.last_number >= 0 and start:
            place.copied_below = min(await self._numbers(target, partition, start, start + 1), default=0)
        return place

    async def _numbers_from_end(self, target: StreamInfo, partition: int, bounds: Bounds) -> AsyncIterator[list[int]]:
        """Yield the numbers of the outputs in a partition of the target stream, from its end to its start, in growing parts."""
        upper, size = bounds.end_offset, 1
        while upper > bounds.log_start_offset:
            lower = max(bounds.log_start_offset, upper - size)
            yield await self._numbers(target, partition, lower, upper)
            upper, size = lower, min(size * 4, _CHUNK_RECORDS)

    async def _numbers(self, target: StreamInfo, partition: int, start: int, end: int) -> list[int]:
        """Return the numbers of the outputs in a partition of the target stream, from ``start`` to ``end`` (exclusive)."""
        pieces = self._client.read_range(target.name, partition, start, end, uid=target.uid, exact=True)
        async with contextlib.aclosing(pieces):
            return [
                number_of(record, self._source, self._settings.service, self.route)
                async for piece in pieces
                for record in piece.records()
            ]

    async def _write(self, partition: int, place: RouteTarget) -> None:
        target = self._target
        assert target is not None
        to = Destination(target.name, target.uid, partition, data_subject(target.subject, partition))
        waiting, place.waiting = place.waiting, []
        while waiting:
            if not self._instance.leads:
                raise OutputNotWrittenError(
                    f"Route {self.route.name}: this instance is no longer the leader. The new leader writes the outputs."
                )
            rows = [(record.value, record.key, headers_of(record)) for record in waiting[:_BATCH_RECORDS]]
            frame, count = message_that_fits(to, place.end_offset, rows, self._transport.max_payload_bytes)
            await append(self._transport, to, frame, place.end_offset, count, self._settings.emit_timeout_s)
            place.end_offset += count
            place.last_number = waiting[count - 1].offset
            waiting = waiting[count:]
