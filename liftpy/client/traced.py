"""Publishers, producers and readers whose work is told to OpenTelemetry, and changed in nothing but the header that is put in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from opentelemetry.trace import Span, TracerProvider

from liftpy.client.consumer import Consumer, PartitionReader
from liftpy.client.in_flight import PublishAck
from liftpy.client.iteration import Item, whole
from liftpy.client.lane import Landed, Lane
from liftpy.client.making import Making
from liftpy.client.producer import Producer
from liftpy.client.producing import ANONYMOUS, Ticket
from liftpy.client.progress import ReadProgress, SecondOpinion
from liftpy.client.publisher import Publisher
from liftpy.client.slices import BatchSlice
from liftpy.client.spans import ClientSpans, Sending
from liftpy.errors import CorruptionError
from liftpy.trace.context import TraceContext
from liftpy.trace.messages import created_in
from liftpy.trace.search import MOST_READ_LINKS, names_one, sampled_in
from liftpy.wire.batch import Record
from liftpy.wire.batch_columns import Columns, HeadersColumn
from liftpy.wire.headers import HeadersLike, Pairs, pairs_of


class TracedPublisher(Publisher):
    """``send`` and ``post`` are spans."""

    def __init__(self, spans: ClientSpans, *arguments: Any, **named: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **named)

    async def send(
        self, value: bytes | None, *, headers: HeadersLike | None = None, **as_given: Any
    ) -> asyncio.Future[PublishAck]:
        """As of a Publisher; the span ends with the answer."""
        span = None
        if self._spans.can_send():
            headers, span = self._spans.sending(self._stream, self._partition, pairs_of(headers))
        sending = super().send(value, headers=headers, **as_given)
        if span is None:
            return await sending
        try:
            coming = await sending
        except BaseException as error:
            span.ended(error)
            raise
        coming.add_done_callback(partial(_answered, span))
        return coming

    async def post(self, value: bytes | None, *, headers: HeadersLike | None = None, **as_given: Any) -> None:
        """As of a Publisher; the span ends when it is handed over."""
        pairs, span = self._spans.sending(self._stream, self._partition, pairs_of(headers))
        try:
            await super().post(value, headers=pairs, **as_given)
        except BaseException as error:
            if span is not None:
                span.ended(error)
            raise
        if span is not None:
            span.ended()


def _answered(span: Sending, coming: asyncio.Future[PublishAck]) -> None:
    if coming.cancelled():
        span.ended(asyncio.CancelledError("nobody waits for it any more"))
        return
    error = getattr(coming, "_exception", None)  # to ask for it would count as having looked at it
    if error is not None:
        span.ended(error)
    else:
        ack = coming.result()
        span.ended(offset=ack.offset, leader_epoch=ack.leader_epoch)


class TracedProducer(Producer):
    """Each batch is a span, whose context its first record bears if the producer has no id: under one another process may send the
    records again, and they have to be the same then."""

    def __init__(self, spans: ClientSpans, *arguments: Any, **named: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **named)

    def _lane(self, partition: int, producer_id: int) -> Lane:
        lane = super()._lane(partition, producer_id)
        lane.begun = partial(self._begun, partition, self.name.startswith(ANONYMOUS))
        return lane

    def _begun(self, partition: int, may_mark: bool, ticket: Ticket, pairs: Pairs) -> Pairs:
        marked, span = self._spans.sending(self._stream, partition, pairs)
        if span is not None:
            ticket.future.add_done_callback(partial(_landed, span, ticket))
        return marked if may_mark else pairs


def _landed(span: Sending, ticket: Ticket, coming: asyncio.Future[Landed]) -> None:
    if ticket.record_count:
        span.counted(ticket.record_count)
    if coming.cancelled():
        span.ended(asyncio.CancelledError("nobody waits for it any more"))
    elif (error := coming.exception()) is not None:
        span.ended(error)
    else:
        placed = coming.result()
        span.ended(offset=placed.offset, leader_epoch=placed.leader_epoch)


class TracedReader(PartitionReader):
    """Batches know when they came."""

    async def _fetch_from(self, asked: str, progress: ReadProgress, opinion: SecondOpinion, max_bytes: int) -> list[BatchSlice]:
        slices = await super()._fetch_from(asked, progress, opinion, max_bytes)
        now_ns = time.time_ns()
        for piece in slices:
            piece.batch.arrived_ns = now_ns
        return slices


class TracedConsumer(Consumer):
    """Each slice that is handed on is a span ``receive``, if a record of it is traced."""

    def __init__(self, spans: ClientSpans, *arguments: Any, **named: Any) -> None:
        self._spans = spans
        super().__init__(*arguments, **named)

    def _unfolding(self, unfold: Callable[[BatchSlice], Iterator[Item]]) -> Callable[[BatchSlice], Iterator[Item]]:
        return _noting(self._spans, self._reader.stream, self._reader.partition, unfold)


def _noting(
    spans: ClientSpans, stream: str, partition: int, unfold: Callable[[BatchSlice], Iterator[Item]]
) -> Callable[[BatchSlice], Iterator[Item]]:
    def noted(piece: BatchSlice) -> Iterator[Item]:
        items = unfold(piece)
        if not spans.can_receive():
            headers = _headers_of(piece)
            if headers is not None and names_one(headers):
                spans.not_received()
            return items
        created = contexts_of(piece)
        if created:
            spans.received(stream, partition, created, piece.batch.arrived_ns, piece.first_offset, piece.record_count)
        return items

    return noted


def contexts_of(what: Record | BatchSlice) -> tuple[TraceContext, ...]:
    """Those that senders record, of a record, or of the first 64 records of a slice that bear one."""
    if isinstance(what, Record):
        own = created_in(what.headers)
        return () if own is None else (own,)
    headers = _headers_of(what)
    return () if headers is None else sampled_in(headers, what.first_index, what.end_index, MOST_READ_LINKS)


def _headers_of(piece: BatchSlice) -> HeadersColumn | None:
    if Columns.HEADERS not in Columns(piece.batch.header.column_bits):
        return None
    try:
        return piece.batch.columns.headers
    except CorruptionError:  # who reads its records is told
        return None


class TracedMaking(Making):
    """``provider``: of tracers; None: the global one."""

    def __init__(self, provider: TracerProvider | None) -> None:
        super().__init__()
        self._spans = spans = ClientSpans(provider, self.counters)
        self.publisher = partial(TracedPublisher, spans)
        self.producer = partial(TracedProducer, spans)
        self.reader = TracedReader
        self.consumer = partial(TracedConsumer, spans)

    def handing_on(self, stream: str, partition: int) -> Callable[[BatchSlice], Iterator[BatchSlice]]:
        """What hands on the slices of a range, and tells of them."""
        return _noting(self._spans, stream, partition, whole)

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Span | None]:
        """A span around what is done with it."""
        offset, count = (what.offset, 1) if isinstance(what, Record) else (what.first_offset, what.record_count)
        return self._spans.process(stream, partition, contexts_of(what), offset, count)
