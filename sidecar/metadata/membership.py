"""Registers this node with a new incarnation, and sends the heartbeats that keep session and lease alive.

An answered heartbeat extends the lease from the moment at which the heartbeat was SENT. The local image must be as new
as the answer, because a node that was paused must first learn which leaderships it has lost [D22].

The event loop of the metadata group sends the heartbeats, independently of the node's partitions. A node whose own loop
is blocked serves no client and must not count as live. If that loop has processed no answer for a session time, the
node sends no heartbeat until the loop runs again. Only answers that the node's loop processes extend leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client

from liftpy import __version__
from liftpy.client.closest_replica import this_host
from liftpy.config import NS_PER_S, ReplicationConfig, SessionTimes
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.data_deletion import continues
from liftpy.core.metadata.features import DAMAGED_LOGS, SUPPORTED_LEVELS
from liftpy.core.metadata.idempotency import UNDECIDED, RetryPauses
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import (
    DEFAULT_WAIT_S,
    DirectoryIdentity,
    EarlierProcessCheck,
    EarlierProcessSign,
    EarlierProcessStep,
)
from liftpy.core.metadata.sessions import AnsweredHeartbeats, RegistrationOutcome, heartbeat_every_s, registration_result
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import FencedError, IncompatibleVersionError, LiftError, NodeRemovedError
from sidecar.metadata.group_role import GroupRole
from sidecar.metadata.group_thread import GroupThread
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import spawn_in
from sidecar.transport.liveness import probe_process

logger = logging.getLogger("liftpy.membership")
node_logger = logging.getLogger("liftpy.node")

Answered = Callable[[int, pb.ControlResponse], None]
"""Callback on the node's event loop with (monotonic sending time of the heartbeat in nanoseconds, answer)."""
_EARLY_SHARE = 0.75
"""Share of the heartbeat interval after which a heartbeat leaves with the messages of a Raft tick."""
_WAIT_FOR_TICK = 1.2
"""Time until a heartbeat leaves without a tick, as a multiple of the interval, on a member that has ticks."""
_ID_BYTES = 16
_REGISTER_TIMEOUT_S = 5.0
_REGISTER_RETRY_S = 0.2
_CONFLICT_RETRY_S = 0.05
_ANNOUNCE_EVERY = 25
_IMAGE_WAIT_S = 0.02
_ASK_EVERY_S = 0.1


class HeartbeatTimes(NamedTuple):
    """Heartbeat interval and session time of a node."""

    every_s: float
    session_s: float


class Heartbeats:
    """Sends the heartbeats of this node to the metadata leader. ``run`` runs on the event loop of ``role``.

    On a controller, a heartbeat leaves with the messages of a Raft tick, so that it costs no wake-up. Without a tick, a timer
    sends it. ``answered``: called with each answer, on the event loop of the creator. ``pace``: interval and session time.
    """

    def __init__(self, role: GroupRole, heartbeat: pb.Heartbeat, pace: HeartbeatTimes, answered: Answered) -> None:
        self.pace = pace
        self._role = role
        self._heartbeat = heartbeat
        self._answered = answered
        self._home = asyncio.get_running_loop()
        self._home_turned = time.monotonic()
        self._is_loop_check_pending = False
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = 0.0
        """Time of the last heartbeat."""
        self._ticked_s = -math.inf
        """Time of the last Raft tick."""
        self._leader = ""
        """Metadata leader to which it was sent."""
        self._pauses = RetryPauses()

    async def run(self) -> None:
        """Send heartbeats until the call is canceled."""
        try:
            self._beat()
            await asyncio.get_running_loop().create_future()
        finally:
            self._role.current.ticked = lambda: None
            if self._timer is not None:
                self._timer.cancel()

    def _beat(self) -> None:
        """Send a heartbeat, without a tick of the metadata group, and set the timer for the next one.

        While there are ticks, the timer leaves time for the next tick. After a few heartbeats, all of them leave with ticks.
        """
        self._role.current.ticked = self._ticked
        has_ticks = time.monotonic() - self._ticked_s < _WAIT_FOR_TICK * self.pace.every_s
        self._one_beat(self.pace.every_s * (_WAIT_FOR_TICK if has_ticks else 1))

    def _ticked(self) -> None:
        """Send a heartbeat with the messages of a tick if it is almost due, or at once to a new metadata leader."""
        leader = self._role.current.leader
        is_new = bool(leader) and leader != self._leader
        self._ticked_s = time.monotonic()
        if is_new:
            self._pauses.answered()
        if is_new or self._ticked_s - self._sent_s >= _EARLY_SHARE * self.pace.every_s:
            self._one_beat(self.pace.every_s * _WAIT_FOR_TICK)

    def _one_beat(self, next_s: float) -> None:
        """Send a heartbeat, unless the event loop of the node has stood still for a session. ``next_s``: time of the next one."""
        now_s = time.monotonic()
        self._sent_s, self._leader = now_s, self._role.current.leader
        self._set_timer(next_s)
        if now_s - self._home_turned < self.pace.session_s:
            request = pb.ControlRequest(heartbeat=self._heartbeat, operationId=secrets.token_bytes(_ID_BYTES))
            self._role.current.send_heartbeat(request, partial(self._response_arrived, clock.now_ns()))
        if now_s - self._home_turned >= 2 * self.pace.every_s:
            self._ask_home()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _response_arrived(self, sent_ns: int, response: pb.ControlResponse) -> None:
        if response.error in UNDECIDED:
            self._set_timer(min(self._pauses.next_ns(clock.now_ns(), random.random) / NS_PER_S, self.pace.every_s))
            return
        self._pauses.answered()
        self._is_loop_check_pending = True
        with contextlib.suppress(RuntimeError):  # the node's loop has ended
            self._home.call_soon_threadsafe(self._process_answer, sent_ns, response)

    def _process_answer(self, sent_ns: int, response: pb.ControlResponse) -> None:
        """Process the answer to a heartbeat that was sent at ``sent_ns``, on the event loop of the node.

        The call itself proves that this loop runs.
        """
        self._run_turn()
        self._answered(sent_ns, response)

    def _ask_home(self) -> None:
        """Schedule a call on the event loop of the node, which proves that this loop runs."""
        if not self._is_loop_check_pending:
            self._is_loop_check_pending = True
            with contextlib.suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._run_turn)

    def _run_turn(self) -> None:
        self._is_loop_check_pending, self._home_turned = False, time.monotonic()


