"""JetStream's stateless read API over the reads of our own client: committed records, nothing else, no state between two requests.

Goal: `nats stream ls|info|get`, and readers by direct get of any JetStream client, work unchanged. Constraint: a record that was
acknowledged is there for whoever asks afterwards, so where the end is the leader is asked. Algorithm: a sequence is an offset + 1;
"the last of a subject" is a backward read with a filter, "the next" a forward one. A node looks at about 1 MiB of its log for each
question of such a read, so a search that finds nothing in a long log is given up after ``PATIENCE_S``, and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import field
from typing import Any

from liftpy.client.client import Client
from liftpy.client.consumer import ReadOptions
from liftpy.client.js_answers import (
    LIST_PAGE,
    NAMES_PAGE,
    JsAnswer,
    JsPlace,
    account,
    described,
    direct,
    message,
    name_of,
    page,
    places,
    refused,
    status,
    stream_info,
)
from liftpy.client.js_requests import JsQuestion, JsRefusal, Kind, kind_of, not_found, overlap, parse_question
from liftpy.client.positions import Bounds
from liftpy.cluster.image import StreamImage
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError, NotFoundError, OffsetOutOfRangeError
from liftpy.wire.batch import Record
from liftpy.wire.subjects import data_subject

PATIENCE_S = 4.0
"""For an answer: clients wait for 5 s by default."""
MAX_BYTES = 8 * 1024 * 1024
"""Of the records of one answer, at most; the next request goes on."""
_OPTIONS = ReadOptions(max_bytes=128 * 1024, wait_s=0, answer_timeout_s=2.0, patience_s=PATIENCE_S, read_ahead=1)
_NO_MESSAGE = JsRefusal(404, 10037, "no message found")


class _Ends(Exception):
    """Instead of an answer: ``refusal``."""

    def __init__(self, refusal: JsRefusal) -> None:
        self.refusal = refusal


@dataclass
class StatelessReads:
    """Answers requests. ``domain``: by which they are addressed; ``wall_ns``: the wall clock."""

    client: Client
    domain: str
    wall_ns: Callable[[], int] = field(default=time.time_ns)

    async def answer(self, rest: str, body: bytes) -> AsyncGenerator[JsAnswer, None]:
        """The messages that answer a request on ``$JS.<domain>.API.<rest>``; at least one."""
        kind = kind_of(rest)[0]
        try:
            question = parse_question(rest, body)
            async with asyncio.timeout(PATIENCE_S):
                async for part in self._answers(question):
                    yield part
        except JsRefusal as refusal:
            yield refused(kind, refusal)
        except _Ends as end:
            yield refused(kind, end.refusal)
        except NotFoundError:
            yield refused(kind, not_found(kind))
        except OffsetOutOfRangeError:  # retention was faster
            yield refused(kind, _missing(kind))
        except TimeoutError:
            yield refused(kind, _late(kind, f"not found within {PATIENCE_S:g} s: say where to begin, or read with a consumer"))
        except LiftError as error:
            yield refused(kind, _late(kind, str(error)[:200]))

    async def _answers(self, question: JsQuestion) -> AsyncIterator[JsAnswer]:
        match question.kind:
            case Kind.INFO:
                yield account(self.domain, len(await self._places()))
            case Kind.CONSUMER_NAMES | Kind.CONSUMER_LIST:
                await self._stream(question)
                yield page(question.kind, question, 0, [])
            case Kind.NAMES | Kind.LIST:
                yield await self._list(question)
            case Kind.STREAM:
                yield stream_info(await self._place(*await self._stream(question)), self.wall_ns())
            case _:
                async for part in self._records(question):
                    yield part

    # ---- streams -----------------------------------------------------------------------------------------------------
    async def _places(self) -> list[tuple[StreamImage, int]]:
        return places(await self.client.list_streams())

    async def _stream(self, question: JsQuestion) -> tuple[StreamImage, int]:
        stream = await self.client.stream(question.stream)
        if question.partition >= len(stream.partitions):
            raise _Ends(not_found(question.kind))
        return stream, question.partition

    async def _list(self, question: JsQuestion) -> JsAnswer:
        found = [
            (stream, partition)
            for stream, partition in await self._places()
            if not question.subject or overlap(data_subject(stream.subject, partition), question.subject)
        ]
        begin = question.page_offset
        if question.kind is Kind.NAMES:
            names = [name_of(stream.name, partition) for stream, partition in found[begin : begin + NAMES_PAGE]]
            return page(question.kind, question, len(found), names)
        asked = (self._place(stream, partition) for stream, partition in found[begin : begin + LIST_PAGE])
        now_ns = self.wall_ns()
        return page(question.kind, question, len(found), [described(place, now_ns) for place in await asyncio.gather(*asked)])

    async def _place(self, stream: StreamImage, partition: int) -> JsPlace:
        bounds = await self.client.bounds(stream.name, partition, options=_OPTIONS)
        first = last = None
        if bounds.high_watermark >= bounds.log_start_offset:
            first = await self._first(self._forwards(stream.name, partition, bounds, bounds.log_start_offset, ()))
            last = await self._first(self._backwards(stream.name, partition, bounds, bounds.high_watermark, ()))
        times = (None if record is None else record.timestamp_ns for record in (first, last))
        return JsPlace(stream, partition, bounds, *times)

    # ---- records -----------------------------------------------------------------------------------------------------
    def _forwards(
        self, stream: str, partition: int, bounds: Bounds, start: int, subjects: tuple[str, ...]
    ) -> AsyncIterator[Record]:
        begin = max(start, bounds.log_start_offset)
        if begin > bounds.high_watermark:
            return _none()
        until = bounds.high_watermark
        return aiter(self.client.consume(stream, partition, start=begin, until=until, subjects=subjects, options=_OPTIONS))

    def _backwards(
        self, stream: str, partition: int, bounds: Bounds, newest: int, subjects: tuple[str, ...]
    ) -> AsyncIterator[Record]:
        if newest < bounds.log_start_offset:
            return _none()
        made = self.client.consume(
            stream, partition, start=newest, until=0, subjects=subjects, backwards=True, options=_OPTIONS
        )
        return aiter(made)

    @staticmethod
    async def _first(records: AsyncIterator[Record]) -> Record | None:
        try:
            async for record in records:
                return record
        except OffsetOutOfRangeError:
            pass  # retention was faster
        finally:
            await _close(records)
        return None

    async def _records(self, question: JsQuestion) -> AsyncIterator[JsAnswer]:
        stream, partition = await self._stream(question)
        name, subject = name_of(stream.name, partition), data_subject(stream.subject, partition)
        bounds = await self.client.bounds(stream.name, partition, options=_OPTIONS)
        if question.multi:
            parts = self._newest_of_each(question, bounds, name, subject)
        elif question.batch:
            parts = self._batch(question, bounds, name, subject)
        else:
            parts = self._one(question, bounds, name, subject)
        async for part in parts:
            yield part

    async def _one(self, question: JsQuestion, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        stream, partition, wanted = question.stream, question.partition, question.subjects
        if question.last:
            found = await self._first(self._backwards(stream, partition, bounds, bounds.high_watermark, wanted))
        else:
            start = await self._start(question)
            if start < bounds.log_start_offset and not wanted and question.start_ns is None:
                raise _Ends(_missing(question.kind))
            found = await self._first(self._forwards(stream, partition, bounds, start, wanted))
            if found is not None and not wanted and question.start_ns is None and found.offset != start:
                found = None  # compaction has dropped it
        if found is None:
            raise _Ends(_missing(question.kind))
        yield direct(name, found, subject) if question.kind is Kind.DIRECT else message(found, subject)

    async def _start(self, question: JsQuestion) -> int:
        """Offset of the first record that may be given."""
        if question.start_ns is None:
            return question.sequence - 1
        return await self.client.offset_at(question.stream, question.partition, question.start_ns, options=_OPTIONS)

    async def _batch(self, question: JsQuestion, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        """``Nats-Num-Pending`` is exact without a filter and without compaction; else how many there may be at most."""
        start, most_bytes = await self._start(question), min(question.max_bytes or MAX_BYTES, MAX_BYTES)
        records = self._forwards(question.stream, question.partition, bounds, start, question.subjects)
        count = size_bytes = last = pending = 0
        try:
            async for record in records:
                pending = bounds.high_watermark - record.offset
                numbers = ("Nats-Num-Pending", pending), ("Nats-Last-Sequence", last)
                yield direct(name, record, subject, numbers)
                count, last, size_bytes = count + 1, record.offset + 1, size_bytes + len(record.value or b"")
                if count >= question.batch or size_bytes >= most_bytes:
                    break
            else:
                pending = 0
        finally:
            await _close(records)
        if not count:
            raise _Ends(_missing(question.kind))
        yield status(204, "EOB", ("Nats-Num-Pending", pending), ("Nats-Last-Sequence", last))

    async def _newest_of_each(self, question: JsQuestion, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        """Of every subject that fits, in the order of the log, as of ``up_to``. The whole log is looked through, unless the subjects
        that are named have been found before."""
        newest = await self._up_to(question, bounds)
        literal = {one for one in question.subjects if "*" not in one and ">" not in one}
        sought = literal if len(literal) == len(question.subjects) else None
        found: dict[str, Record] = {}
        size_bytes = 0
        records = self._backwards(question.stream, question.partition, bounds, newest, question.subjects)
        try:
            async for record in records:
                if record.subject not in found:
                    found[record.subject] = record
                    size_bytes += len(record.value or b"")
                    if size_bytes > MAX_BYTES:
                        raise _Ends(JsRefusal(413, 0, "Too Many Results"))
                    if found.keys() == sought:
                        break
        finally:
            await _close(records)
        chosen = sorted(found.values(), key=lambda record: record.offset)
        if not chosen:
            raise _Ends(_missing(question.kind))
        limit = question.batch or len(chosen)
        last = 0
        for place, record in enumerate(chosen[:limit]):
            numbers = ("Nats-Num-Pending", len(chosen) - 1 - place), ("Nats-Last-Sequence", last)
            yield direct(name, record, subject, numbers)
            last = record.offset + 1
        rest = ("Nats-Num-Pending", len(chosen) - len(chosen[:limit])), ("Nats-Last-Sequence", last)
        yield status(204, "EOB", *rest, ("Nats-UpTo-Sequence", newest + 1))

    async def _up_to(self, question: JsQuestion, bounds: Bounds) -> int:
        """Offset of the newest record that may be given, inclusive."""
        newest = bounds.high_watermark
        if question.up_to_ns is not None:
            after = await self.client.offset_at(question.stream, question.partition, question.up_to_ns, options=_OPTIONS)
            return min(newest, after - 1)
        return min(newest, question.up_to - 1) if question.up_to else newest


def _missing(kind: Kind) -> JsRefusal:
    return JsRefusal(404, 0, "Message Not Found") if kind is Kind.DIRECT else _NO_MESSAGE


def _late(kind: Kind, text: str) -> JsRefusal:
    return JsRefusal(408, 0, "Request Timeout") if kind is Kind.DIRECT else JsRefusal(503, 10008, f"unavailable: {text}")


async def _none() -> AsyncIterator[Record]:
    nothing: tuple[Record, ...] = ()
    for record in nothing:
        yield record


async def _close(records: Any) -> None:
    """What it has asked for in advance goes with it."""
    if close := getattr(records, "aclose", None):
        await close()
