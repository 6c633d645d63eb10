"""``GroupRole``: chooses the backend of the metadata group on this node: ``RaftMember`` on a controller, otherwise
``FeedSubscriber``.

The log of the group names the controllers [M10]. The settings apply only until the first change. If the feed names this
node as a controller, the node starts a member and keeps its feed. When the member has caught up, the node takes its
image from the member. If the log no longer names the node, it first follows the feed, then stops the member. The image
never goes back, and watchers see one change.

If the disk of a controller is full, its member stops, and the node follows the feed. It opens the member again when there
is space. So the node keeps its partitions and reports its full disk.

A single controller with a new directory first asks whether a group runs. Other controllers may have joined the group
since the settings were written, and the node must not start a second group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import nats.errors
from nats.aio.client import Client

from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_INBOX, InboxRule, Subjects
from liftpy.errors import ConfigError, LiftError, StorageError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.parser import watch_denials
from liftpy.nats.transport import open_connection
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.feed import FeedSubscriber
from sidecar.metadata.group import Watcher
from sidecar.metadata.member import RaftMember
from sidecar.metadata.member_log import MemberDirectory
from sidecar.runtime.restarts import is_temporary
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn
from sidecar.runtime.timers import until_next_s
from sidecar.transport.connection import BusConnection, check_nats_py
from sidecar.transport.credentials import Keys, PermissionWatch

logger = logging.getLogger("liftpy.metadata")

_CHECK_INTERVAL_S = 0.1
"""Time between a change of the image and the check of the role, in seconds."""
_CHECK_WITHOUT_CHANGE_S = 1.0
"""Time between two checks of the role without a change of the image, in seconds."""
_ASK_TIMEOUT_S = 0.3
_ASK_LOG_AFTER_S = 3.0
"""Time after which a request for a running group without a clear answer is logged, in seconds."""
_LOG_PERIOD_S = 60.0
SILENCE_S = 15.0
"""Time without any answer, on a live connection, after which a single controller assumes that no group runs, in seconds."""
STORAGE_AGAIN_S = 5.0
"""Time after which a node tries again to become a controller after a storage error, in seconds."""
FEED_TIMEOUT_S = 15.0
"""Time within which a node whose member failed must receive the feed, in seconds. Otherwise the node restarts."""

MakeMember = Callable[[ControllerList | None], RaftMember]
_CONNECT_TIMEOUT_S = 5
_RECONNECT_WAIT_S = 0.1
_PING_INTERVAL_S = 1


class GroupRole:
    """Chooses the backend of the metadata group on this node: member or subscriber of the feed.

    ``make_member``: opens the ``raft`` directory with the given controllers. None: those in the settings.
    ``has_journal``: returns whether that directory has a journal. ``fatal``: called with an error that must stop the node.
    """

    def __init__(
        self,
        settings: NodeSettings,
        connection: Client,
        subjects: Subjects,
        make_member: MakeMember,
        make_feed: Callable[[], FeedSubscriber],
        has_journal: Callable[[], bool],
        fatal: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._subjects = subjects
        self._make_member = make_member
        self._make_feed = make_feed
        self._has_journal = has_journal
        self._fatal = fatal
        self._failure: Exception | None = None
        """Error of the member that failed last, until the node has replaced the member."""
        self._was_first_member = False
        """True if a member of this process failed before the first change of the controllers, so the image has no list of them."""
        self._current: RaftMember | FeedSubscriber | None = None
        self._next: RaftMember | FeedSubscriber | None = None
        """Backend that will replace the current one as soon as its image is as new. None: no change is in progress."""
        self._watchers: list[Watcher] = []
        self._counted: Counter[str] = Counter()
        """Sums of the counters of the earlier backends."""
        self._left_at = -1
        """Index of the entry whose controller list removed this node. -1: not removed."""
        self._stays = False
        """True if the node stops. Then the backend no longer changes."""
        self.decides = False
        """True if the image is certainly committed: the node is a controller and has not followed the feed in this process."""
        self._check_due = asyncio.Event()
        self._image_changed = False
        """True if the image changed since the last check of the role."""
        self._logged: tuple[str, ...] = ()
        self._next_log_s = 0.0
        self._task: asyncio.Task[None] | None = None

    # ---- life ----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        if not await self._start_as_member():
            self._current = feed = self._make_feed()
            await feed.start()
        self.current.watch(self._process_image_change)
        self._task = spawn(self._follow_role(), "running the metadata member", endless=True)

    async def _start_as_member(self) -> bool:
        """Start as a controller if the own log names this node as one. Without a log, the settings decide.

        Return whether the node started as a controller.
        """
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
            self._left_at = member.removed_at
            await member.stop()
            return False
        self.decides = True
        return True

    async def _may_begin(self) -> bool:
        """Return whether this node may start a new metadata group with its new directory.

        False: it is the only controller in the settings, but a group runs already. "No responders" of NATS proves that no group
        runs. A subscriber of all subjects, such as ``nats sub '>'``, prevents this answer. So a long silence counts, too.
        """
        if len(self._settings.controllers) > 1:
            return True  # the other controllers say if a group exists (``probation.py``)
        request = pb.FeedSnapshotRequest(nodeId=self._settings.node_id)
        next_log_s = time.monotonic() + _ASK_LOG_AFTER_S
        silent_since_s: float | None = None
        while True:
            is_silent = False
            try:
                subject = self._subjects.feed_snapshot()
                answer = await self._connection.request(subject, frames.seal(request), timeout=_ASK_TIMEOUT_S)
                if frames.decode(answer.data, pb.FeedSnapshotResponse).index:
                    break
                reason = "another controller runs, but has no metadata yet. Set controllers to the list of that node"
            except nats.errors.NoRespondersError:
                return True
            except (nats.errors.Error, TimeoutError, OSError, LiftError) as error:
                reason = f"a controller may run, but does not answer: {error!r}"
                is_silent = isinstance(error, TimeoutError) and self._connection.is_connected
            silent_since_s = (silent_since_s or time.monotonic()) if is_silent else None
            if silent_since_s is not None and time.monotonic() >= silent_since_s + SILENCE_S:
                logger.warning("no controller answers node=%s seconds=%d: starting a metadata group", request.nodeId, SILENCE_S)
                return True
            if time.monotonic() >= next_log_s:
                next_log_s = time.monotonic() + _LOG_PERIOD_S
                logger.warning("metadata group not ruled out node=%s reason=%s: asking again", request.nodeId, reason)
            await asyncio.sleep(_CHECK_INTERVAL_S)
        logger.warning(
            "settings name only this node as controller node=%s, but a metadata group runs: joining it as a node",
            request.nodeId,
        )
        return False

    async def stop(self) -> None:
        self._stays = True
        await end_tasks([self._task])
        for backend in reversed(self.backends):
            await backend.stop()

    # ---- the role ------------------------------------------------------------------------------------------------------
    @property
    def current(self) -> RaftMember | FeedSubscriber:
        assert self._current is not None
        return self._current

    @property
    def backends(self) -> list[RaftMember | FeedSubscriber]:
        return [backend for backend in (self._current, self._next) if backend is not None]

    @property
    def is_controller(self) -> bool:
        return isinstance(self._current, RaftMember)

    @property
    def controllers(self) -> ControllerList:
        return self.image.controllers

    async def _follow_role(self) -> None:
        while True:
            if await self._is_image_changed(_CHECK_WITHOUT_CHANGE_S):
                await asyncio.sleep(_CHECK_INTERVAL_S)
            self._warn_if_settings_differ()
            current = self.current
            if self._stays:
                continue
            if isinstance(current, RaftMember):
                if self._failure is not None:
                    await self._replace_failed_member(current, self._failure)
                elif not current.is_member:
                    await self._follow_the_feed(current)
            elif self._is_named():
                await self._become_a_member(current)

    async def _is_image_changed(self, wait_s: float) -> bool:
        """Wait for a change of the image, at most until the next multiple of ``wait_s``. Return whether there was one."""
        timer = asyncio.get_running_loop().call_later(until_next_s(wait_s), self._check_due.set)
        try:
            await self._check_due.wait()
        finally:
            timer.cancel()
        self._check_due.clear()
        changed, self._image_changed = self._image_changed, False
        return changed

    def _is_named(self) -> bool:
        named = self.controllers
        if not named.index:
            return self._was_first_member
        return named.names(self._settings.node_id) and named.index > self._left_at

    async def _become_a_member(self, feed: FeedSubscriber) -> None:
        named = self.controllers if self.controllers.index else None
        text = named.as_text() if named is not None else "the controllers of the settings"
        logger.info("controller starting node=%s reason=%s", self._settings.node_id, text)
        try:
            self._next = member = self._make_member(named)
            await member.start()  # it ends if this node is removed again, or if the member fails
            if member.is_member and not self._stays:
                await self._until_as_new(member)
        except (StorageError, OSError) as error:  # for example a full disk. The node continues to follow the feed
            again = f"trying again in {STORAGE_AGAIN_S:g} s, free space or take it out with: liftpy controllers remove"
            logger.error("controller not started node=%s error=%s: %s", self._settings.node_id, error, again)
            membership, self._next = self._next, None
            if membership is not None:
                await membership.stop()
            self._failure = None
            await asyncio.sleep(STORAGE_AGAIN_S)
            return
        if not member.is_member or self._stays:
            self._left_at = max(self._left_at, member.removed_at)
            self._next = None
            await member.stop()
            return
        self._use_backend(member)
        await feed.stop()
        logger.info("controller started node=%s", self._settings.node_id)

    async def _follow_the_feed(self, member: RaftMember) -> None:
        logger.warning("controller stopped node=%s: following the metadata feed", self._settings.node_id)
        self.decides = False
        self._left_at = member.removed_at
        self._next = feed = self._make_feed()
        await feed.start()
        await self._until_as_new(feed)
        self._use_backend(feed)
        await member.stop()

    def member_failed(self, error: Exception) -> None:
        """Process that the member of this node has failed. After a temporary disk error, the node continues without the member.

        Otherwise the node stops: if no other controller can send the feed, and if the node still starts.
        """
        member = self.backends[-1] if self.backends else None
        is_alone = not isinstance(member, RaftMember) or len(member.controllers.voters) < 2
        if self._stays or self._task is None or is_alone or not is_temporary(error):
            self._fatal(error)
            return
        self._failure = error
        self._check_due.set()

    async def _replace_failed_member(self, member: RaftMember, error: Exception) -> None:
        """Follow the feed, because the disk of the member failed. Stop the node if no controller sends the feed in time."""
        logger.error(
            "controller out of service node=%s error=%s: following the metadata feed, retrying every %g s",
            self._settings.node_id,
            error,
            STORAGE_AGAIN_S,
        )
        self.decides = False
        self._was_first_member |= not member.image.controllers.index  # its log may have an uncommitted list
        await member.stop()
        self._failure = None
        self._next = feed = self._make_feed()
        try:
            async with asyncio.timeout(FEED_TIMEOUT_S):
                await feed.start()
                await self._until_as_new(feed)
        except TimeoutError:
            self._fatal(error)
            self._stays = True
            return
        self._use_backend(feed)
        await asyncio.sleep(STORAGE_AGAIN_S)

    async def _until_as_new(self, fresh: RaftMember | FeedSubscriber) -> None:
        """Wait until ``fresh`` has an image that is as new as that of the current backend.

        Raise the error of a member that fails before that.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if fresh.image.index >= self.image.index:
                return
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def _use_backend(self, fresh: RaftMember | FeedSubscriber) -> None:
        """Make ``fresh`` the current backend. The watchers get its image as one change."""
        before = self.image
        self._counted.update(self.current.counters)  # what was counted never falls while the process lives
        self._current, self._next = fresh, None
        fresh.watch(self._process_image_change)
        self._show(before, fresh.image)

    def _warn_if_settings_differ(self) -> None:
        """Log a warning if the settings name other controllers than the image. It is repeated from time to time."""
        now = self.controllers
        if not now.index or now.voters == tuple(sorted(self._settings.controllers)):
            return
        if now.voters != self._logged or time.monotonic() >= self._next_log_s:
            self._logged, self._next_log_s = now.voters, time.monotonic() + _LOG_PERIOD_S
            logger.warning(
                (
                    "controllers in the settings differ from the metadata log settings=%s log=%s: using the log. Correct "
                    "the setting controllers before this node starts with an empty data directory"
                ),
                ", ".join(sorted(self._settings.controllers)),
                ", ".join(now.voters),
            )

    # ---- what is seen of it --------------------------------------------------------------------------------------------
    def _process_image_change(self, before: ClusterImage, image: ClusterImage) -> None:
        if image is self.image:  # else of the one before, which is about to end
            self._show(before, image)

    def _show(self, before: ClusterImage, image: ClusterImage) -> None:
        self._image_changed = True
        self._check_due.set()
        for watcher in self._watchers:
            watcher(before, image)

    @property
    def image(self) -> ClusterImage:
        return self.current.image

    @property
    def counters(self) -> dict[str, int]:
        """Sums of the counters of all backends that this process has had, by kind."""
        counted = Counter(self._counted)
        counted.update(self.current.counters)
        return dict(counted)

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image, also after a change of the backend."""
        self._watchers.append(callback)

    def retire(self) -> None:
        """Prepare the stop of this node: it does not become metadata leader, and its backend does not change any more."""
        self._stays = True
        self.current.retire()


# ---- connection ------------------------------------------------------------------------------------------------------


class MetadataConnection:
    """NATS connection of the metadata group, and the role of this node on it: controller or follower of the feed.

    The group's traffic has its own connection, so that data does not delay an election. The connection keeps no messages over a
    reconnect, because the sessions of the group treat late frames as lost.

    ``open`` connects and joins, ``close`` leaves and disconnects. ``counters``: counts messages that could not be sent.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: DataDirectory,
        subjects: Subjects,
        inboxes: InboxRule,
        counters: Counter[str],
        instruments: Instruments | None = None,
        keys: Keys | None = None,
    ) -> None:
        self._keys = keys or Keys(settings.credentials)
        self._instruments = instruments or Instruments()
        if not settings.controllers:
            raise ConfigError(
                "The setting controllers is missing. Name the nodes of the metadata group (--controllers). A single "
                "node names itself."
            )
        self._settings = settings
        self._folder = folder
        self._subjects = subjects
        self._inboxes = inboxes
        self._connection = BusConnection("group", errors=counters)
        self._role: GroupRole | None = None

    async def open(self, fatal: Callable[[Exception], None]) -> GroupRole:
        """Connect to NATS and join the metadata group. Return the role when the node has an image. Retry until the call is canceled.

        ``fatal``: called with an error that must stop the node.
        """
        check_nats_py()
        await self._connect()
        settings = self._settings
        rights = PermissionWatch(settings.namespace, fatal, self._connection.errors)
        watch_denials(self._connection, rights.record_denial)

        def member(joins: ControllerList | None) -> RaftMember:
            opened = MemberDirectory(
                settings.node_id,
                settings.controllers,
                self._folder.raft,
                settings.bootstrap_majority,
                joins=joins,
                instruments=self._instruments,
            )
            return RaftMember(
                opened,
                self._connection,
                self._subjects,
                self._settings.replication,
                self._member_failed,
                self._inboxes.allows,
                elections=settings.elections,
                connect=self._connect_for_events,
            )

        self._role = GroupRole(
            settings,
            self._connection,
            self._subjects,
            member,
            lambda: FeedSubscriber(settings.node_id, self._connection, self._subjects),
            lambda: (self._folder.raft / "journal").exists(),
            fatal,
        )
        await self._role.start()
        rights.start_completed()
        return self._role

    def _member_failed(self, error: Exception) -> None:
        assert self._role is not None
        self._role.member_failed(error)

    def prefer(self, every_s: float) -> None:
        """Set how often a controller moves leaderships back to preferred leaders, also for a later backend.

        ``every_s``: seconds, 0: never.
        """
        config = replace(self._settings.replication, preferred_leader_interval_s=every_s)
        self._settings = replace(self._settings, replication=config)
        for backend in self._backends():
            backend.prefer(every_s)

    def _backends(self) -> list[RaftMember | FeedSubscriber]:
        return self._role.backends if self._role is not None else []

    async def _connect_for_events(self) -> Client:
        connection = await open_connection(
            list(self._settings.nats),
            credentials=(credentials := self._keys.credentials),
            name=f"liftpy-{self._settings.node_id}-events",
            inbox_prefix=GROUPS_INBOX.encode(),
        )
        self._keys.add(connection, credentials)
        return connection

    async def _connect(self) -> None:
        while True:
            credentials = self._keys.credentials
            try:
                await self._connection.connect(
                    servers=list(self._settings.nats),
                    name=f"liftpy-{self._settings.node_id}-group",
                    error_cb=self._error,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    closed_cb=self._disconnected,
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=_RECONNECT_WAIT_S,
                    ping_interval=_PING_INTERVAL_S,
                    max_outstanding_pings=2,
                    pending_size=0,
                    inbox_prefix=self._subjects.inbox(self._settings.node_id).encode(),
                    **credentials.nats_options(),
                )
                self._connection.options["max_reconnect_attempts"] = -1
                self._keys.add(self._connection, credentials)
                return
            except (OSError, TimeoutError, nats.errors.Error):
                with contextlib.suppress(Exception):
                    await self._connection.close()
                backoff = self._connection.reconnect_backoff
                self._connection = BusConnection("group", errors=self._connection.errors)
                self._connection.reconnect_backoff = backoff
                await asyncio.sleep(max(_RECONNECT_WAIT_S, backoff.pause_s()))

    async def _error(self, error: Exception) -> None:
        if isinstance(error, (nats.errors.Error, OSError, TimeoutError)):
            logger.debug("metadata group connection error=%r", error)
            return
        self._connection.errors["not_taken"] += 1
        logger.error("metadata group message failed error=%r: dropping the message", error, exc_info=error)

    async def _disconnected(self) -> None:
        for backend in self._backends():
            backend.bus_changed(False)

    async def _reconnected(self) -> None:
        for backend in self._backends():
            backend.bus_changed(True)

    async def close(self) -> None:
        if self._role is not None:
            await self._role.stop()
        with contextlib.suppress(Exception):
            await self._connection.flush(1)
        with contextlib.suppress(Exception):
            await self._connection.close()
