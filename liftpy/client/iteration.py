"""Iteration over a partition with read-ahead. A canceled wait never loses or repeats a record.

A canceled wait (``asyncio.wait_for(anext(it), 1)``) does not end the iteration. The next ``anext`` continues after the
last delivered record, also after an error. If the application drops the iterator, the fetching ends by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from liftpy.client.batch_view import BatchSlice
from liftpy.core.wire.batch import Record
from liftpy.errors import ClientClosedError, ConfigError, LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport

Item = TypeVar("Item", Record, BatchSlice)
_T = TypeVar("_T")
_Ready = asyncio.Queue[list[BatchSlice] | LiftError | None]
Fetch = Callable[[], Awaitable[list[BatchSlice] | None]]
"""Function that fetches the next slices. An empty list: no new records. None: the end of the read."""


class ReadAhead:
    """Queue of slices that a background task fetches ahead of the application.

    ``depth``: maximum number of queued answers. ``begin``: function that starts the read once and returns its fetch function.
    """

    def __init__(self, name: str, transport: Transport, depth: int, begin: Callable[[], Awaitable[Fetch]]) -> None:
        self._name = name
        self._transport = transport
        self._begin = begin
        self._ready: _Ready = asyncio.Queue(depth)
        self._pieces: deque[BatchSlice] = deque()
        self._seen_end: list[LiftError | None] = []
        """End (None) or error that ``at_once`` has received. ``next`` returns or raises it."""
        self._fetch: Fetch | None = None
        self._open_task: asyncio.Task[Fetch] | None = None
        """Task that opens the read. It continues if its caller is canceled, and the next caller waits for it."""
        self._fetching: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] = _do_nothing
        self._getting = False
        """True while ``next`` waits for a slice."""
        self.ended = False
        """True if the read is at its end, or closed."""

    async def next(self) -> BatchSlice | None:
        """Return the next slice, or None at the end of the read.

        It raises the errors of fetching. A later call continues after the last slice. A canceled call loses no slice.
        """
        if self._pieces:
            return self._pieces.popleft()
        if self.ended:
            return None
        self._transport.must_be_usable()
        if self._fetch is None:
            self._fetch = await self._start_fetching()
        if self.ended or self._fetch is None:  # another task has closed it
            return None
        if self._fetching is None:
            self._start(self._fetch)
        item = self._seen_end.pop() if self._seen_end else await self._get()
        if self.ended:
            return None
        if isinstance(item, LiftError):
            fetching, self._fetching = self._fetching, None
            self._forget()
            if fetching is not None and not fetching.done():  # it was canceled, or is about to end
                _close_later(fetching)
            raise item
        if item is None:
            await self.close()
            return None
        self._pieces.extend(item)
        return self._pieces.popleft()

    async def _start_fetching(self) -> Fetch | None:
        """Start the read and return its fetch function. None: the read was closed.

        The start asks a replica. If the caller is canceled, it continues in the background.
        """
        if self._open_task is None:
            self._open_task = asyncio.ensure_future(self._begin())
            self._open_task.add_done_callback(lambda done: done.cancelled() or done.exception())
        open_task = self._open_task
        if not open_task.done():
            await asyncio.wait((open_task,))
        if self._open_task is open_task:
            self._open_task = None
        return None if open_task.cancelled() else open_task.result()

    async def _get(self) -> list[BatchSlice] | LiftError | None:
        self._getting = True
        try:
            return await self._ready.get()
        finally:
            self._getting = False

    def at_once(self) -> BatchSlice | None:
        """Return the next slice if it is in the queue, else None. It never waits.

        An end or an error in the queue is kept for the next call of ``next``.
        """
        if not self._pieces and not self.ended and not self._seen_end and not self._ready.empty():
            item = self._ready.get_nowait()
            if not isinstance(item, list):
                self._seen_end.append(item)
                return None
            self._pieces.extend(item)
        return self._pieces.popleft() if self._pieces else None

    @property
    def is_empty(self) -> bool:
        """True if fetching has started and the application has received all fetched slices."""
        return self._fetching is not None and not self._pieces and not self._seen_end and self._ready.empty()

    def put_back(self, piece: BatchSlice) -> None:
        self._pieces.appendleft(piece)

    def _start(self, fetch: Fetch) -> None:
        ready = self._ready
        fetching = self._fetching = asyncio.create_task(_fetch_all(fetch, ready, self._name), name=f"read {self._name}")
        name = self._name

        def closed() -> None:
            fetching.cancel()
            while not ready.empty():
                ready.get_nowait()
            ready.put_nowait(ClientClosedError(f"The client was closed while {name} was read. Open a new client to continue."))

        self._forget = self._transport.on_close(closed)

    async def close(self) -> None:
        """Stop fetching, and wait until the background tasks have ended."""
        open_task = self._open_task
        await end_tasks([self._detach(), open_task])

    def abandon(self) -> None:
        """Stop fetching, without waiting for the end of the background tasks."""
        end_later(self._detach())

    def _detach(self) -> asyncio.Task[None] | None:
        self.ended = True
        self._pieces.clear()
        self._seen_end.clear()
        if self._getting:  # the waiting task gets the end
            while not self._ready.empty():
                self._ready.get_nowait()
            self._ready.put_nowait(None)
        self._forget()
        self._forget = _do_nothing
        open_task, self._open_task = self._open_task, None
        if open_task is not None and not open_task.get_loop().is_closed():
            open_task.get_loop().call_soon_threadsafe(open_task.cancel)
        fetching, self._fetching = self._fetching, None
        return fetching


async def _fetch_all(fetch: Fetch, ready: _Ready, name: str) -> None:
    try:
        while (pieces := await fetch()) is not None:
            if pieces:
                await ready.put(pieces)
            pieces = None  # free the memory of these slices as soon as the application drops them
    except LiftError as error:
        await ready.put(error)
    except Exception as error:  # the application must see a bug, too
        await ready.put(LiftError(f"Cannot read {name}: {error!r}. Read again from the last position."))
        raise
    else:
        await ready.put(None)


_close_tasks: set[asyncio.Task[None]] = set()
"""Closing tasks of abandoned iterations. The set keeps a reference, so that they run to their end."""


def end_later(task: asyncio.Task[Any] | None) -> None:
    """Cancel ``task`` without waiting for its end, from any thread. None: ignored."""
    if task is not None and not task.done() and not task.get_loop().is_closed():
        task.get_loop().call_soon_threadsafe(_close_later, task)


def _close_later(task: asyncio.Task[Any]) -> None:
    closing = asyncio.create_task(end_tasks([task]), name="closing of an iteration")
    _close_tasks.add(closing)
    closing.add_done_callback(_close_tasks.discard)


def _do_nothing() -> None:
    pass


def whole(piece: BatchSlice) -> Iterator[BatchSlice]:
    """Yield only ``piece`` itself. It is the ``unfold`` function of a read that returns slices as they were fetched."""
    return iter((piece,))


class LastItem:
    """Stores the last item that an iteration has returned to the application (``last``).

    The position of a consumer follows this item. Items that were only fetched do not count.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Record | BatchSlice | None = None


