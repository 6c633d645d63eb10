"""GroupThread: runs the metadata group in its own thread with its own event loop.

However long the partitions of a node keep their loop (an election of thousands, a burst of fetches, a report), Raft ticks, frames are
answered and heartbeats leave: they wait for the interpreter only, which changes threads twice a millisecond here. And a flush of the
group's journal keeps no partition waiting.

What crosses over is little: requests and their answers, and the image, a frozen value. Of images that come faster than the node's loop
turns, only the newest is shown, as one change. Nothing else of the group is touched from the node's loop but to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata.group import Watcher
from sidecar.metadata.group_role import GroupLink, GroupRole
from sidecar.runtime.tasks import elsewhere, fatal_on

_JOIN_TIMEOUT_S = 5.0
_SWITCH_S = 0.0005
"""After which a thread that waits for the interpreter is given it. Python's own 5 ms add up: the group waits several times a tick."""
_READS = 5
_ERRORS = {number: name.lower() for name, number in pb.ControlResponse.Error.items()}

T = TypeVar("T")


class GroupThread:
    """The metadata group in a thread.

    It implements ``MetadataGroup`` on the loop of the node. ``make_link`` is called in the thread.
    """

    def __init__(self, make_link: Callable[[], GroupLink], instruments: Instruments | None = None) -> None:
        self._instruments = instruments or Instruments()
        self._make_link = make_link
        self._home = asyncio.get_running_loop()
        self.loop: asyncio.AbstractEventLoop = type(self._home)()
        """The group's own loop."""
        self._thread = threading.Thread(target=self._run, name="liftpy-group", daemon=True)
        self._link: GroupLink | None = None
        self._inner: GroupRole | None = None
        self._watchers: list[Watcher] = []
        self._newest = ClusterImage()
        """As the group has it; written in the thread."""
        self._shown = self._newest
        """As the watchers have seen it."""
        self._announced = False
        """``_show`` is on its way."""

    # ---- life ------------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def open(self, fatal: Callable[[Exception], None]) -> GroupThread:
        """Connect and join, as ``GroupLink.open``. ``fatal`` is called on the node's loop."""

        def fatal_at_home(error: Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the node's loop has ended already
                self._home.call_soon_threadsafe(fatal, error)

        async def join() -> None:
            fatal_on(asyncio.get_running_loop(), fatal_at_home)
            self._link = self._make_link()
            self._inner = await self._link.open(fatal_at_home)
            self._newest = self._shown = self._inner.image
            self._inner.watch(self._changed)

        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        await self.there(join())
        return self

    async def there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop of the group and return its result."""
        return await elsewhere(self.loop, work)

    async def close(self) -> None:
        """Hand leadership over, leave, disconnect, end the thread."""
        if not self._thread.is_alive():
            return
        if self._link is not None:
            await self.there(self._link.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join, _JOIN_TIMEOUT_S)

    # ---- the image -------------------------------------------------------------------------------------------------------
    def _changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Pass an image change on. It runs in the thread."""
        self._newest = new
        if not self._announced:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the node's loop has ended: nobody watches
                self._home.call_soon_threadsafe(self._show)

    def _show(self) -> None:
        self._announced = False  # before the look: what comes after it is announced again
        before, self._shown = self._shown, self._newest
        if self._shown is not before:
            for watcher in self._watchers:
                watcher(before, self._shown)

    # ---- MetadataGroup -----------------------------------------------------------------------------------------------------------
    @property
    def inner(self) -> GroupRole:
        """The group itself, for calls on its own loop."""
        assert self._inner is not None
        return self._inner

    @property
    def image(self) -> ClusterImage:
        """The image as the watchers have seen it."""
        return self._shown

    @property
    def is_controller(self) -> bool:
        """Whether this node is a controller now."""
        return self.inner.is_controller

    @property
    def decides(self) -> bool:
        """Whether the image is certainly committed, and not only received on the feed."""
        return self.inner.decides

    @property
    def leader(self) -> str:
        """Known metadata leader."""
        return self.inner.leader

    @property
    def counters(self) -> dict[str, int]:
        """Counters, as in ``MetadataGroup``."""
        return _read(lambda: self.inner.counters, {})

    @property
    def held(self) -> dict[str, int]:
        """Values, as in ``MetadataGroup``."""
        return _read(lambda: self.inner.held, {})

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` on the node's loop after changes of the image."""
        self._watchers.append(callback)

    def distrust(self) -> None:
        """Request the image again, as in ``MetadataGroup``."""
        self.loop.call_soon_threadsafe(self.inner.distrust)

    def prefer(self, every_s: float) -> None:
        """Set the interval, as in ``GroupLink``."""

        def there() -> None:
            if self._link is not None:
                self._link.prefer(every_s)

        self.loop.call_soon_threadsafe(there)

    async def start(self) -> None:
        """``open`` has done it."""

    def retire(self) -> None:
        """Prepare the stop. The next tick of the group sees it."""
        self.inner.retire()

    async def hand_over(self) -> None:
        """Transfer the leadership, as in ``MetadataGroup``."""
        await self.there(self.inner.hand_over())

    async def stop(self) -> None:
        """Stop, as ``close``."""
        await self.close()

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Propose a request, as in ``MetadataGroup``. Do not change it before the answer."""
        began = time.monotonic()
        response = await self.there(self.inner.propose(request, timeout_s))
        self._instruments.proposals.observe(time.monotonic() - began)
        if response.error != pb.ControlResponse.OK:
            self._instruments.proposals_failed[_ERRORS.get(response.error, "unknown")] += 1
        return response

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Wait for a barrier, as in ``MetadataGroup``. The watchers have seen the image, too."""
        done = await self.there(self.inner.barrier(timeout_s))
        self._show()
        return done

    def status(self) -> list[pb.ControllerStatus]:
        """Return the members as known here."""
        return _read(self.inner.status, [])

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """Return the events, as in ``MetadataGroup``."""
        return await self.there(self.inner.events(question))

    def ticks(self) -> dict[str, float]:
        """Return the ticks, as in ``MetadataGroup``."""
        return _read(self.inner.ticks, {})


def _read(read: Callable[[], T], otherwise: T) -> T:
    """Return the result of ``read``, even if the thread changes the dictionaries meanwhile.

    ``otherwise``: result after repeated failures.
    """
    for _ in range(_READS):
        with contextlib.suppress(RuntimeError):
            return read()
    return otherwise
