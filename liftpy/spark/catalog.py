"""``Catalog``: partitions of the requested streams and their bounds, for the Spark driver.

The metadata group names partitions and replicas. Only leaders return bounds, so ``latest`` contains everything that was
acked before the query was planned. The catalog caches answers for ``BOUNDS_AGE_S``, because Spark asks about an idle
stream 80 times a second.

A streaming query uses a ``BoundsWatch``. For each partition, one request waits at the leader until more is committed
(``PartitionReader.bounds``). The watch then sends the next request. So the driver knows new records at once, and an
idle partition costs one request in ``WAIT_S``. A leader that cannot let the request wait answers at once. The
watch asks it every ``POLL_S``.

An error, another uid or another leadership ends the watch. The catalog then asks the leaders itself. No election
happens during a watch, so none can lose a reported record. A deposed leader may still answer for ``WAIT_S`` and the
time of an answer. Its offsets are too low, never too high, and readers check the LeaderEpoch of each record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.positions import Bounds
from liftpy.client.progress import RangeFacts
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import StreamImage
from liftpy.errors import LiftError, LogTruncatedError, NoClusterError, NotFoundError, OffsetOutOfRangeError, UnavailableError
from liftpy.nats.transport import NoRespondersError
from liftpy.spark.offsets import OffsetSpec, StreamOffsets
from liftpy.spark.options import Selection, SourceOptions
from liftpy.spark.planning import PartitionView, RangeRequest, Views
from liftpy.spark.process_connection import ProcessConnection

_logger = logging.getLogger(__name__)
WAIT_S = 1.0
"""Maximum time that a leader may wait with its answer, in seconds."""
POLL_S = 0.2
"""Pause after an answer that brought nothing new before ``WAIT_S`` was over, in seconds."""
PAUSE_S = 0.01
"""Pause after an answer with new records, in seconds. It limits the requests about a busy partition."""
PAUSE_EACH_S = 0.0002
"""Additional pause for each watched partition, in seconds. It limits the requests about many partitions."""
UNWANTED_S = 10.0
"""Time without a caller after which a watch ends, in seconds."""
RequestLeaderView = Callable[[PartitionView, float], Coroutine[None, None, PartitionView]]
"""Function of a view and a timeout in seconds. It returns the bounds when the committed end has moved, or after the timeout."""


class BoundsWatch:
    """Keeps the committed ends of the partitions of one streaming query up to date, in the background.

    ``ask``: sends a request to a leader that waits for new records. Call ``follow`` and ``end`` on the event loop. Any thread may call
    ``views``.
    """

    def __init__(self, ask: RequestLeaderView, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._views: dict[tuple[str, int], PartitionView] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted_s = 0.0
        self.ended = True
        """True if the watch has no views."""

    def views(self) -> Views | None:
        """Return the newest state of each partition. None: the watch has ended."""
        self._wanted_s = self._clock()
        return None if self.ended else dict(self._views)

    def follow(self, views: Mapping[tuple[str, int], PartitionView]) -> None:
        """Watch the partitions in ``views``, which is their current state, instead of the earlier ones."""
        self.end()
        if not views:
            return
        self._views, self._wanted_s = dict(views), self._clock()
        self.ended = False
        pause_s = max(PAUSE_S, PAUSE_EACH_S * len(views))
        for view in views.values():
            task = asyncio.create_task(self._watch(view, pause_s), name=f"watch {view.stream}/{view.partition}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        self.ended = True
        for task in self._tasks:
            task.cancel()

    async def _watch(self, view: PartitionView, pause_s: float) -> None:
        try:
            while self._clock() - self._wanted_s < UNWANTED_S:
                start_s = self._clock()
                now = await self._ask(view, WAIT_S)
                if (now.uid, now.leader, now.leader_epoch) != (view.uid, view.leader, view.leader_epoch):
                    break
                waited = now.end_offset > view.end_offset or self._clock() - start_s >= WAIT_S
                if now.end_offset >= view.end_offset:
                    self._views[view.key] = view = now
                await asyncio.sleep(pause_s if waited else POLL_S)
        except LiftError:
            pass  # the catalog asks the leaders next, and raises the error if it lasts
        except Exception as error:
            _logger.warning("the watch of %s/%s has ended: %r; asking its leader", view.stream, view.partition, error)
        self.end()


BOUNDS_AGE_S = 0.2
"""Maximum age of bounds when Spark polls for new data, in seconds."""
STREAMS_AGE_S = 5.0
"""Maximum age of the list of partitions and replicas, in seconds. A changed stream is listed again at once."""
_KNOWN_PATIENCE_S = 2.0
"""Time to look for leaders with the cached list of replicas, before the metadata group is asked again, in seconds."""
_NEWEST_S = 5.0
"""Time in seconds to wait for a majority of the controllers. Without one, the list of partitions may be old."""
_BEHIND_WAIT_S = 0.1
_MAX_CONFIRMATIONS = 4
_ANY = OffsetSpec()
_FROM_BOUNDS = (
    "uid", "leader", "leader_epoch", "log_start_offset", "end_offset", "compacted", "end_epoch", "deletes_end"
)  # fmt: skip
"""Fields that a PartitionView takes from the Bounds that a leader answered."""


def _behind(views: Views, ended: StreamOffsets) -> list[tuple[str, int]]:
    """Return the partitions whose high watermark is below the position ``ended`` and may still reach it.

    Partitions that have lost records, or whose stream was created again, do not reach it.
    """
    return [
        key
        for key, end in ended.next_offsets.items()
        if (view := views.get(key)) is not None
        and view.end_offset < end
        and view.cut_at is None
        and view.uid == ended.uids[key[0]]
    ]


@dataclass(frozen=True, slots=True)
class BoundsRequest:
    """Request to the leaders for the bounds of partitions.

    Attributes:
        starting: Start of the query. Leaders convert its times into offsets.
        ending: End of the query. Leaders convert its times into offsets.
        known: Positions of records that leaders compare with their logs.
    """

    starting: OffsetSpec = _ANY
    ending: OffsetSpec = _ANY
    known: tuple[StreamOffsets, ...] = ()

    def is_known_by(self, earlier: BoundsRequest) -> bool:
        """Return whether the answer to the request ``earlier`` compared all positions that this request has."""
        return all(one in earlier.known for one in self.known)

    def lasts(self, key: tuple[str, int], uid: str) -> list[tuple[int, int]]:
        """Return (offset, LeaderEpoch) of each record that the log of partition ``key`` must still have.

        The records were committed in the stream with this ``uid``.
        """
        known = (one.lasts[key] for one in self.known if one.uids.get(key[0], uid) == uid and key in one.lasts)
        return sorted(set(known), reverse=True)


class Catalog:
    """Returns the partitions of the requested streams and their bounds. Each reader on the driver has one.

    Args:
        link: Connections of this process.
        options: Options of the source.
        clock: Monotonic clock, in seconds.
        wait: Function that sleeps for a number of seconds.
        watches: True if a watch follows the committed ends between calls.
    """

    def __init__(
        self,
        link: ProcessConnection,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        *,
        watches: bool = False,
    ) -> None:
        self._link = link
        self._options = options
        self._clock = clock
        self._wait = wait
        self._streams: tuple[float, tuple[StreamImage, ...]] | None = None
        self._views: tuple[float, BoundsRequest, Views] | None = None
        self._watch = BoundsWatch(self._ask_again, clock) if watches else None
        self._confirmations: deque[StreamOffsets] = deque(maxlen=_MAX_CONFIRMATIONS)

    def views(
        self,
        *,
        max_age_s: float = 0.0,
        starting: OffsetSpec = _ANY,
        ending: OffsetSpec = _ANY,
        known: Sequence[StreamOffsets] = (),
        linearizable: bool = False,
    ) -> Views:
        """Return the state of all partitions.

        Args:
            max_age_s: Maximum age of the answer, in seconds. Default 0: ask the leaders now.
            starting: Start whose times leaders convert into offsets.
            ending: End whose times leaders convert into offsets.
            known: Positions whose records were committed once. The views say if such a record was lost.
            linearizable: If True, the list of partitions contains every partition that was added before this call. Default
                False: an answer may come from a controller that is behind.

        Raises:
            NotFoundError: A stream or partition does not exist.
            UnavailableError: NATS or a leader did not answer in time.
        """
        now_s = self._clock()
        request = BoundsRequest(starting, ending, tuple(known))
        timed = starting.timed or ending.timed
        if linearizable:
            self._link.call(self._describe(linearizable=True), 4 * self._options.patience_s)
        if max_age_s and not timed and (watched := self._watched_views(known)) is not None:
            return watched
        if (
            self._views is not None
            and not timed
            and now_s - self._views[0] <= max_age_s
            and request.is_known_by(self._views[1])
        ):
            return self._views[2]
        views = self._link.call(self._fetch_views(request), 4 * self._options.patience_s)
        self._views = (now_s, request, views)
        return views

    def add_confirmation(self, offsets: StreamOffsets) -> None:
        """Store that the leaders have confirmed the records before ``offsets`` since the watch began."""
        if not any(_same(offsets, one) for one in self._confirmations):
            self._confirmations.append(offsets)

    def _watched_views(self, known: Sequence[StreamOffsets]) -> Views | None:
        """Return the state of each partition from the watch. None: the leaders must be asked.

        ``known``: positions whose records must be confirmed. If one is not confirmed yet, the result is None.
        """
        watched = None if self._watch is None else self._watch.views()
        streams_s = None if self._streams is None else self._clock() - self._streams[0]
        if watched is None or streams_s is None or streams_s > STREAMS_AGE_S:
            return None
        return watched if all(any(_same(one, other) for other in self._confirmations) for one in known) else None

    async def _ask_again(self, view: PartitionView, wait_s: float) -> PartitionView:
        transport = await self._link.transport(_KNOWN_PATIENCE_S)
        options = ReadOptions(patience_s=_KNOWN_PATIENCE_S)
        reader = PartitionReader(transport, self._link.subjects, *view.key, options)
        reader.node = view.leader
        bounds, _ = await reader.bounds(view.uid, beyond=view.end_offset, wait_s=wait_s)
        return replace(view, **_fields_of(bounds), starting_at=None, ending_at=None)

    def views_reaching(self, ended: StreamOffsets, start_at: StreamOffsets) -> Views:
        """Return the state of all partitions as soon as their committed ends have reached ``ended``, or after the option ``patience``.

        ``start_at``, ``ended``: start and end of a micro-batch. Their records were committed before. A new leader may need a moment
        until its HW reaches them again.

        Raises:
            UnavailableError: The leader has the records before ``ended``, but has not committed them again.
        """
        known = (ended, start_at)
        watched = self._watched_views(known)
        if watched is not None and not _behind(watched, ended) and not self._lacks_planned(watched, ended, start_at):
            return watched
        views = self.views(known=known)
        if self._lacks_planned(views, ended, start_at):
            views = self.views(known=known, linearizable=True)
        give_up_at_s = self._clock() + self._options.patience_s
        while behind := _behind(views, ended):
            if self._clock() > give_up_at_s:
                for key in behind:
                    if key in ended.lasts:  # the leader has compared the epochs: the records are in its log
                        raise UnavailableError(
                            f"The leader {views[key].leader} of {key[0]}/{key[1]} has not committed offset "
                            f"{ended.next_offsets[key] - 1} again, which the query planned to read. Too few replicas are in sync. "
                            "Check `liftpy health`, then run the query again."
                        )
                return views
            self._wait(_BEHIND_WAIT_S)
            views = self.views(known=known)
        return views

    def _lacks_planned(self, views: Views, ended: StreamOffsets, start_at: StreamOffsets) -> bool:
        """Return whether ``views`` lacks a partition of which the micro-batch from ``start_at`` to ``ended`` has records.

        It was deleted, or the controller that listed the partitions does not know yet that it was added.
        """
        return any(
            key not in views and start_at.next_offsets.get(key, 0) < end and self._options.wanted.takes(*key)
            for key, end in ended.next_offsets.items()
        )

    def measure(self, questions: Sequence[RangeRequest]) -> list[RangeFacts]:
        """Return the size and the batch boundaries of each requested offset range, in order.

        If retention has deleted records of a range, the facts are those of the remaining records.
        """
        if not questions:
            return []
        return self._link.call(self._measure(questions), 4 * self._options.patience_s)

    async def _measure(self, questions: Sequence[RangeRequest]) -> list[RangeFacts]:
        patience_s = self._options.patience_s
        transport = await self._link.transport(patience_s)
        subjects, options = self._link.subjects, ReadOptions(patience_s=patience_s)

        async def one(question: RangeRequest) -> RangeFacts:
            reader = PartitionReader(transport, subjects, *question.key, options)
            start = question.start
            for _ in range(2):
                try:
                    return await reader.measure(
                        start,
                        question.end,
                        question.uid,
                        every_bytes=question.every_bytes,
                        every_records=question.every_records,
                    )
                except OffsetOutOfRangeError:
                    log_start = (await reader.bounds(question.uid))[0].log_start_offset
                    start = min(max(start, log_start), question.end)
            return RangeFacts(question.start, question.end, 0)

        return list(await asyncio.gather(*(one(question) for question in questions)))

    async def _fetch_views(self, request: BoundsRequest) -> Views:
        views = await self._views_in_time(request)
        if self._watch is not None:
            self._watch.follow({} if any(view.cut_at is not None for view in views.values()) else views)
            self._confirmations.clear()
            self._confirmations.extend(request.known)
        return views

    async def _views_in_time(self, request: BoundsRequest) -> Views:
        patience_s = self._options.patience_s
        if self._streams is not None and self._clock() - self._streams[0] <= STREAMS_AGE_S:
            with suppress(NotFoundError, UnavailableError):  # deleted, perhaps made again, since the streams were listed
                known = self._streams[1]
                return await self._ask_leaders(known, request, min(patience_s, _KNOWN_PATIENCE_S))
        try:
            streams = await self._describe()
        except UnavailableError as error:
            if self._streams is None:
                raise
            try:  # reads continue without controllers
                return await self._ask_leaders(self._streams[1], request, min(patience_s, _KNOWN_PATIENCE_S))
            except (NotFoundError, UnavailableError):
                raise error from None
        return await self._ask_leaders(streams, request, patience_s)

    async def _describe(self, *, linearizable: bool = False) -> tuple[StreamImage, ...]:
        """Request the streams that the user wants to read, and store them. ``linearizable``: include all changes before this call.

        The first list of a query includes all changes if the metadata group has a majority, so that the query misses no partition.
        If a requested partition is missing, the request is sent again as a linearizable one.
        """
        now_s = self._clock()
        patience_s, wanted, access = self._options.patience_s, self._options.wanted, self._options.access
        requests = MetadataRequests(await self._link.transport(patience_s), self._link.subjects, patience_s)
        try:
            if linearizable or self._streams is not None:
                streams = await wanted_streams(requests, wanted, linearizable=linearizable)
            else:
                streams = await newest_streams(requests, wanted)
        except (NoRespondersError, NoClusterError):
            raise NoRespondersError(
                f"NATS answers at {access.servers}, but no node of namespace {access.namespace!r} does. Check the "
                "option namespace, that the nodes run, and the NATS account."
            ) from None
        there = {(stream.name, p.partition) for stream in streams for p in stream.partitions}
        if lacking := [f"{stream}/{partition}" for stream, partition in wanted.partitions if (stream, partition) not in there]:
            if not linearizable:
                return await self._describe(linearizable=True)
            raise NotFoundError(
                f"The option assign names partitions that do not exist: {', '.join(lacking)}. Check the stream with "
                "`liftpy stream show`."
            )
        self._streams = (now_s, streams)
        return streams

    async def _ask_leaders(self, streams: tuple[StreamImage, ...], question: BoundsRequest, patience_s: float) -> Views:
        wanted = self._options.wanted
        transport = await self._link.transport(patience_s)
        subjects, options = self._link.subjects, ReadOptions(patience_s=patience_s)
        requests = [
            _view(PartitionReader(transport, subjects, stream.name, p.partition, options), stream, p, question)
            for stream in streams
            for p in stream.partitions
            if wanted.takes(stream.name, p.partition)
        ]
        return {view.key: view for view in await asyncio.gather(*requests)}


def _same(one: StreamOffsets, other: StreamOffsets) -> bool:
    return one.uids == other.uids and one.lasts == other.lasts


def _fields_of(bounds: Bounds) -> dict[str, Any]:
    return {name: getattr(bounds, name) for name in _FROM_BOUNDS}


async def _view(
    reader: PartitionReader,
    stream: StreamImage,
    partition: PartitionState,
    request: BoundsRequest,
) -> PartitionView:
    key = (stream.name, partition.partition)
    starting_ns, ending_ns = request.starting.time_of(key), request.ending.time_of(key)
    cuts: dict[int, int] = {}
    lasts = request.lasts(key, stream.uid)
    for last in lasts[1:]:
        await _bounds(reader, stream.uid, None, last, cuts)
    bounds, starting_at = await _bounds(reader, stream.uid, starting_ns, lasts[0] if lasts else (-1, 0), cuts)
    ending_at = None if ending_ns is None else (await reader.bounds(stream.uid, ending_ns))[1]
    view = _view_of(stream, partition, bounds, None if starting_ns is None else starting_at, ending_at)
    return replace(view, cut_at=min(cuts.values()), lost_ends=tuple(sorted(cuts))) if cuts else view


async def _bounds(
    reader: PartitionReader, uid: str, at_ns: int | None, last: tuple[int, int], cuts: dict[int, int]
) -> tuple[Bounds, int]:
    """Return (bounds of the partition, offset for the time ``at_ns``) from the leader.

    The leader checks whether its log has the record ``last`` (offset, LeaderEpoch). If not, ``cuts`` gets an entry. Its key is the
    offset after ``last``, and its value the end of the unchanged part of the log.
    """
    try:
        return await reader.bounds(uid, at_ns, last)
    except LogTruncatedError as error:
        cuts[last[0] + 1] = error.end_offset
        return await reader.bounds(uid, at_ns)


def _view_of(
    stream: StreamImage, partition: PartitionState, bounds: Bounds, starting_at: int | None, ending_at: int | None
) -> PartitionView:
    return PartitionView(
        stream=stream.name,
        partition=partition.partition,
        replicas=partition.replicas,
        starting_at=starting_at,
        ending_at=None if ending_at is None else min(ending_at, bounds.end_offset),
        **_fields_of(bounds),
    )


async def newest_streams(requests: MetadataRequests, wanted: Selection, *, internal: bool = False) -> tuple[StreamImage, ...]:
    """Request the streams that the user wants to read, with every partition that exists now.

    Without a majority of the controllers, a log message says that partitions may be missing, because a controller that is behind
    may answer. Reads continue then. The arguments and errors are those of ``wanted_streams``.
    """
    deadline_s = min(requests.deadline_s, _NEWEST_S)
    try:
        soon = MetadataRequests(requests.transport, requests.subjects, deadline_s)
        return await wanted_streams(soon, wanted, internal=internal, linearizable=True)
    except (NoRespondersError, NoClusterError):
        raise
    except UnavailableError as error:
        streams = await wanted_streams(requests, wanted, internal=internal)
        _logger.warning("the list of partitions may be old, because the metadata group has no majority: %s; it is used", error)
        return streams


async def wanted_streams(
    requests: MetadataRequests, wanted: Selection, *, internal: bool = False, linearizable: bool = False
) -> tuple[StreamImage, ...]:
    """Request the streams that the user wants to read, and return them.

    Args:
        requests: Requests to the metadata group.
        wanted: Streams to read.
        internal: If True, a pattern also selects internal streams. Default False.
        linearizable: If True, the answer contains all changes before this call. Default False: an answer may come from a
            controller that is behind. A named stream that it does not know is requested again.

    Raises:
        NotFoundError: A named stream does not exist. The text names the most similar one.
    """
    if not wanted.pattern:
        with suppress(NotFoundError):
            named = (requests.stream(name, linearizable=linearizable) for name in wanted.streams)
            return tuple(await asyncio.gather(*named))
        linearizable = True  # the controller may be behind, or the error names the most similar stream
    there = (await requests.describe(linearizable=linearizable)).image.streams
    return tuple(there[name] for name in wanted.among(there, internal=internal))
