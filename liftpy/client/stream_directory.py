"""``StreamDirectory``: the streams that a client knows, their addresses and readers of their partitions.

The parts of one client share a directory. It caches the descriptions of streams. Code that finds a description out of
date requests it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from liftpy.client.arguments import check_partition, checked_options
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.batch_view import BatchSlice
from liftpy.client.closest_replica import ReplicaSelector
from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions, read_range
from liftpy.client.encode_publish import Address
from liftpy.client.in_flight import PublishOptions
from liftpy.client.iteration import Iteration
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.partition_sender import ProducerOptions, Source, check_answers, name_for
from liftpy.client.positions import Start, Until
from liftpy.client.producer import Partitioner, Producer
from liftpy.client.progress import ReadProgress
from liftpy.client.publisher import Publisher
from liftpy.client.write_epoch import Round
from liftpy.core.base.ids import check_name, check_published, is_utf8, quote
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import INSUFFICIENT_NODES, StreamImage
from liftpy.core.wire.batch import Record
from liftpy.core.wire.filters import NOTHING_LEFT_OUT, Filter
from liftpy.core.wire.producer_note import SourcePosition
from liftpy.core.wire.subjects import data_subject, matcher
from liftpy.errors import ConfigError, NoClusterError, NoMajorityError, NotFoundError, OutcomeUnknownError, UnavailableError

_T = TypeVar("_T")
_NEWEST_S = 5.0
"""Time in seconds to wait for the metadata leader. After it, a description of streams may be old."""
_NO_MAJORITY_PAUSE_S = 0.5
"""Pause before the metadata group is asked again if it had no majority, in seconds."""


class ClientFactories:
    """Creates publishers and producers without traces."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        """Counters of dropped trace spans, by kind. Always empty without traces."""
        self.publisher: Callable[..., Publisher] = Publisher
        self.producer: Callable[..., Producer] = Producer

    def trace_reads(self, reader: PartitionReader) -> None:
        """Let ``reader`` record the slices that it delivers. Without traces, do nothing."""

    def around(self, stream: str, what: Record | BatchSlice, partition: int) -> AbstractContextManager[Any]:
        """Return the context manager of ``Client.processing``, which without traces does nothing. ``what``: record or slice."""
        return nullcontext()


class StreamDirectory:
    """Cache of the descriptions of streams. It also opens consumers, publishers and producers of them."""

    def __init__(self, requests: MetadataRequests, factories: ClientFactories | None = None) -> None:
        self.requests = requests
        self.factories = factories or ClientFactories()
        self.cached: dict[str, StreamImage] = {}
        self._describing: dict[str, asyncio.Task[StreamImage]] = {}

    async def stream(self, name: str) -> StreamImage:
        """Request the stream from the metadata group, as ``describe`` does. Raises InvalidNameError for a name that is not valid."""
        return await self.describe(check_name(name, "stream"))

    async def newest_stream(self, name: str) -> StreamImage:
        """Request the stream as it is now, and cache it. Raises NotFoundError and the errors of requests.

        A controller that is behind may know an older stream of this name, or fewer partitions. So the metadata leader is asked. If
        it does not answer within ``_NEWEST_S`` seconds, any controller is asked.
        """
        check_name(name, "stream")
        stream = await _newest(partial(self.requests.stream, name, linearizable=True))
        if stream is None:
            return await self.describe(name)
        self.cached[name] = stream
        return stream

    async def newest_streams(self) -> list[StreamImage]:
        """Request all streams as they are now, sorted by name. The rules of ``newest_stream`` apply."""
        state = await _newest(partial(self.requests.describe, linearizable=True))
        return await self.list_streams() if state is None else state.streams()

    async def list_streams(self) -> list[StreamImage]:
        """Request all streams, sorted by name. The controller that answers may be behind."""
        return (await self.requests.describe()).streams()

    async def cached_stream(self, stream: str, partition: int, *, refresh: bool = False) -> StreamImage:
        """Return the stream from the cache.

        Request it if it is not cached, if it lacks this partition, or if ``refresh`` is True. If the answering controller does not
        know the partition, the metadata leader is asked.
        """
        known = self.cached.get(stream)
        if refresh or known is None or partition >= len(known.partitions):
            known = await self.stream_with_partition(stream, partition)
        return known

    async def stream_with_partition(self, stream: str, partition: int) -> StreamImage:
        """Request the stream, as ``current_stream`` does. If it lacks this partition, ask the metadata leader.

        The controller that answers first may be behind. The result may still lack the partition.
        """
        image = await self.current_stream(stream)
        is_missing = partition >= len(image.partitions) and not image.waiting
        return await self.newest_stream(stream) if is_missing else image

    async def current_stream(self, stream: str) -> StreamImage:
        """Request the stream from the metadata group and return it.

        Callers that ask at the same time share one request. Raises NotFoundError and the errors of requests.
        """
        asking = self._describing.get(stream)
        if asking is None:
            asking = self._describing[stream] = asyncio.create_task(self.describe(stream), name=f"describe {stream}")
            asking.add_done_callback(lambda done: self._describing.pop(stream, None) and (done.cancelled() or done.exception()))
        return await asyncio.shield(asking)

    async def describe(self, stream: str) -> StreamImage:
        """Request the stream from the metadata group, store it in the cache and return it.

        If the answering controller does not know the stream, the metadata leader is asked. Without an answer, the cache keeps the
        earlier description.
        """
        try:
            image = await self.requests.stream(stream)
        except NotFoundError:  # the answering controller may be behind
            self.cached.pop(stream, None)
            image = await self.requests.stream(stream, linearizable=True)
        self.cached[stream] = image
        return image

    async def address(self, stream: str, partition: int, *, refresh: bool = False, subject: str = "") -> Address:
        """Return the address to publish to.

        ``refresh``: True to skip the cached description of the stream. ``subject``: replaces the subject of the stream if not ''.
        """
        return address_of(await self.cached_stream(stream, partition, refresh=refresh), partition, subject)

    async def current_address(self, stream: str, partition: int, newest: bool, *, subject: str = "") -> Address:
        """Request the address to publish to. ``newest``: True to ask the metadata leader. ``subject``: as in ``address``."""
        if newest:
            return address_of(await self.newest_stream(stream), partition, subject)
        return await self.address(stream, partition, refresh=True, subject=subject)

    def reader(self, stream: str, partition: int, options: ReadOptions | None = None) -> PartitionReader:
        check_name(stream, "stream")
        check_partition(partition)

        chosen = checked_options(options, ReadOptions)

        async def now() -> PartitionState:
            return partition_state(await self.stream_with_partition(stream, partition), partition)

        nearest = ReplicaSelector(chosen.near, now, self.requests.nodes_near) if chosen.near or chosen.nearest else None
        reader = PartitionReader(self.requests.transport, self.requests.subjects, stream, partition, chosen, now, nearest)
        self.factories.trace_reads(reader)
        return reader

    def consume(
        self,
        stream: str,
        partition: int,
        start: Start,
        until: Until = None,
        *,
        after_epoch: int = 0,
        wanted: Filter = NOTHING_LEFT_OUT,
        backwards: bool = False,
        options: ReadOptions | None = None,
    ) -> Consumer:
        """Return a consumer of a partition. ``wanted``: filter of its records. ``Client.consume`` describes the other arguments."""
        reader = self.reader(stream, partition, options)
        return Consumer(reader, start, until, after_epoch, wanted=wanted, backwards=backwards)

    def open_publisher(
        self, stream: str, partition: int = 0, *, subject: str = "", options: PublishOptions | None = None
    ) -> AwaitableContext[Publisher]:
        """Open a publisher. ``Client.publisher`` describes the arguments and the errors."""

        async def find(newest: bool) -> Address:
            return await self.current_address(stream, partition, newest, subject=subject)

        async def opened() -> Publisher:
            check_published(stream)
            check_partition(partition)
            if subject:
                known = self.cached.get(stream)
                address = subject_address(subject) if known is None else address_of(known, partition, subject)
            else:
                address = await self.address(stream, partition)
            chosen = checked_options(options, PublishOptions)
            return self.factories.publisher(self.requests.transport, stream, partition, address, chosen, find=find)

        return AwaitableContext(opened())

    def open_producer(
        self,
        stream: str,
        *,
        id: str = "",
        options: ProducerOptions | None = None,
        partitioner: Partitioner = "key",
        source: Source | Round | None = None,
    ) -> AwaitableContext[Producer]:
        """Open a producer. ``source``: partition that the records are made from, or the round to write. None: neither.

        ``Client.producer`` describes the other arguments and the errors. A round without an ``id`` cannot be sent again.
        """
        chosen = checked_options(options, ProducerOptions)
        name = name_for(id, source if isinstance(source, Source) else None)

        async def find(partition: int, newest: bool) -> Address:
            return await self.current_address(stream, partition, newest)

        async def opened_on(known: StreamImage) -> Producer:
            check_answers(known)
            addresses = [address_of(known, number) for number in range(max(len(known.partitions), 1))]
            position: SourcePosition | Round | None
            if isinstance(source, Source):
                position = source.position_in(await self.newest_stream(source.stream))
            else:
                position = source
            transport = self.requests.transport
            made = self.factories.producer(transport, stream, name, addresses, chosen, partitioner, find, position)
            await made.open()
            return made

        async def opened() -> Producer:
            name = check_published(stream)
            if source is None and chosen.begin != "repeat":
                return await opened_on(await self.newest_stream(name))
            return await opened_on(await self.complete_stream(name, chosen.patience_s))

        return AwaitableContext(opened())

    async def complete_stream(self, stream: str, patience_s: float) -> StreamImage:
        """Return the description of the stream with every partition that exists now.

        A process that repeats records must ask all partitions that an earlier process may have used. A controller that is behind
        may not know all of them. ``patience_s``: time in seconds to wait for a majority of the controllers.
        """
        time = asyncio.get_running_loop().time
        until_s = time() + patience_s
        while True:
            try:
                image = self.cached[stream] = await self.requests.stream(stream, linearizable=True)
                return image
            except NoMajorityError:
                if time() >= until_s:
                    raise
            await asyncio.sleep(_NO_MAJORITY_PAUSE_S)

    def read(self, progress: ReadProgress, options: ReadOptions | None = None) -> Iteration[BatchSlice]:
        return read_range(self.reader(progress.stream, progress.partition, options), progress)


async def _newest(request: Callable[[], Awaitable[_T]]) -> _T | None:
    """Return the answer of the metadata leader to ``request``. None: it does not answer in time, or there is no majority."""
    try:
        async with asyncio.timeout(_NEWEST_S):
            return await request()
    except NoClusterError:
        raise
    except (TimeoutError, UnavailableError, OutcomeUnknownError):
        return None


def partition_state(stream: StreamImage, partition: int) -> PartitionState:
    """Return the state of a partition.

    Raises UnavailableError if the stream has no replicas yet, and NotFoundError if there is no such partition.
    """
    if stream.waiting:
        raise UnavailableError(
            f"Stream {stream.name} has no replicas yet: the cluster has too few nodes ({INSUFFICIENT_NODES}). Start more nodes."
        )
    if partition >= len(stream.partitions):
        last = len(stream.partitions) - 1
        raise NotFoundError(f"Stream {stream.name} has no partition {partition}. Its partitions are 0 to {last}.")
    return stream.partitions[partition]


def subject_address(subject: str, uid: str = "", answers: bool = True, window_s: float = 0.0) -> Address:
    """Return the address for publishing to ``subject``. Raise ConfigError if the subject has wildcards or is not text."""
    if any(token in ("*", ">") for token in subject.split(".")):
        raise ConfigError(f"Cannot publish on {subject}, because it has wildcards. Name one subject (subject=, --subject).")
    if not is_utf8(subject):
        raise ConfigError(f"Subject {quote(subject)} is not UTF-8 text. Use a subject of UTF-8 characters.")
    return Address(subject, uid, answers, window_s)


def address_of(stream: StreamImage, partition: int, subject: str = "") -> Address:
    """Return the address of a partition. ``subject`` replaces the subject of the stream if it is not ''."""
    partition_state(stream, partition)
    own = data_subject(stream.subject, partition)
    if subject and not matcher(own)(subject):
        raise ConfigError(
            f"Subject {subject} does not belong to {stream.name}/{partition}, which stores {own}. Publish on a "
            f"subject that matches {own} (--subject, subject=)."
        )
    return subject_address(subject or own, stream.uid, stream.answers, stream.config.dedup_window_s)
