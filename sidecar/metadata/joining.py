"""Joins the metadata group, as a controller or as a follower of the feed, on its own NATS connection.

The group's traffic has its own connection, so that no flood of data delays an election; nothing is kept in it over a reconnect,
because the group's sessions would take late frames for losses anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import nats.errors
from nats.aio.client import Client

from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.wire.subjects import GROUPS_INBOX, InboxRule, Subjects
from liftpy.errors import ConfigError
from liftpy.nats.parser import StrictConnection, watch_denials
from liftpy.nats.transport import open_connection
from sidecar.disk.data_folder import DataFolder
from sidecar.metadata.feed import FeedSubscriber
from sidecar.metadata.group_role import GroupRole
from sidecar.metadata.member import RaftMember
from sidecar.metadata.member_log import MemberFolder
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.credentials import Keys, RightsWatch

logger = logging.getLogger("liftpy.metadata")

_CONNECT_TIMEOUT_S = 5
_RECONNECT_WAIT_S = 0.1
_PING_INTERVAL_S = 1


class GroupLink:
    """The connection and the group on it. ``open`` connects, ``group.start`` joins, ``close`` leaves both.

    ``counters``: where messages are counted that the connection could not take.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: DataFolder,
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
        self._connection = StrictConnection(counters)
        self._group: GroupRole | None = None

    async def open(self, fatal: Callable[[Exception], None]) -> GroupRole:
        """Connect and join; returns when the local image is one that the group has had. Keeps trying until cancelled."""
        await self._connect()
        settings = self._settings
        rights = RightsWatch(settings.namespace, fatal, self._connection.errors)
        watch_denials(self._connection, rights.denied)

        def member(joins: ControllerList | None) -> RaftMember:
            opened = MemberFolder(
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
                fatal,
                self._inboxes.allows,
                elections=settings.elections,
                connect=self._connect_for_events,
            )

        self._group = GroupRole(
            settings,
            self._connection,
            self._subjects,
            member,
            lambda: FeedSubscriber(settings.node_id, self._connection, self._subjects),
            lambda: (self._folder.raft / "journal").exists(),
        )
        await self._group.start()
        rights.started()
        return self._group

    def prefer(self, every_s: float) -> None:
        """Set the interval, as in ``RaftMember``, also for a later role."""
        config = replace(self._settings.replication, preferred_leader_interval_s=every_s)
        self._settings = replace(self._settings, replication=config)
        if self._group is not None:
            self._group.prefer(every_s)

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
                self._connection = StrictConnection(self._connection.errors)
                await asyncio.sleep(_RECONNECT_WAIT_S)

    async def _error(self, error: Exception) -> None:
        if isinstance(error, (nats.errors.Error, OSError, TimeoutError)):
            logger.debug("NATS, group's connection: %r", error)
            return
        self._connection.errors["messages not taken"] += 1
        logger.error("NATS, group's connection: a message can't be taken: %r", error, exc_info=error)

    async def _disconnected(self) -> None:
        if self._group is not None:
            self._group.bus_changed(False)

    async def _reconnected(self) -> None:
        if self._group is not None:
            self._group.bus_changed(True)

    async def close(self) -> None:
        """Hand leadership over, leave, disconnect."""
        if self._group is not None:
            await self._group.stop()
        with contextlib.suppress(Exception):
            await self._connection.flush(1)
        with contextlib.suppress(Exception):
            await self._connection.close()
