"""Reads one planned range over the process's connection: a few requests in flight, each batch sent once.

The reader requests the range in parts of about a megabyte. The nodes send a batch with the part in which it ends, so the
borders of the parts do not matter. The reader checks the parts in order. If records of a part are missing (the answer was full,
empty or late), it fetches them with ``retrying_fetch.fetch_part`` before it checks the next part. The records are therefore
always those of ``retrying_fetch``, checked in the same way [R5]. Compacted streams use ``retrying_fetch`` only.
"""

from __future__ import annotations

import concurrent.futures
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from liftpy.client.batch_view import BatchSlice
from liftpy.client.progress import ReadProgress
from liftpy.core.wire import frames
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, parse_header
from liftpy.errors import LiftError
from liftpy.nats.blocking_connection import Answer, BlockingConnection
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import Link
from liftpy.spark.retrying_fetch import (
    IN_FLIGHT,
    SPAN_BYTES,
    FetchRules,
    SpanGuess,
    check_pieces,
    fetch_part,
    fetch_range,
    first_choice,
)

ANSWER_S = 3.0
"""Maximum time of an answer after the one before it, in seconds. Then the client with retries requests it."""
_FULL = 7 / 8
"""Part of an answer that is planned for: records differ in size."""
_PAYLOAD_RESERVE_BYTES = 4096
_ID_BITS = 63
_MAX_GUESSES = 256
_guesses: OrderedDict[tuple[str, int, int], SpanGuess] = OrderedDict()
"""(stream uid, partition, columns left out) -> what the last task of this process learned: a micro-batch begins with it."""
_lock = threading.Lock()


def read_range(link: Link, planned: PlannedRange, rules: FetchRules) -> Generator[list[BatchSlice], None, None]:
    """Read a range as ``fetching.fetch_range`` does, over the blocking connection if possible."""
    line = None if planned.compacted else link.line()
    if line is None:
        yield from fetch_range(link, planned, rules)
        return
    course = _LinedRange(link, line, planned, rules)
    try:
        yield from course.pieces()
    finally:
        course.leave()
    if course.position < planned.end_offset:  # batches larger than an answer
        _guesses.pop(_key_of(planned, rules), None)
        yield from fetch_range(link, replace(planned, start_offset=course.position), rules)


@dataclass(frozen=True, slots=True)
class _LinedPart:
    """Part of a range: batches that end in (``start``, ``end``], and at the end of the range the next one."""

    start: int
    end: int
    request_id: int
    answer: Answer


