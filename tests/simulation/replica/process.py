"""``SimNode`` and ``SimProcess``: a simulated machine, and one life of the sidecar on it.

A process registers with the metadata group before it acts, follows the image, sends heartbeats, and runs one SimReplica
per partition. While
it is paused, its timers and messages wait, and arrive in either order afterwards. The disk continues. A dead process
gets nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from liftpy.core.base.clock_trust import ClockTrust
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME, OpenReport, forget_failed_flush
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.request_batcher import Answer, RequestBatcher
from liftpy.core.metadata.features import DAMAGED_LOGS, SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.node_identity import damaged_logs_to_name
from liftpy.core.metadata.sessions import AnsweredHeartbeats, LeaseGrant, heartbeat_every_s
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.combined_fetches import CombinedFetches, CombinedFetchRequest, ReleasedFetches
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import INGEST, REPLICATION, DataPath, Lease
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError, NoSpaceError
from tests.simulation.replica.clock import MS, MachineClock, S, SimTimer
from tests.simulation.replica.disk import Disk, DiskCopy
from tests.simulation.replica.leaving_replicas import Leaving
from tests.simulation.replica.messages import QuietQuestion
from tests.simulation.replica.network import NO_RESPONDERS
from tests.simulation.replica.sim_replica import SimReplica

if TYPE_CHECKING:
    from tests.simulation.replica.cluster import Cluster

_REGISTER_RETRY_NS = 100 * MS
_RESTART_NS = 500 * MS
_REPAIR_NS = 50 * MS
_AWAITS_MORE = 0.8
"""Share of the nodes."""
_PROPOSE_TIMEOUT_NS = 1 * S
_LATE_S = 0.01
"""Maximum size of unread messages. In a fault with more messages than a process can handle, it rejects for most of the time."""


def folder_of(key: PartitionKey) -> str:
    """Return the directory name on a simulated disk and in its journal of promises."""
    return f"{key.stream}-{key.uid}-{key.partition}"


def log_name(folder: str) -> str:
    """Return the name ``<stream>-<uid>/<partition>`` of the log in a directory of a simulated disk."""
    stream, _, number = folder.rpartition("-")
    return f"{stream}/{number}"


class SimNode:
    """A machine: its disk, its wall clock, and the process that runs on it now (None: down)."""

    def __init__(self, cluster: Cluster, node_id: str, host: str = "") -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = host or node_id
        """Name on the simulated network. Another machine that runs as the same node has another name."""
        self.disk: Disk = cluster.make_disk(f"{cluster.seed}/{self.host}/disk")
        self.nonces: set[int] = set()
        """Nonces of its processes."""
        self.asks_first = False
        """True if its processes ask for their predecessor. Otherwise there never is one."""
        self.is_gone = False
        """True if it is never started again."""
        self.wall_offset_ns = 0
        self.clock = MachineClock(cluster.clock, dict(cluster.plan.clock_ppm).get(self.host, 0))
        self.awaits_more = random.Random(f"{cluster.seed}/{node_id}/protocol").random() < _AWAITS_MORE
        """True if its fetches accept a second answer. Otherwise they are of the published protocol, and woken up."""
        self.process: SimProcess | None = None
        self.copy: DiskCopy | None = None
        """Copy of its disk, which a fault restores."""
        self.logs_copy: DiskCopy | None = None
        """Copy of its disk of which only the logs are restored."""
        self.lost_data = False
        """True if its disk lost data that it acknowledged, and the metadata group does not know it yet."""
        self.flipped = False
        """A bit has flipped under the process that runs: it may not have met it yet."""
        self.went_back = False
        """True if its logs are an old copy and its registration does not show it. It must not count as complete until it
        is again.
        """

    @property
    def up(self) -> bool:
        """True if a process runs."""
        return self.process is not None

    def start(self) -> None:
        """Start the sidecar."""
        if self.process is None and not self.is_gone:
            self.process = SimProcess(self)
            self.cluster.begin(self.process)

    def restart(self) -> None:
        """The process ends, and its supervisor starts it again."""
        self.crash(power=False)
        self.cluster.clock.after(_RESTART_NS, self.start)

    def crash(self, *, power: bool) -> None:
        """Kill the process. ``power``: unflushed data is lost, too."""
        if self.up:
            self.stop_process()
            self.disk.cut_power() if power else self.disk.kill()

    def stop_process(self) -> None:
        """The process is gone at once."""
        if self.process is not None:
            self.process.dead = True
            if self.process.lost_data and not self.process.replicas:
                self.lost_data = True  # it died before it opened what its disk has lost: so the next one finds out
            self.cluster.network.disconnect(self.host)
            self.process = None


class SimProcess:
    """One process life. All input reaches it through ``run``."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.cluster = node.cluster
        self.node_id = node.node_id
        self.config = node.cluster.plan.own_config(node.host)
        """Settings of the process."""
        self.disk = node.disk
        self.incarnation = 0
        """0 until the metadata group has answered the registration."""
        self.lost_data = False
        """True if its disk was not the one that its predecessor wrote to."""
        self.dead = False
        self.paused = False
        self._suspended_ns: int | None = None
        """True time since which its host is suspended."""
        self._slept_ns = 0
        """Total time for which its host was suspended. The event loop's timers are late by that time."""
        self._asleep: list[Callable[[], None]] = []
        """Timers that would have fired while it was."""
        self._repairs = False
        self.image = ClusterImage()
        self.replicas: dict[PartitionKey, SimReplica] = {}
        self.wishes = RequestBatcher()
        self.inflight = NodeInflight()
        self.lease = Lease(round(self.config.lease_s * S))
        self._lease_timer: SimTimer | None = None
        self.update_delay_ns = 0
        """Time after which a replica learns of a change that the image shows. Nodes update their partitions one after the other."""
        self._outdated: set[PartitionKey] = set()
        """Partitions with such a change."""
        self.room = MemoryBudget(late_s=_LATE_S)
        self.state_memory = NodeStateMemory(self.cluster.config.node_dedup_state_bytes)
        self.leaving = Leaving(self, self._stop_replica, self._deleted, self._look_again)
        self.quiet = CombinedFetches(self.cluster.config)
        self.confirmed: set[int] = set()
        """Indexes of the quiet fetches of the question under way."""
        self._data_path = DataPath()
        self._data_path_is_up = True
        self.promises = PromiseJournal(self.disk.promises)
        self._links_up = {REPLICATION: True, INGEST: True}
        self._backlog: list[tuple[bool, Callable[[], None]]] = []
        self._heartbeats = AnsweredHeartbeats()
        self.clocks = ClockTrust(self.node_id)

    @property
    def host(self) -> str:
        """Name of its machine."""
        return self.node.host

    @property
    def copy_limit(self) -> CatchupThrottle:
        """Copy throttle of its learners."""
        return self.leaving.throttle

    # ---- the door ------------------------------------------------------------------------------------------------------
    def run(self, callback: Callable[[], None], *, timer: bool = False) -> None:
        """Run ``callback`` in this process, now or when the pause ends."""
        if self.dead:
            return
        if self.paused:
            self._backlog.append((timer, callback))
        else:
            callback()

    def pause(self, *, suspended: bool) -> None:
        """Pause the process, or suspend its host: leases continue, and event-loop timers do not advance."""
        self.paused, self._suspended_ns = True, self.cluster.clock.now_ns if suspended else None

    def resume(self, timers_first: bool) -> None:
        """The pause is over: everything that waited comes at once."""
        self.paused = False
        if self._suspended_ns is not None:
            self._slept_ns += self.cluster.clock.now_ns - self._suspended_ns
            self._suspended_ns = None
            asleep, self._asleep = self._asleep, []
            for fire in asleep:
                fire()
        backlog, self._backlog = self._backlog, []
        for _, callback in sorted(backlog, key=lambda entry: entry[0] is not timers_first):
            self.run(callback)

    def now_ns(self) -> int:
        """Monotonic, on this machine's clock."""
        return self.node.clock.now_ns()

    def at(self, at_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Set a timer of the event loop for ``at_ns`` on this machine's clock. It is late by the time that the host is
        suspended.
        """
        timer, slept_ns = SimTimer(callback), self._slept_ns
        due_ns = max(self.node.clock.true_ns(at_ns), self.cluster.clock.now_ns)

        def fire() -> None:
            late_ns = due_ns + self._slept_ns - slept_ns
            if self.dead or timer.callback is None:
                return
            if self._suspended_ns is not None:
                self._asleep.append(fire)
            elif self.cluster.clock.now_ns < late_ns:
                self.cluster.clock.at(late_ns, fire)
            else:
                self.run(callback, timer=True)

        self.cluster.clock.at(due_ns, fire)
        return timer

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in this process while it runs."""
        self.at(self.now_ns() + delay_ns, callback)

    @property
    def serves_all(self) -> bool:
        """True if every log that it has opened has its replica."""
        return bool(self.incarnation) and not self.leaving.unopened

    def repair(self) -> None:
        """A log is damaged: the process ends in a moment, and comes back to recover it."""
        if not self._repairs:
            self._repairs = True
            self.cluster.counters["restarts to repair"] += 1
            self.node.lost_data = True
            self.later(_REPAIR_NS, self.node.restart)

    # ---- registration ----------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Open the logs, find lost data, register."""
        disk = self.disk
        if self.node.flipped:  # what it held is found out to be damaged only now, whoever held it when the bit flipped
            self.cluster.checkers.is_the_last(self.node_id)
            self.node.flipped = False
        disk.starts = disk.starts.next(self.cluster.draw_nonce())
        self.node.nonces.add(disk.starts.nonce)
        damaged, confined, was_doubtful = list[str](), list[str](), disk.doubtful
        for name in sorted(self.disk.folders):
            try:
                self.leaving.unopened[name], report = self._opened(name)
            except NoSpaceError:  # nothing can be set aside: the process ends, and its supervisor tries again
                self.cluster.counters["start refused: no space"] += 1
                self.node.restart()
                return
            disk.doubtful = disk.doubtful or report.must_leave_isr
            damaged += [log_name(name)] if report.must_leave_isr else []
            confined += [log_name(name)] if report.is_confined else []
            was_doubtful = was_doubtful or bool(report.flush_failed)
            self.cluster.counters["damage found"] += bool(report.damage)
        named = [] if was_doubtful else damaged_logs_to_name(damaged, confined)
        self.cluster.counters["registrations with named logs"] += bool(named)
        self._register(not disk.doubtful, named, self.cluster.group.new_operation_id())

    def _register(self, complete: bool, damaged: Sequence[pb.DamagedLog], operation_id: bytes) -> None:
        if self.incarnation:
            return
        request = pb.RegisterNode(
            nodeId=self.node_id,
            previousIncarnation=self.disk.incarnation,
            cleanStop=self.disk.clean_stop and complete,
            flushedAlways=complete,
            damagedLogs=damaged if self.cluster.group.image.feature_level >= DAMAGED_LOGS else (),
        )
        SUPPORTED_LEVELS.write_to(request)
        self.disk.starts.write_to(request)
        self.cluster.about_to_register(self.node)
        self.cluster.group.propose(
            self.host,
            pb.ControlRequest(registerNode=request, operationId=operation_id),
            lambda response: self.run(lambda: self._registered(response)),
        )
        self.later(_REGISTER_RETRY_NS, lambda: self._register(complete, damaged, operation_id))

    def _registered(self, response: pb.ControlResponse | None) -> None:
        if self.incarnation or response is None or response.error != pb.ControlResponse.OK:
            return
        self.incarnation = self.disk.incarnation = response.node.incarnation
        self.lost_data, self.node.lost_data = self.node.lost_data, self.node.flipped
        self.disk.starts = self.disk.starts.after_registration()
        self.disk.clean_stop = self.disk.doubtful = False
        for name in list(self.disk.folders):
            storage = self.disk.folder(name)
            if FLUSH_FAILED_NAME in storage.names():
                forget_failed_flush(storage)
        stale = self.cluster.stale_image(response.index)
        self.image_arrived(stale)
        if self.dead:  # of what it found on its disk
            return
        self.cluster.group.send_image(self.host)
        self.cluster.network.subscribe(self.host, f"status.{self.node_id}", lambda message, reply: reply("here"))
        self.cluster.network.subscribe(self.host, f"question.{self.node_id}", self._questioned)
        self.cluster.network.subscribe(self.host, f"quiet.{self.node_id}", self._asked_for_quiet_fetches)
        self._heartbeat()
        self._checkpoint()
        if self.cluster.plan.housekeeping_ns:
            self.later(self.cluster.plan.housekeeping_ns, self._keep_house)
        self._ask_for_quiet_fetches()

    # ---- quiet fetches, of all partitions together ---------------------------------------------------------------------
    def _ask_for_quiet_fetches(self) -> None:
        questions, ended = self.quiet.start_turn(self.now_ns())
        for each in ended:
            self.cluster.counters["quiet fetches: silence"] += 1
            self._end_quiet(each)
        for question in questions:
            ends = tuple(self.replicas[fetch.key].log.flushed_end_offset for fetch in question.fetches)
            asked = QuietQuestion(self.node_id, self.incarnation, question.fetches, ends)
            answered = partial(self._quiet_fetches_answered, question)
            self.cluster.network.request(self.host, f"quiet.{question.leader}", asked, answered)
        self.later(self.quiet.interval_ns, self._ask_for_quiet_fetches)

    def _asked_for_quiet_fetches(self, question: QuietQuestion, reply: Callable[[frozenset[int]], None]) -> None:
        if not self.node.awaits_more:
            return  # of the published protocol: it knows no such question
        self.confirmed.clear()
        for index, fetch in enumerate(question.fetches):
            replica = self.replicas.get(fetch.key)
            if replica is not None:
                replica.feed(
                    ev.CombinedFetchReceived(
                        token=index,
                        replica=question.replica,
                        incarnation=question.incarnation,
                        leader_epoch=fetch.leader_epoch,
                        request_id=fetch.request_id,
                    )
                )
                if index in self.confirmed:
                    self.cluster.checkers.quiet_fetch_confirmed(replica, question.replica, question.ghost_ends[index])
        reply(frozenset(range(len(question.fetches))) - self.confirmed)

    def _quiet_fetches_answered(self, question: CombinedFetchRequest, answer: Any) -> None:
        if self.dead:
            return
        absent = answer is NO_RESPONDERS
        self._end_quiet(self.quiet.process_no_responders(question) if absent else self.quiet.process_answer(question, answer))

    def _end_quiet(self, ended: ReleasedFetches | None) -> None:
        if ended is None:
            return
        for fetch in ended.fetches:
            self.cluster.counters["quiet fetch over"] += 1
            self.replicas[fetch.key].feed(ev.CombinedFetchEnded(last_answer_ns=ended.last_answer_ns))

    def _questioned(self, question: LeaderCheck, reply: Callable[[ProbeResult], None]) -> None:
        replica = self.replicas.get(question.key)
        serves = replica is not None and replica.replica.serves(question.leader_epoch, self.now_ns())
        reply(ProbeResult.SERVES if serves else ProbeResult.DOES_NOT)

    # ---- the image and the lease ---------------------------------------------------------------------------------------
    def image_arrived(self, image: ClusterImage) -> None:
        """Apply a newer image: start new partitions, update the replicas, then extend waiting leases."""
        if not self.incarnation or image.index <= self.image.index:
            return
        own = image.nodes.get(self.node_id)
        if own is not None and own.incarnation > self.incarnation:  # the sidecar stops then; its supervisor starts it again
            self.cluster.counters["deposed by another registration"] += 1
            self.node.restart()
            return
        old, self.image = self.image, image
        changes = diff(old, image)
        live = {node_id: node.incarnation for node_id, node in image.nodes.items() if not node.fenced}
        changed = {change.key for change in changes.partitions}
        self.leaving.follow(image)
        for stream, partition in image.partitions_of(self.node_id):
            key = stream.key(partition.partition)
            replica = self.replicas.get(key)
            if folder_of(key) in self.leaving.ending:
                continue
            if replica is None:
                replica = self._open(stream, partition)
                if self.dead:
                    return
            elif key not in changed and not (changes.nodes or changes.lease_changed):
                continue
            self._changed(replica, stream, partition, live)
        self._extend(self._heartbeats.image_seen(image.index))

    def _changed(self, replica: SimReplica, stream: StreamImage, partition: PartitionState, live: dict[str, int]) -> None:
        replica.replica.announce_change(self.now_ns())
        if not self.update_delay_ns:
            self._outdated.discard(replica.key)
            replica.update(self.image.partition_metadata(stream, partition), live)
            replica.reads.advanced()
        elif replica.key not in self._outdated:
            self._outdated.add(replica.key)
            self.cluster.counters["changes that replicas learn late"] += 1
            self.later(self.update_delay_ns, partial(self._update_late, replica.key))

    def _update_late(self, key: PartitionKey) -> None:
        found, replica = self.image.find(key.stream, key.uid, key.partition), self.replicas.get(key)
        if key in self._outdated and found is not None and replica is not None and self.node_id in found[1].holders:
            live = {node_id: node.incarnation for node_id, node in self.image.nodes.items() if not node.fenced}
            replica.update(self.image.partition_metadata(*found), live)
            replica.reads.advanced()
        self._outdated.discard(key)

    def learn_all(self) -> None:
        """Let all replicas learn of all changes now."""
        self.update_delay_ns = 0
        for key in sorted(self._outdated):
            self._update_late(key)

    def _stop_replica(self, key: PartitionKey) -> str:
        replica = self.replicas.pop(key)
        self._outdated.discard(key)
        replica.stop()
        return replica.folder

    def _deleted(self, folder: str) -> None:
        self.promises.forget(folder)

    def _look_again(self) -> None:
        """Open a partition that has returned after its deletion ended."""
        image = self.image
        live = {node_id: node.incarnation for node_id, node in image.nodes.items() if not node.fenced}
        for stream, partition in image.partitions_of(self.node_id):
            key = stream.key(partition.partition)
            if key not in self.replicas and folder_of(key) not in self.leaving.ending and not self.dead:
                replica = self._open(stream, partition)
                replica.update(image.partition_metadata(stream, partition), live)

    def _open(self, stream: StreamImage, partition: PartitionState) -> SimReplica:
        name = folder_of(PartitionKey(stream.name, stream.uid, partition.partition))
        log = self.leaving.unopened.pop(name, None)
        if log is None:
            log, _ = self._opened(name)
        replica = SimReplica(self, stream, partition, log)
        self.replicas[replica.key] = replica
        try:
            self.cluster.checkers.opened(replica)
        except CorruptionError:  # the first reader meets it; the log has made sure that the next recovery does too
            self.cluster.counters["damage met by a reader"] += 1
            self.node.lost_data = True
            self.node.restart()
            return replica
        replica.open()
        if not self._data_path_is_up:
            replica.feed(ev.DataPathChanged(is_up=False))
        return replica

    def promise(self, key: PartitionKey, leader_epoch: int) -> None:
        """Store a promise with a flush of the journal."""
        self.promises.store({folder_of(key): leader_epoch})

    def _opened(self, name: str) -> tuple[Log, OpenReport]:
        """Open one log; a disk that refuses is tried again, as a process that is restarted does."""
        self.disk.fail_syncs = 0
        config = self.cluster.stream_configs[name.split("-")[0]]
        return Log.open(self.disk.folder(name), config, promised_epoch=self.promises.epoch_of(name))

    def _data_path_looked_at(self) -> None:
        """The client library tells at once when a connection is lost; a turn of heartbeats later is as good."""
        network, now_ns = self.cluster.network, self.now_ns()
        for link in (REPLICATION, INGEST):
            is_up = self.host not in network.down and (self.host, link) not in network.links_down
            if is_up is not self._links_up[link]:
                self._links_up[link] = is_up
                self._data_path_changed(self._data_path.link_changed(link, is_up, now_ns))
                for replica in self.replicas.values() if link == INGEST else ():
                    replica.publishers.link_changed(is_up)
        self._data_path_changed(self._data_path.check_timeout(now_ns))

    def _data_path_changed(self, is_up: bool | None) -> None:
        if is_up is not None and not self.dead:
            self._data_path_is_up = is_up
            for replica in self.replicas.values():
                replica.feed(ev.DataPathChanged(is_up=is_up))

    def _heartbeat(self) -> None:
        self._data_path_looked_at()
        sent_ns = self.now_ns()
        self.cluster.group.heartbeat(
            self.host, self.node_id, self.incarnation, self.image.index,
            lambda answer: self.run(lambda: self._heard(answer, sent_ns)),
        )  # fmt: skip
        every_s = heartbeat_every_s(self.config.heartbeat_interval_s, self.image.session_times)
        self.later(round(every_s * S), self._heartbeat)

    def _heard(self, answer: pb.ControlResponse, sent_ns: int) -> None:
        if answer.error == pb.ControlResponse.OK:
            self._extend(self._heartbeats.response_received(sent_ns, answer, self.image.index))

    def _extend(self, granted: LeaseGrant | None) -> None:
        """Extend the lease of the process. One timer ends it, for all replicas."""
        if granted is None:
            return
        had_ended = self.lease.extend(granted.sent_ns, granted.lease_ns, self.now_ns())
        if self._lease_timer is None and self.lease.is_current(self.now_ns()):
            self._lease_timer = self.at(self.lease.until_ns(self.now_ns()), self._lease_looked_at)
        if had_ended:
            self._lease_changed()

    def _lease_looked_at(self) -> None:
        self._lease_timer = None
        now_ns = self.now_ns()
        if self.lease.is_current(now_ns):
            self._lease_timer = self.at(self.lease.until_ns(now_ns), self._lease_looked_at)
        else:
            self._lease_changed()

    def _lease_changed(self) -> None:
        for replica in list(self.replicas.values()):
            replica.feed(ev.LeaseChanged())

    def _checkpoint(self) -> None:
        for replica in self.replicas.values():
            replica.checkpoint()
        self.later(round(self.cluster.config.hw_checkpoint_interval_s * S), self._checkpoint)

    def _keep_house(self) -> None:
        self.keep_house()
        self.later(self.cluster.plan.housekeeping_ns, self._keep_house)

    def keep_house(self) -> None:
        """Run one round of housekeeping over all logs."""
        self._ask_clocks()
        wall_ns = self.time_of_age_ns()
        for replica in self.replicas.values():
            self.cluster.checkers.newest_is_newest(replica)
            replica.apply_retention(wall_ns)
            replica.begin_compaction(wall_ns)

    def _ask_clocks(self) -> None:
        """Compare clocks with reachable nodes at once, so that no other message of a seed changes."""
        network, now_ns = self.cluster.network, self.now_ns()
        for name in self.clocks.peers(self._nodes()):
            other = self.cluster.nodes[name]
            away = network.down & {self.host, other.host} or network.cuts & {(self.host, other.host), (other.host, self.host)}
            gone = network.links_down & {(self.host, REPLICATION), (other.host, REPLICATION)}
            if not away and not gone and other.process is not None and not other.process.paused:
                self.clocks.record_answer(name, other.clock.now_ns() + other.wall_offset_ns, now_ns, now_ns)

    def _nodes(self) -> dict[str, bool]:
        """Return the registered nodes, True if live."""
        return {name: not node.fenced for name, node in self.image.nodes.items()}

    def time_of_age_ns(self) -> int:
        """Return the wall time for ages, as the sidecar does."""
        told_ns = self.clocks.time_of_age_ns(self.now_ns() + self.node.wall_offset_ns, self.now_ns(), self._nodes())
        self.cluster.counters["clock in doubt"] += not told_ns
        self.cluster.checkers.clocks.told_ages(self.node, told_ns, self.clocks.peers(self._nodes()))
        return told_ns

    def stamp_ns(self) -> int:
        """Return the time that records get which are led here, as the sidecar's."""
        wall_ns, now_ns = self.now_ns() + self.node.wall_offset_ns, self.now_ns()
        self.clocks.time_of_age_ns(wall_ns, now_ns, self._nodes())
        return self.clocks.stamp_ns(wall_ns, now_ns)

    # ---- proposals -------------------------------------------------------------------------------------------------------
    def propose(self, key: PartitionKey, request: pb.ControlRequest, on_answer: Answer) -> None:
        """``on_answer`` once: the group's response, or None when none came in time. In batches, as the sidecar's."""
        self.wishes.put(key, request, on_answer)
        self._send_wishes()

    def _send_wishes(self) -> None:
        batch = self.wishes.next_batch()
        if batch is None:
            return
        state = {"open": True}

        def answered(response: pb.ControlResponse | None) -> None:
            if state["open"]:
                state["open"] = False
                self.wishes.batch_answered(response)
                self._send_wishes()

        self.cluster.group.propose(self.host, batch, lambda response: self.run(lambda: answered(response)))
        self.later(_PROPOSE_TIMEOUT_NS, lambda: answered(None))
