"""``Fetcher``: fetches the next slices of many partitions at once, for groups and ``consume_many``.

Each partition has a task that waits for its next slice. At most one slice of a partition waits for the application. The
application takes the slices in the order of their arrival, so a partition with many records does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, KeysView
from typing import Any, Generic, TypeVar

from liftpy.client.batch_view import BatchSlice
from liftpy.client.iteration import end_later

Key = TypeVar("Key", bound=Hashable)
FetchNext = Callable[[], Coroutine[Any, Any, BatchSlice | None]]
"""Function that returns the next slice of a partition. None: the partition is at its end."""


class Fetcher(Generic[Key]):
    """Fetches the next slices of many partitions at once, until the owner calls ``stop``."""

    def __init__(self) -> None:
        self._sources: dict[Key, tuple[FetchNext, str]] = {}
        """Partition -> function that fetches its next slice, and the name of its tasks."""
        self._tasks: dict[Key, asyncio.Task[BatchSlice | None]] = {}
        self._arrived: dict[Key, None] = {}
        self.news = asyncio.Event()
        """Set when a slice, an end or an error has arrived. The owner may set it to end a wait, and clears it before a check."""

    @property
    def partitions(self) -> KeysView[Key]:
        """The partitions that were added, and are not at their end."""
        return self._sources.keys()

    @property
    def arrived(self) -> KeysView[Key]:
        """The partitions whose next slice, end or error has arrived, in the order of arrival."""
        return self._arrived.keys()

    def add(self, partition: Key, fetch_next: FetchNext) -> None:
        """Read a partition from the next call of ``start`` on. ``fetch_next`` is called again after each taken slice."""
        self._sources[partition] = fetch_next, f"next slice of {partition}"

    def remove(self, partition: Key) -> None:
        """Stop reading a partition, and drop its slice."""
        self._sources.pop(partition, None)
        self._arrived.pop(partition, None)
        end_later(self._tasks.pop(partition, None))

    def start(self) -> None:
        """Fetch from all partitions that were added, have failed or were stopped."""
        if len(self._tasks) < len(self._sources):
            for partition in [partition for partition in self._sources if partition not in self._tasks]:
                self._fetch(partition)

    def _fetch(self, partition: Key) -> None:
        fetch_next, name = self._sources[partition]
        task = self._tasks[partition] = asyncio.create_task(fetch_next(), name=name)
        task.add_done_callback(lambda done: self._fetched(partition, done))

    def _fetched(self, partition: Key, task: asyncio.Task[BatchSlice | None]) -> None:
        if not task.cancelled():
            task.exception()  # ``take`` raises it
        if self._tasks.get(partition) is task:
            self._arrived[partition] = None
            self.news.set()

    def peek(self, partition: Key) -> BatchSlice | None:
        """Return the slice of a partition that has arrived. It stays. None: no slice has arrived."""
        task = self._tasks.get(partition)
        return None if task is None or not task.done() or task.cancelled() or task.exception() else task.result()

    def take(self, partition: Key) -> BatchSlice | None:
        """Take what has arrived from a partition, and fetch its next slice.

        Returns:
            The slice. None: the partition is at its end, and is removed.

        Raises:
            LiftError: Fetching failed. ``start`` tries again.
        """
        task = self._tasks.pop(partition)
        del self._arrived[partition]
        piece = task.result()
        if piece is None:
            del self._sources[partition]
        else:
            self._fetch(partition)
        return piece

    def stop(self) -> list[asyncio.Task[BatchSlice | None]]:
        """Stop fetching, and return the tasks that the owner must cancel. Slices that have arrived stay, and ``start`` continues."""
        stopped = [partition for partition in self._tasks if self.peek(partition) is None]
        for partition in stopped:
            self._arrived.pop(partition, None)
        return [self._tasks.pop(partition) for partition in stopped]


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until ``event`` is set, at most ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
