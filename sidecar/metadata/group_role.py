"""GroupRole: how this node takes part in the metadata group now: as one of the controllers, or by their feed. It changes in place.

The group's log says who the controllers are [M10]; the settings say it only where nobody has changed them. So a node whose feed names
it becomes a member beside its feed, and takes it in the feed's place once it has caught up: until then nothing is asked of it that it
does not know. A member that the log names no longer follows the feed first, and stops being one then. The image that is shown never
goes back, and whoever watches it sees one change.

A single controller that starts on a new folder asks first whether a group runs: others may have joined it since its settings were
written, and it must not begin a second one beside them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, LiftError, StorageError
from liftpy.nats.cancellation import end_tasks
from sidecar.metadata.feed import FeedSubscriber
from sidecar.metadata.group import Watcher
from sidecar.metadata.member import RaftMember
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.metadata")

_LOOK_S = 0.1
"""Time between a change of the image and the check of the role, in seconds."""
_LOOK_WITHOUT_CHANGE_S = 0.5
"""Time between two checks of the role without a change of the image, in seconds."""
_ASK_TIMEOUT_S = 0.3
_ASK_TIMES = 3
"""For a group that runs. Where nobody listens the bus says so at once."""
_SAY_EVERY_S = 60.0
STORAGE_AGAIN_S = 5.0
"""Between two tries to become a controller on a disk that takes nothing."""

MakeMember = Callable[[ControllerList | None], RaftMember]


class GroupRole:
    """Part of this node in the metadata group, as controller or feed follower.

    It implements ``MetadataGroup``. ``make_member``: opens the ``raft`` directory with the given controllers, or those of the
    settings (None). ``has_journal``: whether that directory has a journal.
    """

    def __init__(
        self,
        settings: NodeSettings,
        connection: Client,
        subjects: Subjects,
        make_member: MakeMember,
        make_feed: Callable[[], FeedSubscriber],
        has_journal: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._subjects = subjects
        self._make_member = make_member
        self._make_feed = make_feed
        self._has_journal = has_journal
        self._current: RaftMember | FeedSubscriber | None = None
        self._next: RaftMember | FeedSubscriber | None = None
        """Takes the place of the current one as soon as it knows as much."""
        self._watchers: list[Watcher] = []
        self._counted: Counter[str] = Counter()
        """By roles that are over."""
        self._left_at = -1
        """Index of the list that named this node no longer."""
        self._stays = False
        """The node stops: no role is taken any more."""
        self.decides = False
        """What it shows was committed: it is a controller, and has never followed the feed in this process."""
        self._look_due = asyncio.Event()
        self._image_changed = False
        """Since the last check of the role."""
        self._said: tuple[str, ...] = ()
        self._say_at = 0.0
        self._task: asyncio.Task[None] | None = None

    # ---- life ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Take part; returns when the local image is one that the group has had."""
        if not await self._start_as_member():
            self._current = feed = self._make_feed()
            await feed.start()
        self.current.watch(self._changed)
        self._task = spawn(self._look(), "taking part in the metadata group", endless=True)

    async def _start_as_member(self) -> bool:
        """Return whether this node is a controller, by its own log or else by its settings."""
        named = self._settings.is_controller
        if not self._has_journal() and not (named and await self._may_begin()):
            return False
        self._current = member = self._make_member(None)
        if member.controllers.index == 0 and not named:
            await member.stop()
            if member.has_voted:
                raise ConfigError(
                    f"controllers = {', '.join(self._settings.controllers)} does not contain this node, but "
                    f"{self._settings.node_id} is a member of the metadata group (its raft directory shows it). Add it to "
                    f"the setting. To remove it from the group, use: liftpy controllers remove {self._settings.node_id}"
                )
            return False
        if member.is_member:
            await member.start()
        if not member.is_member:
            self._left_at = member.left_at
            await member.stop()
            return False
        self.decides = True
        return True

    async def _may_begin(self) -> bool:
        """Return whether the settings define the controllers of a new directory."""
        if len(self._settings.controllers) > 1:
            return True  # whoever is left of the others knows better, and says so (``probation.py``)
        request = pb.FeedSnapshotRequest(nodeId=self._settings.node_id)
        for _ in range(_ASK_TIMES):
            try:
                subject = self._subjects.feed_snapshot()
                answer = await self._connection.request(subject, frames.sealed(request), timeout=_ASK_TIMEOUT_S)
                found = frames.decode(answer.data, pb.FeedSnapshotResponse)
            except nats.errors.NoRespondersError:
                return True
            except (nats.errors.Error, TimeoutError, OSError, LiftError):
                continue
            if found.index:
                logger.warning(
                    "%s names only itself as controller, but a metadata group runs; joining as a node", request.nodeId
                )
                return False
        return True

    async def stop(self) -> None:
        """Stop."""
        self._stays = True
        await end_tasks([self._task])
        for group in (self._next, self._current):
            if group is not None:
                await group.stop()

    # ---- the role ------------------------------------------------------------------------------------------------------
    @property
    def current(self) -> RaftMember | FeedSubscriber:
        """Current part of this node in the group."""
        assert self._current is not None
        return self._current

    @property
    def is_controller(self) -> bool:
        """Whether this node is a controller now."""
        return isinstance(self._current, RaftMember)

    @property
    def controllers(self) -> ControllerList:
        """Controllers in the image, or in the settings without an image."""
        return self.image.controllers

    async def _look(self) -> None:
        while True:
            if await self._is_image_changed(_LOOK_WITHOUT_CHANGE_S):
                await asyncio.sleep(_LOOK_S)
            self._say_where_settings_differ()
            current = self.current
            if self._stays:
                continue
            if isinstance(current, RaftMember):
                if not current.is_member:
                    await self._follow_the_feed(current)
            elif self._is_named():
                await self._become_a_member(current)

    async def _is_image_changed(self, wait_s: float) -> bool:
        """Wait for a change of the image, at most ``wait_s``. Return whether there was one."""
        timer = asyncio.get_running_loop().call_later(wait_s, self._look_due.set)
        try:
            await self._look_due.wait()
        finally:
            timer.cancel()
        self._look_due.clear()
        changed, self._image_changed = self._image_changed, False
        return changed

    def _is_named(self) -> bool:
        named = self.controllers
        return named.names(self._settings.node_id) and named.index > self._left_at

    async def _become_a_member(self, feed: FeedSubscriber) -> None:
        logger.info("%s starts as controller: %s", self._settings.node_id, self.controllers.said())
        try:
            self._next = member = self._make_member(self.controllers)
            await member.start()  # bounded by being named: who is taken back is told so
        except (StorageError, OSError) as error:  # its disk is full, say: a node that only follows the feed goes on without
            again = f"trying again in {STORAGE_AGAIN_S:g} s, free space or take it out with: liftpy controllers remove"
            logger.error("%s cannot become a controller: %s: %s", self._settings.node_id, error, again)
            made, self._next = self._next, None
            if made is not None:
                await made.stop()
            await asyncio.sleep(STORAGE_AGAIN_S)
            return
        if not member.is_member or self._stays:
            self._left_at = max(self._left_at, member.left_at)
            self._next = None
            await member.stop()
            return
        await self._take(member)
        await feed.stop()
        logger.info("%s is a controller", self._settings.node_id)

    async def _follow_the_feed(self, member: RaftMember) -> None:
        logger.warning("%s is no longer a controller; following the metadata feed", self._settings.node_id)
        self.decides = False
        self._left_at = member.left_at
        self._next = feed = self._make_feed()
        await feed.start()
        await self._take(feed)
        await member.stop()

    async def _take(self, fresh: RaftMember | FeedSubscriber) -> None:
        """Show the image of ``fresh`` from now on."""
        while fresh.image.index < self.image.index:
            await asyncio.sleep(_LOOK_S)
        before = self.image
        self._counted.update(self.current.counters)  # what was counted never falls while the process lives
        self._current, self._next = fresh, None
        fresh.watch(self._changed)
        self._show(before, fresh.image)

    def _say_where_settings_differ(self) -> None:
        """Log if the settings name other controllers than the image: after a change, and from time to time."""
        now = self.controllers
        if not now.index or now.voters == tuple(sorted(self._settings.controllers)):
            return
        if now.voters != self._said or time.monotonic() >= self._say_at:
            self._said, self._say_at = now.voters, time.monotonic() + _SAY_EVERY_S
            logger.warning(
                "the settings name the controllers %s, and the group's log %s: the log holds; correct the settings before the next "
                "start on an empty folder",
                ", ".join(sorted(self._settings.controllers)),
                ", ".join(now.voters),
            )

    # ---- MetadataGroup -------------------------------------------------------------------------------------------------
    def _changed(self, before: ClusterImage, image: ClusterImage) -> None:
        if image is self.image:  # else of the one before, which is about to end
            self._show(before, image)

    def _show(self, before: ClusterImage, image: ClusterImage) -> None:
        self._image_changed = True
        self._look_due.set()
        for watcher in self._watchers:
            watcher(before, image)

    @property
    def image(self) -> ClusterImage:
        """The newest image that this node has."""
        return self.current.image

    @property
    def leader(self) -> str:
        """Known metadata leader."""
        return self.current.leader

    @property
    def counters(self) -> dict[str, int]:
        """Counters as in ``MetadataGroup``, over all roles so far."""
        counted = Counter(self._counted)
        counted.update(self.current.counters)
        return dict(counted)

    @property
    def held(self) -> dict[str, int]:
        """Values as in ``MetadataGroup``."""
        return self.current.held

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image, whatever the role."""
        self._watchers.append(callback)

    def distrust(self) -> None:
        """Request the image again, as in ``MetadataGroup``."""
        self.current.distrust()

    def bus_changed(self, online: bool) -> None:
        """The connection was lost or is back."""
        for group in (self._current, self._next):
            if group is not None:
                group.bus_changed(online)

    def prefer(self, every_s: float) -> None:
        """Set the interval, as in ``RaftMember``, now and after a change of the role."""
        for role in (self._current, self._next):
            if isinstance(role, RaftMember):
                role.prefer(every_s)

    def retire(self) -> None:
        """Prepare the stop, as in ``MetadataGroup``. The role does not change any more."""
        self._stays = True
        self.current.retire()

    async def hand_over(self) -> None:
        """Transfer the leadership, as in ``MetadataGroup``."""
        await self.current.hand_over()

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Propose a request, as in ``MetadataGroup``."""
        return await self.current.propose(request, timeout_s)

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Wait for a barrier, as in ``MetadataGroup``."""
        return await self.current.barrier(timeout_s)

    def status(self) -> list[pb.ControllerStatus]:
        """Return the members, as in ``MetadataGroup``."""
        return self.current.status()

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """Return the events, as in ``MetadataGroup``."""
        return await self.current.events(question)

    def ticks(self) -> dict[str, float]:
        """Return the ticks, as in ``MetadataGroup``."""
        return self.current.ticks()
