"""Router: copies the leader's outputs to the streams of their routes. ``outbox.py`` decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from liftpy.client import Client
from liftpy.core.metadata.image import StreamImage
from liftpy.core.services.outbox import OutputConflictError, Place, Route, headers_of, number_of, partitions_of, sort_in
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import ConfigError, LiftError
from liftpy.nats.transport import Transport
from liftpy.service.output_writer import Destination, OutputNotWrittenError, append, fitting
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

_CHUNK_RECORDS = 4096
"""Outputs that are looked at between two looks at what else there is to do."""
_BATCH_RECORDS = 1024


class Router:
    """One route of one instance. ``source``: uid and partition of the input, as in each output id."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        settings: ServiceSettings,
        route: Route,
        *,
        source: str,
        leads: Callable[[], bool],
        fatal: Callable[[LiftError], None],
    ) -> None:
        self._client = client
        self._transport = transport
        self._settings = settings
        self.route = route
        self._source = source
        self._leads = leads
        self._fatal = fatal
        self._target: StreamImage | None = None
        self._places: dict[int, Place] = {}
        """Partition -> output stream partition. Empty: not known yet."""
        self._next = 0
        """Offset in the output stream that is looked at next."""
        self._wake = asyncio.Event()
        self.problem = ""
        """Why copies don't leave; shown in status."""

    def wake(self) -> None:
        """Outputs were written, or the role is another one."""
        self._wake.set()

    async def run(self) -> None:
        """Copy forever. An error of the route itself ends the service."""
        while True:
            self._wake.clear()
            try:
                if self._leads():
                    await self._turn()
                else:
                    self._places = {}
                self.problem = ""
            except (ConfigError, OutputConflictError) as error:
                self._fatal(error)
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
                "route %s: %s has no outputs below %d any more: those of the route that were not copied are lost, if there were any",
                *(self.route.name, settings.output_stream, bounds.log_start_offset),
            )
            self._next = bounds.log_start_offset
        while self._next < bounds.end_offset and self._leads():
            end = min(bounds.end_offset, self._next + _CHUNK_RECORDS)
            pieces = self._client.read_range(
                settings.output_stream, settings.partition, self._next, end, uid=bounds.uid, exact=True
            )
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    sort_in(piece.records(), self.route, self._places)
                    for partition, place in self._places.items():  # what waits is of one batch at most
                        await self._write(partition, place)
            self._next = end

    async def _learn(self) -> None:
        """Find the end of each partition, and the last output that it has."""
        instances = len((await self._client.stream(self._settings.stream)).partitions)
        target = await self._client.stream(self.route.stream)
        if any(token in ("*", ">") for token in target.subject.split(".")) or not target.answers or target.config.compaction:
            raise ConfigError(
                f"Stream {self.route.stream} cannot be used for a route. It needs a subject without wildcards, an ack "
                "policy of leader or all, and no compaction."
            )
        places: dict[int, Place] = {}
        for partition in partitions_of(self._settings.partition, instances, len(target.partitions), self.route):
            end_offset = (await self._client.bounds(target.name, partition)).end_offset
            place = places[partition] = Place(end_offset)
            bounds = await self._client.bounds(target.name, partition)
            upper, size = end_offset, 1
            while upper > bounds.log_start_offset and place.last_number < 0:  # the last copies were purged, perhaps
                lower = max(bounds.log_start_offset, upper - size)
                async for piece in self._client.read_range(target.name, partition, lower, upper, uid=target.uid, exact=True):
                    for record in piece.records():
                        place.last_number = number_of(record, self._source, self._settings.service, self.route)
                upper, size = lower, min(size * 4, _CHUNK_RECORDS)
        self._target = target
        self._next = min(place.last_number for place in places.values()) + 1
        self._places = places

    async def _write(self, partition: int, place: Place) -> None:
        target = self._target
        assert target is not None
        to = Destination(target.name, target.uid, partition, data_subject(target.subject, partition))
        waiting, place.waiting = place.waiting, []
        while waiting:
            if not self._leads():
                raise OutputNotWrittenError(
                    f"Route {self.route.name}: this instance is no longer the leader. The new leader writes the outputs."
                )
            rows = [(record.value, record.key, headers_of(record)) for record in waiting[:_BATCH_RECORDS]]
            frame, count = fitting(to, place.end_offset, rows, self._transport.max_payload_bytes)
            await append(self._transport, to, frame, place.end_offset, count, self._settings.emit_timeout_s)
            place.end_offset += count
            place.last_number = waiting[count - 1].offset
            waiting = waiting[count:]
