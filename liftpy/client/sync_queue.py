"""Work queues without asyncio: ``SyncClient.queue``. Each call waits until it is done; between two calls the client's own thread takes
what is due ahead, and gives back what nobody asks for.

    with client.queue("jobs", "workers") as queue:
        for job in queue:
            print(job.record.value, job.deliveries)
            job.ack()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from liftpy.client.queue import Job, Queue
from liftpy.ids import PartitionKey
from liftpy.wire.batch import Record

_T = TypeVar("_T")


class Waits(Protocol):
    """The event loop of a ``SyncClient``."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What it gives or raises."""
        ...


class SyncJob:
    """As ``liftpy.client.Job``."""

    __slots__ = ("_job", "_loop")

    def __init__(self, loop: Waits, job: Job) -> None:
        self._loop = loop
        self._job = job

    @property
    def record(self) -> Record:
        """What is to be worked on."""
        return self._job.record

    @property
    def key(self) -> PartitionKey:
        """Where it is from."""
        return self._job.key

    @property
    def deliveries(self) -> int:
        """How often it was given, this time included."""
        return self._job.deliveries

    @property
    def until_ns(self) -> int:
        """Monotonic; when another may get it."""
        return self._job.until_ns

    def ack(self) -> None:
        """It is done, and never comes again. Raises as ``SyncQueue.ack``."""
        self._loop.run(self._job.ack())

    def nack(self, delay_s: float = 0.0) -> None:
        """It comes again, after ``delay_s``."""
        self._loop.run(self._job.nack(delay_s))

    def extend(self) -> None:
        """Its wait begins anew."""
        self._loop.run(self._job.extend())

    def reject(self, reason: str) -> None:
        """It goes to the dead letters."""
        self._loop.run(self._job.reject(reason))


class SyncQueue:
    """As ``liftpy.client.Queue``: one worker. An iterable of jobs that ends when the queue is closed."""

    def __init__(self, loop: Waits, queue: Queue) -> None:
        self._loop = loop
        self._queue = queue

    @property
    def counters(self) -> Counter[str]:
        """What went wrong and was tried again."""
        return self._queue.counters

    def take(self, max_records: int = 64, timeout_s: float = 5.0) -> list[SyncJob]:
        """See ``liftpy.client.Queue.take``."""
        return [SyncJob(self._loop, job) for job in self._loop.run(self._queue.take(max_records, timeout_s))]

    def ack(self, jobs: Iterable[SyncJob]) -> None:
        """See ``liftpy.client.Queue.ack``; the ``jobs`` of a LeaseLostError are those of the asynchronous queue."""
        self._loop.run(self._queue.ack([job._job for job in jobs]))

    def nack(self, jobs: Iterable[SyncJob], delay_s: float = 0.0) -> None:
        """See ``liftpy.client.Queue.nack``."""
        self._loop.run(self._queue.nack([job._job for job in jobs], delay_s))

    def extend(self, jobs: Iterable[SyncJob]) -> None:
        """See ``liftpy.client.Queue.extend``."""
        self._loop.run(self._queue.extend([job._job for job in jobs]))

    def reject(self, jobs: Iterable[SyncJob], reason: str) -> None:
        """See ``liftpy.client.Queue.reject``."""
        self._loop.run(self._queue.reject([job._job for job in jobs], reason))

    def close(self) -> None:
        """See ``liftpy.client.Queue.close``."""
        self._loop.run(self._queue.close())

    def __iter__(self) -> Iterator[SyncJob]:
        while (job := self._loop.run(self._next())) is not None:
            yield SyncJob(self._loop, job)

    async def _next(self) -> Job | None:
        async for job in self._queue:
            return job
        return None

    def __enter__(self) -> SyncQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