class Membership:
    """Registers this node in the cluster and keeps its session alive.

    ``on_heartbeat(sent_ns, lease_ns)``: called for each heartbeat that extends the lease. ``fatal``: called when another
    process has replaced this one.
    """

    def __init__(
        self,
        settings: NodeSettings,
        group: GroupThread,
        on_heartbeat: Callable[[int, int], None],
        fatal: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._group = group
        self._on_heartbeat = on_heartbeat
        self._fatal = fatal
        self._end_heartbeats: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._heartbeats = AnsweredHeartbeats()
        self._beats: Heartbeats | None = None
        self._changed = asyncio.Event()
        self._seen_index = group.image.index
        """Index of the newest image that all watchers have seen. A member of the group may have applied a newer one."""
        self._has_lost_decisions = False
        """True if the node is missing in the image because the metadata group has lost decisions, and not because of a removal."""
        self.incarnation = 0
        group.watch(self._image_changed)

    async def register(
        self,
        previous_incarnation: int,
        clean_stop: bool,
        flushed_always: bool,
        status_address: str,
        starts: DirectoryIdentity,
        partition_budget: int,
        damaged_logs: Sequence[pb.DamagedLog] = (),
    ) -> int:
        """Register this process in the cluster, and retry until the group accepts it. Return the new incarnation.

        Args:
            previous_incarnation: Incarnation of the last process on the data directory, 0 for none.
            clean_stop: True if that process stopped cleanly.
            flushed_always: True if a kill could not lose acknowledged records.
            status_address: Address of the status page, '' for none.
            starts: Identity of the data directory.
            partition_budget: Maximum number of replicas on this node, 0 for no limit.
            damaged_logs: Logs that are the only reason why both flags are False. Below their feature level, the request names
                none, and all logs of the node count as incomplete.

        Raises:
            LiftError: The group cannot accept the process.
        """
        registration = pb.RegisterNode(
            nodeId=self._settings.node_id,
            previousIncarnation=previous_incarnation,
            cleanStop=clean_stop,
            flushedAlways=flushed_always,
            rack=self._settings.rack,
            weight=self._settings.weight,
            version=__version__,
            statusAddress=status_address,
            partitionBudget=partition_budget,
            host=this_host(),
        )
        if self._group.image.feature_level >= DAMAGED_LOGS:
            registration.damagedLogs.extend(damaged_logs)
        SUPPORTED_LEVELS.write_to(registration)
        starts.write_to(registration)
        request = pb.ControlRequest(registerNode=registration)  # one operation, however often it is asked for
        attempt = 0
        deadline_s: float | None = None
        while True:
            response = await self._group.propose(request, _REGISTER_TIMEOUT_S)
            outcome = registration_result(response)
            if outcome is RegistrationOutcome.TAKEN_IN:
                self.incarnation = response.node.incarnation
                if response.detail:
                    logger.warning("node registered warning=%s", response.detail)
                await self._image_at(response.index)
                return self.incarnation
            if outcome is RegistrationOutcome.UNSPOKEN and request.registerNode.damagedLogs:
                del request.registerNode.damagedLogs[:]  # the cluster went back to a level that this image does not know yet
                continue
            if outcome is RegistrationOutcome.UNSPOKEN:
                raise IncompatibleVersionError(response.detail)
            if outcome is RegistrationOutcome.REFUSED:
                raise LiftError(
                    f"The metadata group rejected the registration of this node: {response.detail}. Check "
                    "node_id and namespace."
                )
            if outcome is RegistrationOutcome.TAKEN:
                # The group knows of the process before this one until its heartbeats have stopped: a moment after a kill, longer where
                # it is still stopping. This process has asked the bus for it: one that is there now does not stop.
                deadline_s = deadline_s or time.monotonic() + DEFAULT_WAIT_S
                if time.monotonic() >= deadline_s:
                    raise FencedError(
                        f"{response.detail} Stop the other process, or start this one with another --node-id and its own "
                        "--data."
                    )
                await asyncio.sleep(_CONFLICT_RETRY_S)
                continue
            if attempt % _ANNOUNCE_EVERY == 0:
                logger.warning(
                    "node not registered reason=%s: retrying", response.detail or "the metadata group does not answer"
                )
            attempt += 1
            await asyncio.sleep(_REGISTER_RETRY_S)

    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        self._seen_index = new.index
        self._changed.set()
        node_id = self._settings.node_id
        if node_id in old.nodes and node_id not in new.nodes:
            self._has_lost_decisions = not continues(old, new, "")
        if self._beats is not None and old.session_times != new.session_times:
            self._beats.pace = self._pace(new)
            if _values(old.session_times) != _values(new.session_times):
                self._compare(new)
        granted = self._heartbeats.image_seen(new.index)
        if granted is not None:  # after the other watchers: a lease counts when the partitions have the image [D22]
            asyncio.get_running_loop().call_soon(self._on_heartbeat, *granted)

    async def _image_at(self, index: int) -> None:
        """Wait until the watchers have received an image with index ``index`` or higher."""
        while self._seen_index < index:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):  # entries that change nothing are not announced
                await asyncio.wait_for(self._changed.wait(), _IMAGE_WAIT_S)

    async def live(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until the image shows this process as live.

        A start that takes longer than the session time may have ended its session.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_live():
                    self._changed.clear()
                    await self._changed.wait()

    def _is_live(self) -> bool:
        own = self._group.image.nodes.get(self._settings.node_id)
        return own is not None and own.incarnation == self.incarnation and not own.fenced

    def start(self) -> None:
        heartbeat = pb.Heartbeat(nodeId=self._settings.node_id, incarnation=self.incarnation)
        SUPPORTED_LEVELS.write_to(heartbeat)
        pace = self._pace(self._group.image)
        self._beats = beats = Heartbeats(self._group.role, heartbeat, pace, self._heartbeat_answered)
        self._compare(self._group.image)
        self._end_heartbeats = spawn_in(self._group.loop, beats.run(), "heartbeats", endless=True)

    def _compare(self, image: ClusterImage) -> None:
        """Log a warning if the session times in this node's settings differ from those of the cluster in ``image``.

        Defaults cause no warning: the cluster may have been created by a version with other defaults.
        """
        own, current = self._settings.replication.session_times, image.session_times
        is_set = _values(own) != _values(ReplicationConfig().session_times)
        if is_set and current is not None and _values(current) != _values(own):
            logger.warning(
                (
                    "session times in the settings differ from those of the cluster settings=%s cluster=%s: using those "
                    "of the cluster"
                ),
                own.words,
                current.settled().words,
            )

    def _pace(self, image: ClusterImage) -> HeartbeatTimes:
        own, times = self._settings.replication, image.session_times
        session_s = own.session_s if times is None else times.session_ms / 1000
        return HeartbeatTimes(heartbeat_every_s(own.heartbeat_interval_s, times), session_s)

    @property
    def session_s(self) -> float:
        """Session time of the cluster, in seconds. It is that of the settings if the image has none."""
        return self._pace(self._group.image).session_s

    def _heartbeat_answered(self, sent_ns: int, response: pb.ControlResponse) -> None:
        """Process the answer to the heartbeat that was sent at ``sent_ns`` (monotonic).

        It extends the lease when the watchers have received an image as new as the answer.
        """
        if self._end_heartbeats is None:
            return
        if response.error == pb.ControlResponse.OK:
            granted = self._heartbeats.response_received(sent_ns, response, self._seen_index)
            if granted is not None:
                self._on_heartbeat(*granted)
        elif response.error == pb.ControlResponse.FENCED:
            own = self._group.image.nodes.get(self._settings.node_id)
            if own is not None and own.incarnation > self.incarnation:
                text = f"another process has registered as {self._settings.node_id}: two nodes must not share an id"
                self._fatal(FencedError(text))
        elif response.error == pb.ControlResponse.NOT_FOUND and self._is_removed(response.index):
            self._fatal(self._removal_error())
        else:
            logger.debug("heartbeat not answered reason=%s: retrying", response.detail or response.error)

    def _removal_error(self) -> FencedError:
        """Return the error for a node that the cluster does not know any more. Its class decides whether a supervisor restarts it."""
        node_id = self._settings.node_id
        if self._has_lost_decisions:
            return FencedError(
                f"The metadata group does not know node {node_id!r} any more, because it was rescued or its controllers have new or "
                "older disks. The node stops. Its data directory was not deleted. The next start registers it again."
            )
        return NodeRemovedError(
            f"Node {node_id!r} was removed from the cluster (liftpy node remove) while this process was paused, "
            "so it stops. Its data directory was not deleted. To use the node again, start it: it joins as a new "
            "member without replicas. Otherwise delete the data directory."
        )

    def _is_removed(self, index: int) -> bool:
        """Return True if the image, at index ``index`` or later, no longer contains this node.

        An answer alone does not stop the node, because it may be forged or come from a new metadata leader.
        """
        return self.incarnation > 0 and self._seen_index >= index and self._settings.node_id not in self._group.image.nodes

    async def drain(self, timeout_s: float) -> None:
        """Transfer all partition leaderships of this node to other nodes. Wait at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        request = pb.DrainNode(nodeId=self._settings.node_id, incarnation=self.incarnation)
        response = await self._group.propose(pb.ControlRequest(drainNode=request), timeout_s)
        if response.error != pb.ControlResponse.OK:
            logger.info("leaderships not transferred reason=%s: stopping without a transfer", response.detail or response.error)
            return
        logger.info("transferring leaderships result=%s", response.detail)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._image_at(response.index), max(0.0, deadline - time.monotonic()))
            while self._has_moving_replicas():
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), max(0.0, deadline - time.monotonic()))

    def _has_moving_replicas(self) -> bool:
        partitions = self._group.image.partitions_of(self._settings.node_id)
        return any(p.status in (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND) for _, p in partitions)

    async def leave(self, timeout_s: float) -> None:
        """Report the clean stop of this node to the metadata group, so that its session ends at once."""
        await self.close()
        fence = pb.FenceNode(nodeId=self._settings.node_id, incarnation=self.incarnation)
        request = pb.ControlRequest(
            fenceNode=fence, sender=self._settings.node_id
        )  # the metadata leader asks itself without a subject
        response = await self._group.propose(request, timeout_s)
        if response.error != pb.ControlResponse.OK:
            logger.info("stop not reported to the metadata group reason=%s: stopping", response.detail or response.error)

    async def close(self) -> None:
        end, self._end_heartbeats = self._end_heartbeats, None
        if end is not None:
            await end()


def _values(times: SessionTimes | None) -> tuple[int, int]:
    return (0, 0) if times is None else (times.session_ms, times.lease_ms)


async def wait_for_predecessor(connection: Client, subjects: Subjects, node_id: str, inquiry: EarlierProcessCheck) -> None:
    """Wait until no other process uses the id of this node. Raise FencedError if another process keeps answering.

    ``inquiry``: decides by the answers to probes over NATS.
    """
    while True:
        was_present = inquiry.is_present
        sign = await probe_process(connection, subjects, node_id) if connection.is_connected else EarlierProcessSign.UNASKED
        verdict = inquiry.record_sign(sign, clock.now_ns())
        if verdict is EarlierProcessStep.GO_ON:
            return
        if verdict is EarlierProcessStep.GIVE_UP:
            raise FencedError(
                f"Another process runs as node {node_id!r} (it answers on {subjects.status(node_id)}). Two processes "
                "must not use the same id or a copied data directory. Stop the other process, or start this one with "
                "another --node-id and its own --data."
            )
        if inquiry.is_present and not was_present:
            node_logger.warning("another process runs as this node node=%s: waiting for its end", node_id)
        if sign is not EarlierProcessSign.SILENT:
            await asyncio.sleep(_ASK_EVERY_S)
