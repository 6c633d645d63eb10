"""Cluster: nodes, network, metadata group, clients and checkers under one clock and one seed.

A run has two parts: chaos, in which safety is checked after every step, and then everything is healed and the cluster has to become
whole again in bounded virtual time (liveness). Scripts use the same class with an empty plan and strike faults by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy.config import CommitPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.codec import CONFIG
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.replication.phases import LeaderPhase
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica.checkers import Checkers
from tests.simulation.replica.clients import (
    PUBLISH_TIMEOUT_NS,
    SimContender,
    SimDerivation,
    SimProducer,
    SimPublisher,
    SimReader,
    SimRepeater,
    SimTable,
)
from tests.simulation.replica.clock import MS, Clock, S
from tests.simulation.replica.disk import Disk
from tests.simulation.replica.group import SimGroup
from tests.simulation.replica.leaving_replicas import key_of
from tests.simulation.replica.network import NO_RESPONDERS, Network
from tests.simulation.replica.plan import Plan
from tests.simulation.replica.process import SimNode
from tests.simulation.replica.sim_replica import SimReplica
from tests.simulation.replica.trace import Trace
from tests.simulation.replica.twins import AskingFirst, Twins

if TYPE_CHECKING:
    from tests.simulation.replica.process import SimProcess

STREAM = "orders"
_USUAL_PAYLOAD_BYTES = 1 << 20
_SMALL_SEGMENTS_BYTES = 4096
"""Segment size of streams that expire or are compacted, because only sealed segments do, or are."""


class Cluster:
    """One simulated cluster with the stream ``STREAM`` and those of the plan."""

    def __init__(self, plan: Plan, trace: Trace | None = None, make_disk: Callable[[str], Disk] = Disk) -> None:
        self.plan = plan
        self.make_disk = make_disk
        self.seed = plan.seed
        self.config = plan.config
        self.stream_config = replace(plan.stream_config, commit_policy=plan.policy, min_isr=plan.min_isr)
        self.stream_configs = {STREAM: self.stream_config}
        for other in plan.streams:
            own = replace(self.stream_config, compaction=other.compaction, max_per_subject=other.max_per_subject)
            own = replace(own, segment_bytes=_SMALL_SEGMENTS_BYTES)
            if other.deletes:
                own = replace(own, delete_retention_s=other.delete_retention_s, dedup_window_s=other.dedup_window_s)
            age_s, size_bytes = other.retention_age_s, other.retention_bytes
            self.stream_configs[other.name] = replace(own, retention_age_s=age_s, retention_bytes=size_bytes)
        self.min_isr = plan.min_isr
        self.commit_by_quorum = plan.policy is CommitPolicy.QUORUM
        self.trace = trace
        self.counters: Counter[str] = Counter()
        """Event -> number of times that it happened: the coverage."""
        self.candidates_fail = False
        self.healed = False
        self.publishes: dict[int, tuple[str, int]] = {}
        """Message id -> (publisher, number of the publish)."""
        self.leader_of_epoch: dict[tuple[PartitionKey, int], str] = {}
        """Leader of each epoch in the metadata group."""
        self.clock = Clock()
        if trace is not None:
            trace.clock = self.clock
        self.network = Network(self.clock, plan.seed, replace(plan.noise), self._deliver)
        self.network.max_payload_bytes = plan.max_payload_bytes
        own_times = plan.own_config("group")
        self.group = SimGroup(self.clock, plan.seed, own_times, plan.config.session_times if plan.times else None)
        self.group.loss, self.group.slow_ns = plan.metadata_loss, plan.metadata_slow_ns
        self.checkers = Checkers(self)
        self.group.watch = self._image_changed
        self.group.deliver = self._image_arrives
        self.group.ask = self._ask
        self.group.look_for = self._probe
        self.nodes = {f"n{i}": SimNode(self, f"n{i}") for i in range(1, plan.node_count + 1)}
        self.publishers: list[SimPublisher] = []
        self.readers: list[SimReader] = []
        self.twins = Twins(self)
        for node in self.nodes.values():
            node.disk.flush_ns = plan.flush_ns

    # ---- machines ----------------------------------------------------------------------------------------------------
    @property
    def machines(self) -> list[SimNode]:
        """All machines that run node processes. Twins have two."""
        return [*self.nodes.values(), *self.twins.of.values()]

    def machine(self, host: str) -> SimNode | None:
        """Return the machine with this network name."""
        node = self.nodes.get(host)
        return node if node is not None else next((twin for twin in self.twins.of.values() if twin.host == host), None)

    @property
    def twin_ids(self) -> Collection[str]:
        """Nodes of which there are two."""
        return self.twins.of

    def acting(self, node_id: str) -> SimNode:
        """Return the machine whose process the metadata group knows as ``node_id``."""
        twin, known = self.twins.of.get(node_id), self.group.image.nodes.get(node_id)
        return twin if twin is not None and known is not None and known.nonce in twin.nonces else self.nodes[node_id]

    def begin(self, process: SimProcess) -> None:
        """A process has been started."""
        if process.node.asks_first:
            AskingFirst(process)
        else:
            process.begin()

    def about_to_register(self, machine: SimNode) -> None:
        """Copy the identity to a twin before its registration."""
        known = self.group.image.nodes.get(machine.node_id)
        if machine.node_id in self.twins.of and known is not None and known.nonce in machine.disk.starts.earlier:
            machine.went_back = machine.went_back or known.nonce not in machine.nonces

    # ---- wiring ------------------------------------------------------------------------------------------------------
    def _deliver(self, receiver: str, arrive: Callable[[], None]) -> None:
        node = self.machine(receiver)
        if node is None:
            arrive()
        elif node.process is not None:
            node.process.run(arrive)

    def _image_arrives(self, host: str, image: ClusterImage) -> None:
        machine = self.machine(host)
        process = machine.process if machine is not None else None
        if process is not None:
            process.run(lambda: process.image_arrived(image))

    def _ask(self, question: LeaderCheck, answer: Callable[[ProbeResult], None]) -> None:
        """Send a question of the metadata leader, which only a cut of the asked node can lose."""

        def answered(said: Any) -> None:
            answer(ProbeResult.ABSENT if said is NO_RESPONDERS else said)

        self.network.request("metadata", f"question.{question.node}", question, answered)

    def _probe(self, node: str, absent: Callable[[], None]) -> None:
        """Probe a late node, as the metadata leader does."""
        self.network.request("metadata", f"status.{node}", "present?", lambda said: absent() if said is NO_RESPONDERS else None)

    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if self.trace is not None:
            self.trace.image(old, new)
        self.checkers.image_changed(old, new)

    def stale_image(self, index: int) -> ClusterImage:
        """Return an image that a process registered at ``index`` may know: an older one or the newest."""
        known = self.group.images[-4:]
        return known[(self.seed + index) % len(known)]

    def draw_nonce(self) -> int:
        """Return a unique nonce for a starting process."""
        self.counters["processes"] += 1
        return self.counters["processes"]

    def new_id(self, publisher: str, number: int) -> int:
        """Return an id that no message has had."""
        message_id = len(self.publishes) + 1
        self.publishes[message_id] = (publisher, number)
        return message_id

    # ---- life --------------------------------------------------------------------------------------------------------
    def boot(self) -> PartitionKey:
        """Start every node, wait until all are registered, create the stream, wait for its leader."""
        for node in self.nodes.values():
            node.start()
        self.wait_for(lambda: len(self.group.image.nodes) == len(self.nodes) and self._all_registered(), 30)
        self.wait_for(lambda: len(self.group.image.live_nodes()) == len(self.nodes), 30)
        self._create(STREAM, self.plan.partitions)
        for stream in self.plan.streams:
            self._create(stream.name, stream.partitions)
        self.wait_for(lambda: all(self.leader(key) is not None for key in self.keys), 30)
        return self.key

    def _create(self, name: str, partitions: int) -> None:
        request = pb.CreateStream(
            name=name, subject=f"shop.{name}", partitions=partitions, replicationFactor=self.plan.replication_factor,
            config=CONFIG.to_pb(self.stream_configs[name]),
        )  # fmt: skip
        response = self.group.apply(pb.ControlRequest(createStream=request))
        check(response.error == pb.ControlResponse.OK, "C3", response.detail)
        self.network.once.update(f"{name}.{number}" for number in range(partitions))

    def _all_registered(self) -> bool:
        return all(node.process is not None and node.process.incarnation for node in self.nodes.values())

    @property
    def key(self) -> PartitionKey:
        """First partition of the first stream."""
        return self.group.image.streams[STREAM].key(0)

    @property
    def keys(self) -> list[PartitionKey]:
        """All partitions."""
        streams = [stream for _, stream in sorted(self.group.image.streams.items())]  # a Map follows the hash
        return [stream.key(partition.partition) for stream in streams for partition in stream.partitions]

    def start_clients(self) -> None:
        """Publishers and a reader for each partition, as the plan says; all together publish as often as one partition's would."""
        keys = self.keys
        for place, key in enumerate(keys):
            for number in range(self.plan.publisher_count):
                name = f"p{number}" if not place else f"p{number}.{place}"
                self.publishers.append(SimPublisher(self, name, self.plan.publish_interval_ns * len(keys), key))
            if self.plan.repeats and not self.stream_configs[key.stream].is_cleaned:
                self.publishers.append(SimRepeater(self, f"again{place}", self.plan.publish_interval_ns * len(keys), key))
            for number in range(2 if self.plan.contends else 0):
                name = f"contender{number}.{place}"
                self.publishers.append(SimContender(self, name, self.plan.publish_interval_ns * len(keys), key))
            if self.plan.produces:
                self.publishers.append(SimProducer(self, f"producer{place}", self.plan.publish_interval_ns * len(keys), key))
            if self.plan.derives:
                self.publishers.append(SimDerivation(self, f"derived{place}", self.plan.publish_interval_ns * len(keys), key))
            self.readers.append(SimReader(self, f"r{place}", key, 80 * MS * len(keys)))
            if self.plan.has_deletes(key.stream):
                SimTable(self, f"table{place}", key, 30 * MS)

    def crash(self, node_id: str, *, power: bool) -> None:
        """Kill the process. ``power``: unflushed data is lost, too."""
        self.nodes[node_id].crash(power=power)

    def restart_if_failed(self, node_id: str) -> None:
        """Restart a process whose storage failed."""
        process = self.nodes[node_id].process
        if process is not None and any(replica.failed for replica in process.replicas.values()):
            self.crash(node_id, power=False)
            self.nodes[node_id].start()

    def replica(self, node_id: str, key: PartitionKey | None = None) -> SimReplica | None:
        """Return the running replica of a node; ``key`` None: of the first partition."""
        process = self.acting(node_id).process
        return process.replicas.get(key or self.key) if process is not None else None

    def leader(self, key: PartitionKey | None = None) -> SimReplica | None:
        """Return the replica that leads and is open, as the metadata says; ``key`` None: of the first partition."""
        key = key or self.key
        partition = self.group.partition(key.stream, key.partition)
        replica = self.replica(partition.leader, key) if partition.leader else None
        if replica is None or replica.failed or replica.replica.phase != LeaderPhase.READY:
            return None
        return replica if replica.replica.leader_epoch == partition.leader_epoch else None

    def wait_for(self, condition: Callable[[], bool], within_s: float, name: str = "L1") -> float:
        """Run until ``condition`` holds; InvariantError ``name`` if it does not within ``within_s``. Seconds it took."""
        start_ns = self.clock.now_ns
        deadline_ns = start_ns + round(within_s * S)
        while not condition():
            in_time = self.clock.now_ns < deadline_ns and self.clock.step()
            if not in_time:  # a description of every step would take a tenth of the time
                check(False, name, "not within", within_s, "s:", self.describe())
        return (self.clock.now_ns - start_ns) / S

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.clock.run_until(self.clock.now_ns + round(seconds * S))

    # ---- after the chaos -------------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """End all faults: every node runs, every path is open."""
        network, group, self.healed = self.network, self.group, True
        network.noise.calm()
        for held in (network.down, network.cuts, network.links_down, network.half_open, network.slow):
            held.clear()
        for lost in (group.cut, group.unheard, group.late_ns):
            lost.clear()
        self.twins.end_all()
        group.loss, group.slow_ns, self.candidates_fail = 0.0, 5 * MS, False
        group.set_available(True)
        for publisher in self.publishers:
            publisher.interval_ns = max(publisher.interval_ns, 250 * MS)
        for node in self.nodes.values():
            node.disk.set_capacity(None)
            node.disk.fail_syncs, node.disk.flush_ns = 0, MS
            if node.process is not None and node.process.paused:
                node.process.resume(timers_first=True)
            if node.process is not None:
                node.process.learn_all()
            self.restart_if_failed(node.node_id)
            node.start()
        if self.trace is not None:
            self.trace.note("*** healed")

    def become_whole(self) -> None:
        """Check L1-L5, L8 and the final data."""
        for node_id in self.nodes:
            self.restart_if_failed(node_id)
        leader_s = self.wait_for(
            lambda: all(self.leader(key) or self.waits_for_the_operator(key) for key in self.keys), 8, "L1"
        )
        if any(self.leader(key) is None for key in self.keys):
            self.counters["ends Offline, waiting for the operator"] += 1
            self.checkers.nothing_is_lost()
            return
        self.counters["slow leader"] += leader_s > 5
        before = {publisher.name: (publisher.asked_all, publisher.acked_all) for publisher in self.publishers}
        in_pieces = self.network.max_payload_bytes < _USUAL_PAYLOAD_BYTES  # a round trip for a piece of a batch
        whole_s = (300 if in_pieces else 30) + self._copies_take_s()
        for pause_s in (10, 0):
            self.wait_for(lambda: self._isr_is_whole() or self._has_met_lost_data(), whole_s, "L2")
            if self._has_met_lost_data():
                self.counters["ends Offline, waiting for the operator"] += 1
                self.checkers.nothing_is_lost()
                return
            self.run_for(pause_s)
        changes = self.checkers.isr_changes
        self.run_for(5)
        check(
            self.checkers.isr_changes - changes <= 2 * len(self.keys),
            "L8",
            "the ISR flaps",
            self.checkers.isr_changes - changes,
        )
        goes_on_s = 10 * len(self.keys)  # each publishes as seldom as there are others
        self.wait_for(lambda: all(self._goes_on(each, *before[each.name]) for each in self.publishers), goes_on_s, "L10")
        for publisher in self.publishers:
            publisher.stopped = True
        self.run_for(PUBLISH_TIMEOUT_NS / S + 0.1)
        for publisher in self.publishers:
            check(not publisher.waiting, "L4", publisher.name, "waits for", publisher.waiting)
        self.wait_for(self._all_is_committed, 10, "L3")
        self.network.max_payload_bytes = _USUAL_PAYLOAD_BYTES  # the readers look too seldom for a batch at a time
        self.wait_for(self._readers_are_at_the_end, 10 * len(self.keys), "L3")  # each looks as seldom as there are others
        self.checkers.nothing_is_lost()

    def waits_for_the_operator(self, key: PartitionKey) -> bool:
        """Return whether no node may lead without a command, because of lost data [C10]."""
        stream = self.group.image.streams[key.stream]
        partition = stream.partitions[key.partition]
        able = stream.electable_replicas(partition)
        enough = (
            2 * len(able) > len(partition.replicas) or partition.last_leader in able if self.commit_by_quorum else bool(able)
        )
        return partition.status is not PartitionStatus.ONLINE and not enough

    @staticmethod
    def _goes_on(publisher: SimPublisher, asked: int, acked: int) -> bool:
        """Return whether a publisher gets acks ALL again."""
        return publisher.acked_all > acked or publisher.asked_all == asked

    def _has_met_lost_data(self) -> bool:
        """Return whether a leader has read a flipped bit, after the chaos, in records that only its node had."""
        return any(self.waits_for_the_operator(key) and self.checkers.ghost(key).may_be_gone for key in self.keys)

    def _isr_is_whole(self) -> bool:
        partitions = [(key, self.group.partition(key.stream, key.partition)) for key in self.keys]
        moving = any(found.target or found.joining for _, found in partitions)
        whole = all(self.leader(key) is not None and set(found.isr) == set(found.replicas) for key, found in partitions)
        return whole and not moving and self._nothing_is_left_behind()

    def _nothing_is_left_behind(self) -> bool:
        """Return whether each directory belongs to a partition of its node."""
        return all(
            node_id in self.group.partition(key.stream, key.partition).holders
            for node_id, node in self.nodes.items()
            for key in map(key_of, () if node.is_gone else node.disk.folders)
        )

    def _copies_take_s(self) -> float:
        """Return the maximum time of all remaining copies at the throttled rate."""
        rate = self.config.copy_bytes_per_s
        wanted = [(self.leader(key), len(self.group.partition(key.stream, key.partition).target)) for key in self.keys]
        left_bytes = sum(leader.log.size_bytes * count for leader, count in wanted if leader is not None)
        return left_bytes / rate if rate else 0.0

    def _all_is_committed(self) -> bool:
        return all(self._is_committed(key) for key in self.keys)

    def _is_committed(self, key: PartitionKey) -> bool:
        leader = self.leader(key)
        if leader is None:
            return False
        replicas = [self.replica(node_id, key) for node_id in leader.replica.state.replicas]
        return all(r is not None and r.log.high_watermark == r.log.newest_offset == leader.log.newest_offset for r in replicas)

    def _readers_are_at_the_end(self) -> bool:
        leaders = [(reader, self.leader(reader.key)) for reader in self.readers if reader.cut_at is None]  # [R6]
        return all(leader is not None and reader.next_offset > leader.log.high_watermark for reader, leader in leaders)

    def describe(self) -> str:
        """Return one line per node, for people."""
        return "\n".join(line for key in self.keys for line in self._describe(key))

    def _describe(self, key: PartitionKey) -> list[str]:
        p = self.group.partition(key.stream, key.partition)
        who = p.leader or p.candidate
        lines = [f"metadata: {key}: {p.status.name} leader={who} e{p.leader_epoch} E{p.epoch} isr={p.isr}"]
        if p.target:
            lines[0] += f" replicas={p.replicas} target={p.target} joining={p.joining or None}"
        for node_id in sorted(self.nodes):
            r = self.replica(node_id, key)
            if r is None:
                lines.append(f"{node_id}: down or not hosting")
                continue
            core, log = r.replica, r.log
            lines.append(
                f"{node_id}: {core.role} {core.phase} e{core.leader_epoch} start={log.log_start_offset} end={log.log_end_offset}"
                f" flushed={log.flushed_end_offset} hw={log.high_watermark} {r.failed}"
            )
        return lines
