"""``MemoryService``: one replicated service of a cluster in memory, with the real machine, replies, queries, effects and
outputs.

There is one instance, and it leads. It belongs to no node, survives all of them, and keeps no snapshots.
``ServiceTest`` and the real
cluster cover what replicas of a service do to each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from liftpy.client.client import Client
from liftpy.client.consumer import ReadOptions
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.service import Role, Service
from liftpy.core.services.snapshot import Identity
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.cancellation import end_tasks
from liftpy.service.bad_record_writer import RecordWriter
from liftpy.service.effect_runner import EffectRunner
from liftpy.service.output_writer import Emitter
from liftpy.service.query_server import QueryServer
from liftpy.service.reply_sender import Replier
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.testing")

_NODE = "memory"
_NO_SNAPSHOTS = 1 << 40
_READING = ReadOptions(patience_s=3600.0, wait_s=5.0)
"""All nodes may be down for as long as a test likes."""
_CHUNK_RECORDS = 128
_FULL_S = 0.005
_LEADER_EPOCH = 1


class MemoryService:
    """A service on an in-memory cluster. ``client``: its own, closed at the end. Call ``begin``, then ``close``."""

    def __init__(
        self, client: Client, subjects: Subjects, factory: Callable[[], Service], settings: tuple[str, str, int, str, float]
    ) -> None:
        """``settings``: name, stream, partition, output stream or '', tick in s."""
        name, stream, partition, output, tick_interval_s = settings
        self._client = client
        self._subjects = subjects
        self._factory = factory
        self._settings = ServiceSettings(
            service=name,
            stream=stream,
            node=_NODE,
            data=Path(),
            partition=partition,
            output_stream=output,
            tick_interval_s=tick_interval_s,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._machine: ServiceMachine | None = None
        self._outbox: Outbox | None = None

    async def begin(self) -> None:
        """Make its state and let it be fed; raises NotFoundError, and what the service's ``on_start`` raises."""
        settings, client, transport = self._settings, self._client, self._client.transport
        uid = (await client.stream(settings.stream)).uid
        identity = Identity(settings.service, settings.stream, uid, settings.partition)
        if settings.output_stream:
            await client.stream(settings.output_stream)
            bounds = {"max_records": settings.outbox_records, "max_bytes": settings.outbox_bytes}
            self._outbox = Outbox(f"{uid}/{settings.partition}", service=settings.service, **bounds)
            told = (_yes, lambda error: self._failed(error), lambda: None, lambda: None)
            self._spawn(Emitter(client, transport, settings, self._outbox, *told).run())
        self._machine = machine = ServiceMachine(
            self._factory(), identity, snapshot_interval_records=_NO_SNAPSHOTS, outbox=self._outbox
        )
        machine.active_version = machine.version
        machine.start(None)
        machine.change_role(Role.LEADER, _LEADER_EPOCH)
        self._spawn(self._feed(machine))
        self._spawn(Replier(transport, settings, machine.replies, _yes, self._emitted_end).run())
        writer = RecordWriter(client, settings.emit_timeout_s)
        effects = EffectRunner(writer, settings, lambda: machine, _yes, self._emitted_end)
        machine.on_work = effects.wake
        self._spawn(effects.run())
        if machine.takes_queries:
            self._spawn(QueryServer(client, transport, self._subjects, settings, lambda: machine, _yes, _yes).run())

    def _emitted_end(self) -> int | None:
        return None if self._outbox is None else self._outbox.emitted_end

    async def _feed(self, machine: ServiceMachine) -> None:
        """Feed all records of its partition until the service raises. After that it gives no answers."""
        settings = self._settings
        consumer = self._client.consume(settings.stream, settings.partition, options=_READING)
        async for piece in consumer.batches():
            records = list(piece.records())
            while records and machine.position <= records[-1].offset:
                machine.apply(records[:_CHUNK_RECORDS])
                records = [record for record in records if record.offset >= machine.position]
                await asyncio.sleep(_FULL_S if machine.waits_for_outputs else 0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"service {self._settings.service} in memory")
        task.add_done_callback(lambda done: None if done.cancelled() else self._failed(done.exception()))
        self._tasks.append(task)

    def _failed(self, error: BaseException | None) -> None:
        if error is not None:
            logger.error("service %s in memory has ended: %s", self._settings.service, error, exc_info=error)

    async def close(self) -> None:
        """Stop the service."""
        await end_tasks(self._tasks)
        await self._client.close()


def _yes() -> bool:
    return True
