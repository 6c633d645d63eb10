"""GroupThread: runs the metadata group in its own thread with its own event loop.

The event loop of the node may be busy with an election of thousands of partitions, a burst of fetches, or a report.
This does not delay Raft ticks, answers to frames and heartbeats. They wait only for the interpreter lock, which changes
threads twice a millisecond. A flush of the group's journal delays no partition.

Requests, their answers and the image cross the threads. The image is a frozen value. If images arrive faster than the
loop of the node processes them, the node sees only the newest one, as one change. The loop of the node reads all other
values without a lock.
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
from sidecar.metadata.group import MetadataGroup
from sidecar.metadata.group_role import GroupRole, MetadataConnection
from sidecar.runtime.tasks import elsewhere, fatal_on

_JOIN_TIMEOUT_S = 5.0
_SWITCH_S = 0.0005
"""Time after which Python passes the interpreter to a waiting thread, in seconds. The default of 5 ms would delay the group."""
_READS = 5
_ERRORS = {number: name.lower() for name, number in pb.ControlResponse.Error.items()}

T = TypeVar("T")


class GroupThread(MetadataGroup):
    """Metadata group for the event loop of the node. Its current backend runs in a thread with another event loop.

    ``make_link``: function that creates the NATS connection of the group, called in the thread. ``fatal``: called on the event
    loop of the node with an error that must stop the node.
    """

    def __init__(
        self,
        make_link: Callable[[], MetadataConnection],
        fatal: Callable[[Exception], None],
        instruments: Instruments | None = None,
    ) -> None:
        super().__init__()
        self._instruments = instruments or Instruments()
        self._make_link = make_link
        self._fatal = fatal
        self._home = asyncio.get_running_loop()
        self.loop: asyncio.AbstractEventLoop = type(self._home)()
        self._thread = threading.Thread(target=self._run, name="liftpy-group", daemon=True)
        self._link: MetadataConnection | None = None
        self._role: GroupRole | None = None
        self._newest = ClusterImage()
        """Newest image of the group, set by the thread."""
        self._shown = self._newest
        """Image that the watchers have received last."""
        self._announced = False
        """True if a call of ``_show`` is scheduled."""

    # ---- life ------------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def start(self) -> None:
        """Start the thread, connect to NATS and join the metadata group. Retry until the call is canceled.

        Return when the node has an image of the group.
        """

        def fatal_at_home(error: Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the node's loop has ended already
                self._home.call_soon_threadsafe(self._fatal, error)

        async def join() -> None:
            fatal_on(asyncio.get_running_loop(), fatal_at_home)
            self._link = self._make_link()
            self._role = await self._link.open(fatal_at_home)
            self._newest = self._shown = self._role.image
            self._role.watch(self._image_changed)

        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        await elsewhere(self.loop, join())

    async def stop(self) -> None:
        if not self._thread.is_alive():
            return
        if self._link is not None:
            await elsewhere(self.loop, self._link.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join, _JOIN_TIMEOUT_S)

    # ---- the image -------------------------------------------------------------------------------------------------------
    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Pass a new image to the event loop of the node, where the watchers get it. The method runs in the thread."""
        self._newest = new
        if not self._announced:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the node's loop has ended, and with it the watchers
                self._home.call_soon_threadsafe(self._show)

    def _show(self) -> None:
        self._announced = False  # before the image is read: a later image is announced again
        before, self._shown = self._shown, self._newest
        if self._shown is not before:
            self._notify(before, self._shown)

    # ---- MetadataGroup -------------------------------------------------------------------------------------------------
    @property
    def role(self) -> GroupRole:
        """Role of this node in the group. Use it only on ``loop``."""
        assert self._role is not None
        return self._role

    async def _call_in_thread(self, call: Callable[[MetadataGroup], Coroutine[Any, Any, T]]) -> T:
        """Call an async method of the current backend on the event loop of the thread, and return its result."""

        async def called() -> T:
            return await call(self.role.current)

        return await elsewhere(self.loop, called())

    @property
    def image(self) -> ClusterImage:
        """Image that the watchers have received last."""
        return self._shown

    @property
    def leader(self) -> str:
        return self.role.current.leader

    @property
    def is_controller(self) -> bool:
        return self.role.is_controller

    @property
    def decides(self) -> bool:
        return self.role.decides

    @property
    def counters(self) -> dict[str, int]:
        return _read_consistently(lambda: self.role.counters, {})

    @property
    def held(self) -> dict[str, int]:
        return _read_consistently(lambda: self.role.current.held, {})

    def distrust(self) -> None:
        self.loop.call_soon_threadsafe(lambda: self.role.current.distrust())

    def prefer(self, every_s: float) -> None:
        def there() -> None:
            if self._link is not None:
                self._link.prefer(every_s)

        self.loop.call_soon_threadsafe(there)

    def retire(self) -> None:
        """Prepare the stop of this node: it accepts no metadata leadership any more, from the next tick of the thread on."""
        self.role.retire()

    async def hand_over(self) -> None:
        await self._call_in_thread(lambda backend: backend.hand_over())

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Send ``request`` to the metadata leader and return its answer. Do not change the request before the answer."""
        began = time.monotonic()
        response = await self._call_in_thread(lambda backend: backend.propose(request, timeout_s))
        self._instruments.proposals.observe(time.monotonic() - began)
        if response.error != pb.ControlResponse.OK:
            self._instruments.proposals_failed[_ERRORS.get(response.error, "unknown")] += 1
        return response

    def status(self) -> list[pb.ControllerStatus]:
        return _read_consistently(lambda: self.role.current.status(), [])

    async def events(self, question: bytes) -> dict[str, Any] | None:
        return await self._call_in_thread(lambda backend: backend.events(question))

    def ticks(self) -> dict[str, float]:
        return _read_consistently(lambda: self.role.current.ticks(), {})


def _read_consistently(read: Callable[[], T], otherwise: T) -> T:
    """Call ``read`` and return its result. Retry if another thread changes a dictionary at the same time.

    ``otherwise``: result after repeated failures.
    """
    for _ in range(_READS):
        with contextlib.suppress(RuntimeError):
            return read()
    return otherwise