class _LinedRange:
    """Progress through one range. ``position``: first undelivered offset."""

    def __init__(self, link: Link, line: BlockingConnection, planned: PlannedRange, rules: FetchRules) -> None:
        self._link = link
        self._line = line
        self._planned = planned
        self._rules = rules
        self._guess = _guess_of(planned, rules)
        self._node = first_choice(planned, rules)
        self._epoch = planned.start_epoch
        self._asked_to = self.position = planned.start_offset
        self._flying: deque[_LinedPart] = deque()
        self._max_bytes = min(SPAN_BYTES, line.max_payload_bytes - _PAYLOAD_RESERVE_BYTES)
        self._timeout_s = min(ANSWER_S, rules.patience_s)

    def leave(self) -> None:
        """Cancel requests in flight."""
        self._line.forget([asked.answer for asked in self._flying])
        self._flying.clear()

    def pieces(self) -> Iterator[list[BatchSlice]]:
        """Lists of checked slices, in order; ends before the range does where its batches are larger than an answer."""
        while self.position < self._planned.end_offset and not self._is_too_large:
            self._ask_ahead()
            asked = self._flying.popleft()
            if asked.end <= self.position:  # one batch reached past all of it
                self._line.forget([asked.answer])
                continue
            answer = self._answered(asked)
            base = None if answer is None else _first_base(answer)
            if base is not None and base > self.position:
                yield self._surely(base)  # the answer before this one was full
            before = self.position
            if answer is not None:
                yield self._accepted(asked, answer)
            if self.position == before:
                yield self._surely(min(asked.end, before + self._guess.span_records()))
                self.leave()  # it is likely that the others bring nothing, too
            if not self._flying:
                self._asked_to = self.position

    @property
    def _is_too_large(self) -> bool:
        return self._guess.bytes_per_record * self._guess.batch_records > self._max_bytes

    def _ask_ahead(self) -> None:
        """Request parts until enough are in flight, only one while their size is unknown."""
        end, known = self._planned.end_offset, bool(self._guess.bytes_per_record)
        while len(self._flying) < (IN_FLIGHT if known else 1) and self._asked_to < end:
            to = min(self._asked_to + self._guess.span_records(self._max_bytes * _FULL), end) if known else end
            self._flying.append(self._ask(self._asked_to, to))
            self._asked_to = to

    def _ask(self, start: int, end: int) -> _LinedPart:
        planned, request_id = self._planned, secrets.randbits(_ID_BITS)
        request = self._progress(start).request(self._max_bytes, 0, request_id)
        if end < planned.end_offset:  # else the batch that reaches past the end of the range is wanted as well
            request.endOffset = end
        subjects = self._link.subjects
        if self._node:
            subject = subjects.read_from(planned.stream, planned.partition, self._node)
        else:
            subject = subjects.read(planned.stream, planned.partition)
        return _LinedPart(start, end, request_id, self._line.ask(subject, frames.sealed(request)))

    def _progress(self, start: int) -> ReadProgress:
        planned = self._planned
        return ReadProgress(
            planned.stream,
            planned.partition,
            start,
            planned.end_offset,
            uid=planned.uid,
            floor_high_watermark=planned.end_offset - 1,
            left_out=self._rules.left_out,
        )

    def _answered(self, asked: _LinedPart) -> memoryview | None:
        """Return the answer, None without one."""
        try:
            return asked.answer.result(self._timeout_s)
        except (LiftError, concurrent.futures.TimeoutError):
            self._line.forget([asked.answer])
            return None

    def _accepted(self, asked: _LinedPart, answer: memoryview) -> list[BatchSlice]:
        """Return the slices of an answer from ``position`` on, [] if it is unusable."""
        progress = self._progress(self.position)
        progress.expect(asked.request_id)
        try:
            found = progress.accept(answer)
        except LiftError:  # whatever it is, the sure way says it if it lasts
            return []
        self._guess.learn(found, progress.looked_bytes)
        self._node = progress.node
        return self._checked(found, progress.next_offset)

    def _surely(self, end: int) -> list[BatchSlice]:
        """Return the slices from ``position`` to ``end``, or raise an error."""
        end = min(end, self._planned.end_offset)
        found, self._node = fetch_part(self._link, self._planned, self._rules, self.position, end, self._node)
        self._guess.learn(found)
        return self._checked(found, end)

    def _checked(self, found: list[BatchSlice], next_offset: int) -> list[BatchSlice]:
        self._epoch = check_pieces(self._planned, found, self._epoch)
        self.position = next_offset
        return found


def _first_base(answer: memoryview) -> int | None:
    """Base offset of an answer's first batch; None where it has none, or is no answer."""
    try:
        head, body = frames.decode_read_response(answer)
        return None if head.pieceTotal or len(body) < HEADER_SIZE_BYTES else parse_header(body).base_offset
    except LiftError:
        return None


def _key_of(planned: PlannedRange, rules: FetchRules) -> tuple[str, int, int]:
    return planned.uid, planned.partition, rules.left_out


def _guess_of(planned: PlannedRange, rules: FetchRules) -> SpanGuess:
    key = _key_of(planned, rules)
    with _lock:
        guess = _guesses.setdefault(key, SpanGuess())
        _guesses.move_to_end(key)
        while len(_guesses) > _MAX_GUESSES:
            _guesses.popitem(last=False)
    return guess
