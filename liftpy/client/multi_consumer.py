"""``ManyConsumer``: reads many partitions, of one or several streams, as one.

Each partition has its own Consumer, so its order and its checks are the same as for one partition. There is no order
between partitions. The memory for read-ahead is limited over all partitions. New streams that match a pattern, and new
partitions, join from their first record. A deleted stream leaves, if a pattern selected it. Every other error of one
partition ends the whole read.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain

from liftpy.client.arguments import checked_options
from liftpy.client.batch_view import BatchSlice, ConsumedBatch, ConsumedRecord, records_of
from liftpy.client.consumer import Consumer, ReadOptions
from liftpy.client.fetcher import Fetcher, wait_for_event
from liftpy.client.iteration import Iteration, ResultIterator, end_later
from liftpy.client.positions import Position, Start, Until, checked_until, resolve_start
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.base.ids import check_name, is_internal, quote
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.filters import NOTHING_LEFT_OUT, Filter
from liftpy.errors import ConfigError, NotFoundError, OutcomeUnknownError, UnavailableError
from liftpy.nats.cancellation import end_tasks

logger = logging.getLogger("liftpy.client")

MAX_PARTITIONS = 4096
AHEAD_BYTES = 64 * 1024 * 1024
"""Maximum read-ahead over all partitions, in bytes as sent. Each partition has at least ``LEAST_BYTES``."""
LEAST_BYTES = 64 * 1024
CHECK_EVERY_S = 5.0
"""Interval of the search for new streams and partitions, in seconds."""
_IDLE_S = 0.1
_WILD = frozenset("*?[")

Place = tuple[str, int]
"""A partition, as (stream name, partition number)."""


def bounded_ahead(options: ReadOptions, ahead_bytes: int) -> ReadOptions:
    """Return a copy of ``options`` whose read-ahead is at most ``ahead_bytes`` bytes.

    The number of answers is reduced first, and then their size.
    """
    depth = max(min(options.read_ahead, ahead_bytes // options.max_bytes), 1)
    return replace(options, read_ahead=depth, max_bytes=max(min(options.max_bytes, ahead_bytes // depth), 4096))


def selects(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a stream name matches one of ``names``, which may be patterns.

    A pattern matches an internal stream only if the pattern itself begins with ``_``. Raises ConfigError or InvalidNameError for a
    name that is not valid.
    """
    wanted = tuple(names)
    for name in wanted:
        if not isinstance(name, str):
            raise ConfigError(
                f"Invalid stream name of type {type(name).__name__}. Give each name as an argument of its own, such as "
                "consume_many('orders', 'pay-*')."
            )
    if not wanted:
        raise ConfigError("Name at least one stream or pattern to read, such as orders-*.")
    exact = {check_name(name, "stream") for name in wanted if not _WILD & set(name)}
    patterns = [name for name in wanted if _WILD & set(name)]
    internal = [name for name in patterns if is_internal(name)]
    return lambda stream: (
        stream in exact or any(fnmatchcase(stream, pattern) for pattern in (internal if is_internal(stream) else patterns))
    )


def positions_from(text: str) -> dict[Place, Position]:
    """Read the positions that ``ManyConsumer.positions_text`` returned.

    Args:
        text: The text.

    Returns:
        The positions by (stream, partition), for ``client.consume_many(positions=...)``.

    Raises:
        ConfigError: The text has another form.

    Example:
        positions = positions_from(text)
        many = client.consume_many("orders", positions=positions)
    """
    try:
        positions = {
            (str(stream), int(number)): Position.parse(at)
            for stream, own in load_json(text).items()
            for number, at in own.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"Invalid positions {quote(text)}. Pass the text of positions that a consumer returned.") from None
    return positions