class ResultIterator(Generic[_T]):
    """Asynchronous iterator over the results of the function ``following``, until it returns None.

    The iterator itself has no state, so it may be dropped at any time.
    """

    def __init__(self, following: Callable[[], Awaitable[_T | None]]) -> None:
        self._following = following

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        result = await self._following()
        if result is None:
            raise StopAsyncIteration
        return result


class Iteration(Generic[Item]):
    """Asynchronous iterator over the items of a read. ``aclose`` ends it at once.

    ``unfold``: returns the items of a slice, such as its records. ``handed_on``: stores the last returned item.
    """

    def __init__(
        self, ahead: ReadAhead, unfold: Callable[[BatchSlice], Iterator[Item]], handed_on: LastItem | None = None
    ) -> None:
        self._ahead = ahead
        self._unfold: Callable[[BatchSlice], Iterator[Item]] = unfold
        self._handed_on = LastItem() if handed_on is None else handed_on
        self._items: Iterator[Item] = iter(())
        """Remaining items of the current slice.

        Empty while the iteration waits for a slice, and after another iteration replaced this one.
        """
        self._waiting = False
        self.interrupted = False
        """True if the last wait was canceled or failed. The iteration may continue, or another one may replace it."""
        self.replaced = False

    @property
    def alive(self) -> bool:
        """True while no other iteration of the same reader may start.

        This is so while this iteration runs, or while a task waits for its next item.
        """
        return not (self._ahead.ended or (self.interrupted and not self._waiting))

    @property
    def may_go_on(self) -> bool:
        """True if the iteration can continue after the last item that it returned. A canceled wait does not change this."""
        return not (self._ahead.ended or self.replaced)

    @property
    def is_idle(self) -> bool:
        """True if all fetched items were returned to the application."""
        return self._waiting and self._ahead.is_empty

    def __aiter__(self) -> Iteration[Item]:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:  # the fast path: one loop step for each record
            self._handed_on.last = item
            return item
        if self._waiting or self.replaced:
            raise ConfigError("This Consumer is already read by another task. Create one Consumer per task.")
        while True:
            self._waiting = self.interrupted = True
            try:
                piece = await self._ahead.next()
            finally:
                self._waiting = False
            self.interrupted = False
            if piece is None:
                raise StopAsyncIteration
            self._begin_slice(piece)
            for item in self._items:
                self._handed_on.last = item
                return item

    def _begin_slice(self, piece: BatchSlice) -> None:
        """Begin to return the items of ``piece``.

        If its records cannot be decoded, the slice goes back into the queue, so that no record is skipped.
        """
        try:
            self._items = self._unfold(piece)
        except LiftError:
            self._ahead.put_back(piece)
            raise

    def at_once(self, count: int) -> list[Item]:
        """Return up to ``count`` next items that are already fetched. The call never waits and never raises an error."""
        items: list[Item] = []
        while not (self._waiting or self.replaced):
            items += islice(self._items, count - len(items))
            piece = None if len(items) >= count else self._ahead.at_once()
            if piece is None:
                break
            try:
                self._begin_slice(piece)
            except LiftError:
                break  # the next call raises the error
        if items:
            self._handed_on.last = items[-1]
        return items

    async def aclose(self) -> None:
        """End the iteration. A later iteration fetches the records again that were fetched and not returned."""
        self._items = iter(())
        await self._ahead.close()

    def replace(self) -> None:
        """Mark this iteration as replaced by a newer one. It returns no more items."""
        self.replaced, self._items = True, iter(())
        self._ahead.abandon()

    def __del__(self) -> None:
        self._ahead.abandon()
