"""Nodes that are no controllers: they register, keep a session, follow the feed, and hold folders of partitions.

Shipped: ``NodeFile`` on its data directory, ``DirectoryIdentity``, the rules of registration and of answered heartbeats,
``FeedSubscription``, ``Lease``, ``DepartedPartitions`` and ``may_delete``. Checked: nobody fences a node while its lease runs
[D22]. Its image is one that the group has had [M5]. It claims no clean stop that there was not [S9]. Only a committed delete
removes a data directory of a partition [M11].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata import data_deletion, node_identity
from liftpy.core.metadata.data_deletion import DepartedPartitions, question
from liftpy.core.metadata.feed import FeedSubscription
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.sessions import AnsweredHeartbeats, LeaseGrant, RegistrationOutcome, registration_result
from liftpy.core.replication.lease import Lease
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.identity import NodeFile
from tests.simulation.raft.asking import Asking
from tests.simulation.raft.ghost import Violation

if TYPE_CHECKING:
    from tests.simulation.raft.group_simulation import Run

_POLL_NS = NS_PER_S // 20
_RETRY_NS = NS_PER_S // 5
_REGISTER_TIMEOUT_NS = 5 * NS_PER_S
_LEAVE_TIMEOUT_NS = NS_PER_S
_QUESTION_TIMEOUT_NS = 2 * NS_PER_S


NODES = ("d0", "d1", "d2")


class DataNode:
    """A machine, and the process on it (None: it is down)."""

    def __init__(self, run: Run, node_id: str) -> None:
        self.run = run
        self.node_id = node_id
        self.folders: set[PartitionKey] = set()
        """Partitions of which it holds data."""
        self.stopped_cleanly = False
        """The truth about the last process that held partitions."""
        self.process: NodeProcess | None = None

    def start(self) -> None:
        """Start a process; a disk that refuses is tried again."""
        if self.process is not None:
            return
        try:
            self.process = NodeProcess(self)
        except StorageError:
            self.run.seen["nodes: starts that the disk refused"] += 1
            self.run.later(_RETRY_NS, self.start)

    def kill(self) -> None:
        """The process is gone at once."""
        if self.process is not None:
            self.process.end()
            self.process = None

    def check_claim(self, request: pb.RegisterNode) -> None:
        """A registration of this node was applied."""
        process = self.process
        if process is not None and request.nonce == process.nonce and request.cleanStop and not process.after_clean_stop:
            raise Violation(f"S9: {self.node_id} claims a clean stop that there was not")


class NodeProcess:
    """One life. ``through`` is the door by which everything reaches it."""

    def __init__(self, node: DataNode) -> None:
        self.node = node
        self._sim = node.run
        self.dead = False
        self.paused_until = 0.0
        self._backlog: list[Callable[[], None]] = []
        self.incarnation = 0
        self.leaving = False
        self._begun = False
        self._failed = False
        self.lease = Lease(round(self._sim.config.lease_s * NS_PER_S))
        self._heartbeats = AnsweredHeartbeats()
        self.subscription = FeedSubscription(node.node_id, self._sim.spoken_by_nodes)
        self._departed = DepartedPartitions(node.node_id, lambda: {key.uid for key in node.folders})
        self._believed: int | None = None
        """A forged entry is in the image, which had been fetched anew so many times."""
        self._registered_at = 0
        self.after_clean_stop = node.stopped_cleanly
        self._folder = DataDirectory(self._sim.folder / f"data-{node.node_id}")
        try:
            self._identity = NodeFile(self._folder, node.node_id)
            self._previous = self._identity.previous
            counted = self._identity.count_start()
        except BaseException:
            self._folder.close()
            raise
        self.nonce = counted.nonce
        register = pb.RegisterNode(
            nodeId=node.node_id, previousIncarnation=self._previous.incarnation, cleanStop=self._previous.clean_stop,
            flushedAlways=self._previous.flushed_always,
        )  # fmt: skip
        self._sim.spoken_by_nodes.write_to(register)
        counted.write_to(register)
        self._request = pb.ControlRequest(registerNode=register)
        self._follow()
        self._register()

    # ---- what reaches it -----------------------------------------------------------------------------------------------
    def through(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in this process, now or when the pause ends."""
        if self.dead:
            return
        if self.paused_until > self._sim.now:
            self._backlog.append(callback)
        else:
            callback()

    def resume(self) -> None:
        """What waited while it was paused comes at once."""
        backlog, self._backlog = self._backlog, []
        for callback in backlog:
            self.through(callback)

    def end(self) -> None:
        """Nothing reaches it any more."""
        self.dead = True
        self._folder.close()

    def _later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self._sim.later(delay_ns, lambda: self.through(callback))

    def _ask(self, request: pb.ControlRequest, timeout_ns: int, done: Callable[[pb.ControlResponse], None]) -> None:
        if not request.operationId:
            request.operationId = self._sim.draws["ids"].randbytes(16)
        Asking(self._sim, self.node.node_id, self.through, request, timeout_ns, done)

    # ---- membership ----------------------------------------------------------------------------------------------------
    def _register(self) -> None:
        self._ask(self._request, _REGISTER_TIMEOUT_NS, self._registration_answered)

    def _registration_answered(self, response: pb.ControlResponse) -> None:
        match registration_result(response):
            case RegistrationOutcome.TAKEN_IN:
                self.incarnation, self._registered_at = response.node.incarnation, response.index
                self._begin()
            case RegistrationOutcome.REFUSED:
                raise Violation(f"the group refuses {self.node.node_id}: {response.detail}")
            case _:
                self._later(_RETRY_NS, self._register)

    def _begin(self) -> None:
        """Once its image shows the registration."""
        if self.subscription.image.index < self._registered_at:
            self._later(_POLL_NS, self._begin)
            return
        try:
            self._identity.begin(self.incarnation)
        except StorageError:
            self._sim.seen["nodes: stopped by the disk"] += 1
            self._sim.restart_node(self.node)
            return
        self._begun = True
        self.node.stopped_cleanly = False  # from here on it opens its partitions
        self._beat()

    def _beat(self) -> None:
        if self.leaving:
            return
        sent_ns = self._sim.now_ns()
        beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=self.node.node_id, incarnation=self.incarnation))
        self._sim.spoken_by_nodes.write_to(beat.heartbeat)
        self._ask(beat, round(self._sim.config.session_s / 2 * NS_PER_S), partial(self._heard, sent_ns))

    def _heard(self, sent_ns: int, response: pb.ControlResponse) -> None:
        every_ns = round(self._sim.config.heartbeat_interval_s * NS_PER_S)
        self._later(max(1, sent_ns + every_ns - self._sim.now_ns()), self._beat)
        if response.error == pb.ControlResponse.OK:
            self._extend(self._heartbeats.response_received(sent_ns, response, self.subscription.image.index))

    def _extend(self, granted: LeaseGrant | None) -> None:
        if granted is not None:
            self._sim.seen["leases extended"] += 1
            self.lease.extend(*granted, self._sim.now_ns())
            self._check_lease()

    def _check_lease(self) -> None:
        """A node that was fenced may have lost leaderships: it believes no lease before it sees which; one that has said itself that
        it stops leads nothing any more."""
        if self.leaving:
            return
        fenced_at, image = self._sim.fenced_at.get((self.node.node_id, self.incarnation), 0), self.subscription.image
        if self._believed is None and image.index < fenced_at and self.lease.is_current(self._sim.now_ns()):
            raise Violation(f"D22: {self.node.node_id} was fenced at {fenced_at}, and believes a lease on image {image.index}")

    def holds_a_lease(self, incarnation: int) -> bool:
        """Whether it may speak for what it leads now."""
        return self.incarnation == incarnation and not self.leaving and self.lease.is_current(self._sim.now_ns())

    def stop(self, *, logs_are_clean: bool) -> None:
        """A stop that was asked for: it says so, and leaves its marker if it may."""
        if self.leaving or not self._begun:
            return
        self.leaving = True
        fence = pb.FenceNode(nodeId=self.node.node_id, incarnation=self.incarnation)
        self._ask(pb.ControlRequest(fenceNode=fence), _LEAVE_TIMEOUT_NS, lambda _: self._ended(logs_are_clean))

    def _ended(self, logs_are_clean: bool) -> None:
        if node_identity.stopped_cleanly(failed=self._failed, opened=True, logs_are_clean=logs_are_clean, repairs=False):
            with suppress(StorageError):
                self._identity.end_cleanly()
                self._sim.seen["nodes: clean stops"] += 1
        self.node.stopped_cleanly = logs_are_clean and not self._failed
        self.end()
        self.node.process = None
        self._sim.later(NS_PER_S // 2, self.node.start)

    # ---- the feed ------------------------------------------------------------------------------------------------------
    def _follow(self) -> None:
        request = self.subscription.request(self._sim.now_ns())
        if request is not None:
            said = request.SerializeToString()
            asked = self._sim.somebody()
            if asked is not None and not self._sim.faults.plots.feed_is_cut(self.node.node_id):
                self._sim.travel(self.node.node_id, asked.node_id, lambda: asked.run(lambda: self._asked(asked.node_id, said)))
        self._later(_POLL_NS, self._follow)

    def _asked(self, member_id: str, said: bytes) -> None:
        member = self._sim.up.get(member_id)
        response = member.fed(pb.FeedSnapshotRequest.FromString(said)) if member is not None else None
        if response is not None:
            assert response.nodeId == self.node.node_id
            back = response.SerializeToString()
            self._sim.travel(member_id, self.node.node_id, lambda: self.through(lambda: self._told(back)))

    def _told(self, said: bytes) -> None:
        before = self.subscription.image
        self.subscription.response_received(pb.FeedSnapshotResponse.FromString(said))
        self._seen(before)

    @property
    def knows_the_group(self) -> bool:
        """It has an image; nobody forges who the controllers are."""
        return not self.dead and self.subscription.synced

    def forged(self, said: bytes) -> None:
        """An entry that nobody in the cluster has published. Until the image is fetched anew it need not be the group's."""
        before, entry = self.subscription.image, pb.FeedEntry.FromString(said)
        entry.previousIndex, entry.index = before.index, before.index + 1  # as of now: it may have come late
        count = self.subscription.resync_count
        if self.subscription.synced and self.subscription.entry_received(entry):
            self._believed = count
            self._seen(before)

    def published(self, said: bytes) -> None:
        """An entry of the feed arrives."""
        before = self.subscription.image
        self.subscription.entry_received(pb.FeedEntry.FromString(said))
        self._seen(before)

    def _seen(self, before: object) -> None:
        image = self.subscription.image
        if image is before:
            return
        self._sim.seen["images by the feed"] += 1
        if self._believed is not None and self.subscription.synced and self.subscription.resync_count > self._believed:
            self._believed = None
        if self._believed is None:
            self._sim.ghost.check_fed(image, self.node.node_id)
        change = diff(before, image)  # type: ignore[arg-type]
        self._departed.image_changed(before, image, change)  # type: ignore[arg-type]
        self._extend(self._heartbeats.image_seen(image.index))
        for each in change.for_node(self.node.node_id):
            held = image.find(each.key.stream, each.key.uid, each.key.partition)
            if held is not None and self.node.node_id in held[1].replicas:
                self.node.folders.add(each.key)
            elif self._departed.has_moved_away(each.key, image) and each.key in self.node.folders:
                self._ask_for(each.key)

    def _ask_for(self, key: PartitionKey) -> None:
        self._ask(question(key), _QUESTION_TIMEOUT_NS, partial(self._may_go, key))

    def _may_go(self, key: PartitionKey, response: pb.ControlResponse) -> None:
        allowed = data_deletion.may_delete(response, key, self.node.node_id)
        if allowed is None:
            self._later(_RETRY_NS, lambda: self._ask_for(key))
        elif allowed:
            self._sim.seen["folders deleted"] += 1
            self.node.folders.discard(key)
            if key.uid not in self._sim.ghost.gone_uids:
                raise Violation(f"M11: {self.node.node_id} deletes {key}, which nobody has deleted")
        else:
            self._sim.seen["folders kept against the image"] += 1
            self._departed.deletion_denied(key)
            self.subscription.resynchronize()