class ManyConsumer:
    """Reads many partitions as one. Iterate over it for records, or over ``batches()``.

    Create it with ``client.consume_many`` and use it with ``async with``. Only one task may read at a time. If you drop
    the consumer without closing it, its reading ends by itself.

    Example:
        async with client.consume_many("orders", "pay-*", until="end") as many:
            async for record in many:
                print(record.stream, record.partition, record.value)
    """

    def __init__(
        self,
        streams: StreamDirectory,
        names: Iterable[str],
        start: Start,
        until: Until,
        positions: Mapping[Place, Position] | None,
        *,
        wanted: Filter = NOTHING_LEFT_OUT,
        options: ReadOptions | None = None,
    ) -> None:
        self._fetcher: Fetcher[Place] = Fetcher()
        self._streams = streams
        self._names = tuple(names)
        self._selects = selects(self._names)
        self._exact = frozenset(name for name in self._names if not _WILD & set(name))
        self._start = resolve_start(start, datetime.now(UTC))
        self._until = checked_until(until)
        self._wanted = wanted
        self._options = checked_options(options, ReadOptions)
        self._positions = dict(positions or {})
        self._readers: dict[Place, Consumer] = {}
        self._iterations: dict[Place, Iteration[BatchSlice]] = {}
        self._missing: dict[Place, Position] = {}
        """Positions of partitions that a node reported as deleted. The next list of the newest streams confirms the deletion.

        If the stream is still there, its partition resumes at this position.
        """
        self._has_read = False
        """True if a partition was read, also if all of them have left."""
        self._paused: set[Place] = set()
        self._next_check_s = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        """Task that lists the partitions. It continues if its caller is canceled: calls with a short timeout must not stop it."""
        self._has_started = False
        """True if the partitions at the start of the read were listed, and their starts are resolved."""
        self._waiting = False
        self._closes = 0
        self._returned_ends: dict[Place, tuple[int, int]] = {}
        """Partition -> offset after the last slice that ``next`` returned, and the LeaderEpoch of its last record.

        Before the first slice, it is the stored position at which the read has started, if there is one.
        """
        self._rest: Iterator[ConsumedRecord] = iter(())
        """Remaining records of the slice that is delivered record by record. An interrupted iteration loses none of them."""
        self._last: ConsumedRecord | None = None
        """Last delivered record of ``_current``. None: all of its records were delivered."""
        self._current: ConsumedBatch | None = None
        """Slice that is delivered record by record."""
        self._unread: ConsumedBatch | None = None
        """Slice whose records cannot be decoded. It is returned again, so that no later record is delivered before it."""

    async def __aenter__(self) -> ManyConsumer:
        try:
            await self._refresh_partitions()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading all partitions. A task that waits for records gets the end of the iteration."""
        self._closes += 1
        self._fetcher.news.set()
        refreshing, self._refreshing = self._refreshing, None
        await end_tasks([*self._fetcher.stop(), refreshing])
        iterations = list(self._iterations.values())
        self._iterations.clear()
        await asyncio.gather(*(iteration.aclose() for iteration in iterations))

    def __del__(self) -> None:
        for task in self._fetcher.stop():
            end_later(task)

    # ---- what is read --------------------------------------------------------------------------------------------------
    @property
    def places(self) -> list[Place]:
        """The partitions that are read, as (stream, partition), sorted."""
        return sorted(self._readers)

    def pause(self, *places: Place) -> None:
        """Stop returning records of some partitions until ``resume``. Fetched records wait.

        Args:
            *places: Partitions as (stream, partition).
        """
        self._paused.update(places)

    def resume(self, *places: Place) -> None:
        """Return records of paused partitions again.

        Args:
            *places: Partitions as (stream, partition).
        """
        self._paused.difference_update(places)
        self._fetcher.news.set()

    async def _refresh_partitions(self) -> None:
        """List the partitions and start to read the new ones. Do nothing if the last call was less than ``CHECK_EVERY_S`` ago.

        If the metadata group does not answer soon, the known partitions are read without it.
        """
        now = asyncio.get_running_loop().time()
        if self._refreshing is None and now < self._next_check_s:
            return
        refreshing = self._refreshing
        if refreshing is None:
            refreshing = self._refreshing = asyncio.create_task(self._list_partitions(now), name="partitions of a consumer")
            refreshing.add_done_callback(lambda done: done.cancelled() or done.exception())
            refreshing.add_done_callback(lambda _: self._fetcher.news.set())
        elif self._has_started and not refreshing.done():
            return
        closes = self._closes
        await asyncio.wait({refreshing}, timeout=_IDLE_S if self._has_started else None)
        if not refreshing.done():
            return
        if self._refreshing is refreshing:
            self._refreshing = None
        if self._closes != closes:
            return  # ``aclose`` has canceled it
        try:
            refreshing.result()
        except (UnavailableError, OutcomeUnknownError):
            if not self._has_started:
                raise
            self._next_check_s = now + CHECK_EVERY_S

    async def _list_partitions(self, now: float) -> None:
        first = not self._has_started  # also True if an earlier call has failed or was canceled
        unconfirmed = set(self._missing)
        uids = {
            (stream.name, p.partition): stream.uid
            for stream in await self._list_streams(newest=first or bool(unconfirmed))
            if self._selects(stream.name)
            for p in stream.partitions
        }
        if first and (lacking := sorted(self._exact - {stream for stream, _ in uids})):
            raise NotFoundError(f"No stream matches {', '.join(lacking)}. Check the names with `liftpy stream list`.")
        # a partition that went missing during the wait needs a newer list
        new = [
            place for place in sorted(uids) if place not in self._readers and place not in self._missing.keys() - unconfirmed
        ]
        if len(self._readers) + len(new) > MAX_PARTITIONS:
            raise ConfigError(
                f"Too many partitions for one consumer: {len(self._readers) + len(new)}, the maximum is "
                f"{MAX_PARTITIONS}. Divide them between several consumers."
            )
        ahead = max(AHEAD_BYTES // max(len(self._readers) + len(new), 1), LEAST_BYTES)
        starts = {place: self._start_of(place, uids[place], self._start if first else "earliest") for place in new}
        for place in unconfirmed:
            self._missing.pop(place, None)
        for place, start in starts.items():
            if isinstance(start, Position):
                self._returned_ends[place] = (start.offset, start.leader_epoch)
            self._readers[place] = self._streams.consume(
                *place, start, self._until, wanted=self._wanted, options=bounded_ahead(self._options, ahead)
            )
        for place in new:  # without a reference to this consumer, so that it can be dropped
            self._fetcher.add(place, partial(_next_slice, self._iterations, place, self._readers[place]))
        # resolve the start "new" now, not at the first read
        begun = await asyncio.gather(*(self._readers[place].begin() for place in new), return_exceptions=True)
        for place, result in zip(new, begun, strict=True):
            if isinstance(result, NotFoundError) and place[0] not in self._exact:  # it was deleted after it was listed
                start = starts[place]
                self._stop(place, start if isinstance(start, Position) else None)
            elif isinstance(result, BaseException):
                raise result
        self._has_started, self._next_check_s = True, now + CHECK_EVERY_S
        self._has_read = self._has_read or bool(self._readers)

    def _start_of(self, place: Place, uid: str, otherwise: Start) -> Start:
        """Return where to start in a partition: its position from before, or else ``otherwise``. ``uid``: uid of its stream.

        A position of a deleted stream does not apply to a stream that was created with the same name: a pattern reads it from its
        first record. For a stream that was named, the position stays, and the read raises NotFoundError.
        """
        position = self._missing.get(place) or self._positions.get(place)
        if position is None:
            return otherwise
        return position if position.uid == uid or place[0] in self._exact else "earliest"

    def _stop(self, place: Place, position: Position | None) -> None:
        """Stop reading a partition that a node reported as deleted. ``position``: where to resume if it is still there."""
        self._readers.pop(place, None)
        self._iterations.pop(place, None)
        self._returned_ends.pop(place, None)
        self._fetcher.remove(place)
        if position is not None:
            self._missing[place] = position

    async def _take(self, place: Place) -> BatchSlice | None:
        """Return the next slice of a partition. None: it has reached ``until``, or its stream was deleted and a pattern selected it."""
        try:
            return self._fetcher.take(place)
        except NotFoundError as error:
            if place[0] in self._exact:
                raise
            logger.info("%s/%d: %s The consumer continues with its other partitions.", *place, error)
            reader = self._readers[place]
            self._stop(place, await reader.position() if reader.bounds is not None else None)
            return None

    async def _list_streams(self, *, newest: bool) -> Sequence[StreamImage]:
        """Return all streams. ``newest``: as they are now. Otherwise the list may be old."""
        if newest:  # a partition that is missing at the start of the read would begin at its first record, not at ``start``
            return await self._streams.newest_streams()
        return await self._streams.list_streams()

    # ---- reading -----------------------------------------------------------------------------------------------------
    def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over slices of batches. This is much faster than iterating over single records.

        Returns:
            An asynchronous iterator of ConsumedBatch. It ends when ``until`` is reached in all partitions.
        """
        return ResultIterator(self.next)

    async def next(self) -> ConsumedBatch | None:
        """Return the next slice, from the partition that waited longest.

        If the call is cancelled, it has taken nothing.

        Returns:
            The slice. None when ``until`` is reached in all partitions.

        Raises:
            ConfigError: Another task is reading.
            LiftError: Every error of reading one partition.
        """
        if self._waiting:
            raise ConfigError("This consumer is already read by another task. Create one consumer per task.")
        unread, self._unread = self._unread or self._rest_of_slice(), None
        if unread is not None:
            return unread
        self._waiting, closes = True, self._closes
        try:
            while True:
                self._fetcher.news.clear()
                await self._refresh_partitions()
                if self._closes != closes:
                    return None
                self._fetcher.start()
                place = next((place for place in self._fetcher.arrived if place not in self._paused), None)
                if place is not None:
                    piece = await self._take(place)
                    if piece is not None:
                        self._returned_ends[place] = (piece.last_offset + 1, piece.leader_epoch)
                        return ConsumedBatch(*place, piece)
                elif self._has_read and self._until is not None and not self._fetcher.partitions:
                    return None
                else:
                    await wait_for_event(self._fetcher.news, CHECK_EVERY_S)
                    if self._closes != closes:
                        return None
        finally:
            self._waiting = False

    def _rest_of_slice(self) -> ConsumedBatch | None:
        """Return those records of the current slice that were not delivered record by record. None: there are none."""
        current, last = self._current, self._last
        if current is None or last is None:
            return None
        self._rest, self._last = iter(()), None
        rest = BatchSlice.between(current.slice.batch, last.record.offset + 1, current.slice.last_offset + 1)
        return None if rest is None else ConsumedBatch(current.stream, current.partition, rest)

    def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        return ResultIterator(self.next_record)

    async def next_record(self) -> ConsumedRecord | None:
        """Return the next record of any partition. None when ``until`` is reached in all partitions."""
        while True:
            self._last = record = next(self._rest, None)
            if record is not None:
                return record
            batch = await self.next()
            if batch is None:
                return None
            self._begin_slice(batch)

    def _begin_slice(self, batch: ConsumedBatch) -> None:
        """Begin to return ``batch`` record by record. If its records cannot be decoded, ``next`` returns it again."""
        self._unread = batch
        rest = records_of(batch.stream, batch.partition, batch.slice)
        self._rest = rest
        self._current, self._last, self._unread = batch, None, None

    def _rewind(self) -> None:
        """Let ``next`` return the records again that follow the last delivered one, because their iterator was interrupted."""
        current = self._current
        self._unread = current if self._last is None else self._rest_of_slice()
        self._rest, self._last, self._current = iter(()), None, None

    def _remember(self) -> Callable[[ConsumedBatch | ConsumedRecord | None], None]:
        """Return a function that takes back what a later call has returned: the next call returns it again."""
        current, last = self._current, self._last

        def take_back(returned: ConsumedBatch | ConsumedRecord | None) -> None:
            if isinstance(returned, ConsumedBatch):
                self._unread = returned if self._current is not returned else None
            elif returned is not None and self._current is current:
                self._rest, self._last = chain([returned], self._rest), last
            elif returned is not None:  # it is the first record of its slice
                self._unread, self._current, self._rest, self._last = self._current, None, iter(()), None

        return take_back

    # ---- where it is -----------------------------------------------------------------------------------------------------
    async def positions(self) -> dict[Place, Position]:
        """Return the position of each partition, after the last record that was returned.

        Returns:
            The positions by (stream, partition), for ``client.consume_many(positions=...)``.
        """
        await self._refresh_partitions()
        positions = dict(self._missing)
        for place, reader in list(self._readers.items()):  # another task may find new partitions during a wait
            behind = await reader.position()
            ahead = self._fetcher.peek(place)
            if ahead is not None:  # the next slice is fetched, but not returned: the read continues before it
                behind = Position(behind.uid, *self._returned_ends.get(place, (ahead.first_offset, 0)))
            positions[place] = behind
        if self._unread is not None:
            place, first = (self._unread.stream, self._unread.partition), self._unread.slice.first_offset
            positions[place] = Position(positions[place].uid, first, 0)
        if self._last is not None:
            stream, partition, record = self._last
            place = (stream, partition)
            positions[place] = Position(positions[place].uid, record.offset + 1, record.leader_epoch)
        return positions

    async def positions_text(self) -> str:
        """Return the positions as a text to store. ``positions_from`` reads it."""
        by_stream: dict[str, dict[str, str]] = {}
        for (stream, partition), position in sorted((await self.positions()).items()):
            by_stream.setdefault(stream, {})[str(partition)] = str(position)
        return json.dumps(by_stream)

    async def lag(self) -> dict[Place, int]:
        """Return the number of committed offsets after the position, for each (stream, partition)."""
        await self._refresh_partitions()
        readers = dict(self._readers)  # another task may find new partitions during the wait
        ends = await asyncio.gather(*map(_end_offset, readers.values()), return_exceptions=True)
        positions = await self.positions()
        lags = {}
        for place, end in zip(readers, ends, strict=True):
            if isinstance(end, int):
                lags[place] = max(end - positions[place].offset, 0)
            elif not isinstance(end, NotFoundError) or place[0] in self._exact:
                raise end
        return lags


async def _end_offset(reader: Consumer) -> int:
    """Return the end of the committed records. A reader may have fetched a slice that was not returned, and its lag is shorter."""
    return await reader.lag() + (await reader.position()).offset


async def _next_slice(iterations: dict[Place, Iteration[BatchSlice]], place: Place, reader: Consumer) -> BatchSlice | None:
    """Return the next slice of ``reader``, from its iteration in ``iterations``. Begin an iteration if there is none."""
    iteration = iterations.get(place)
    if iteration is None:
        iteration = iterations[place] = reader.batches()
    return await anext(iteration, None)
