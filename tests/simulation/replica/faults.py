"""Faults: how each kind begins and ends in a simulated cluster. ``plan`` draws their times.

Some faults hit a leader at the moment when a bug would show, which chance hardly finds:

- The end of a session: a leader is disconnected from the metadata group, or its host is suspended, until its session
  ends. Publishes wait
  for it. On a slow clock its lease lasts longest.
- HW does not move: one ISR member stops fetching, complete segments are above HW, and housekeeping runs with a wall
  clock that has jumped.
  Then the members with everything committed may fail.
- Publishes are cut off: a leader loses only the connection that carries them.
- Changed times: the cluster's session and lease change during one of these faults, or with a new metadata leader.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from liftpy.config import AckPolicy
from liftpy.core.replication.lease import INGEST, REPLICATION
from liftpy.core.replication.messages import LeaderNotice
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica import operations
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.ghost import GhostPurge
from tests.simulation.replica.messages import key_of
from tests.simulation.replica.network import SILENT_NS
from tests.simulation.replica.operations import move
from tests.simulation.replica.plan import (
    BEHIND,
    CUT_PUBLISHES,
    DRAG,
    FORGE,
    HALF_OPEN,
    HW_STALLS,
    LATE,
    MOVE,
    OTHER_LOGS,
    PURGE,
    PUT_BACK,
    SESSION_ENDS,
    SLOW_UPDATES,
    TIMES,
    TRUNCATE,
    TWIN,
    TWIN_DISK,
    Fault,
)
from tests.simulation.replica.sim_replica import SimReplica

_CHECK_NS = 5 * MS
_LOOKS_S = 3.0
"""Sessions: by then it has ended, or something else has happened."""
_STILL, _ASLEEP = 0.35, 0.7
"""Shares of the leaders that stop before the end of their session: the process, or the suspended host. The others continue."""
_STANDS_FROM = 0.9
"""Share of the lease after the disconnection at which the leader stops."""
_BURSTS, _BURST = 12, 60
"""Publishes, and messages of each: more than ``_SEGMENTS`` of the smallest segments."""
_SEGMENTS = 2
_LAG_SHARE = 0.7
"""Share of the allowed lag time for which an ISR member stops fetching."""
_DIES = 0.5
_LATE_PUBLISHES = 8
"""Number of publishes, plus one, while a deposed leader does not know of it."""
TIMES_TRIED = ((0.3, 0.2), (0.7, 0.5), (2.0, 1.5), (3.0, 1.0), (3.0, 2.9))
"""(session, lease) that the cluster's become, in s."""


def leaders(cluster: Cluster) -> list[SimReplica]:
    """Return the running leaders, ordered by partition."""
    found = [cluster.leader(key) for key in cluster.keys]
    return [leader for leader in found if leader is not None and not leader.process.paused]


def _chosen(leading: list[SimReplica], fault: Fault) -> SimReplica | None:
    return leading[int(fault.draw * 1000) % len(leading)] if leading else None


def _publish(cluster: Cluster, leader: SimReplica, policy: AckPolicy, times: int = 1, count: int = 1) -> None:
    """Let publishers of the leader send now."""
    publisher = next((each for each in cluster.publishers if each.key == leader.key and not each.stopped), None)
    for _ in range(times if publisher is not None else 0):
        assert publisher is not None
        publisher.publish(policy, count)


def _times(cluster: Cluster) -> tuple[float, float]:
    """Return the current session and lease in seconds."""
    times = cluster.group.image.session_times
    if times is None:
        return cluster.config.session_s, cluster.config.lease_s
    return times.longest_session_ns / S, times.longest_lease_ns / S


def session_ends(cluster: Cluster, fault: Fault) -> bool:
    """Lose all messages of a node's session."""
    group = cluster.group
    leading = sorted(leaders(cluster), key=lambda leader: leader.process.node.clock.rate)
    slowest = [leader for leader in leading if leader.process.node.clock.rate == leading[0].process.node.clock.rate]
    leader = _chosen(slowest, fault)
    if leader is None or not group.available or leader.host in group.cut:
        return False
    process = leader.process
    session_s, lease_s = _times(cluster)
    looks = int(_LOOKS_S * session_s * S) // _CHECK_NS
    group.cut.add(leader.host)

    def stand_still() -> None:
        if not (process.dead or process.paused or cluster.healed):
            process.pause(suspended=fault.draw < _STILL)

    if fault.draw < _ASLEEP:
        cluster.clock.after(int(_STANDS_FROM * lease_s * S), stand_still)

    def ends() -> None:
        if process.paused and not process.dead:
            process.resume(timers_first=fault.for_ns % 2 == 0)

    def look(left: int) -> None:
        node = group.image.nodes[leader.node_id]
        if node.fenced and node.incarnation == process.incarnation:
            cluster.counters["a session ended under its leader"] += 1
        elif left and not (process.dead or cluster.healed):
            if left % 4 == 0:
                _publish(cluster, leader, AckPolicy.LEADER)
            cluster.clock.after(_CHECK_NS, partial(look, left - 1))
            return
        ends()
        cluster.clock.after(fault.for_ns, partial(group.cut.discard, leader.host))

    cluster.clock.after(_CHECK_NS, partial(look, looks))
    return True


def times_change(cluster: Cluster, fault: Fault) -> bool:
    """Change session and lease times, often just before a leader is isolated."""
    group, held = cluster.group, cluster.group.image.session_times
    if held is None or not group.available:
        return False
    session_s, lease_s = TIMES_TRIED[int(fault.draw * 1000) % len(TIMES_TRIED)]
    request = pb.SetSessionTimes(sessionMs=round(session_s * 1000), leaseMs=round(lease_s * 1000), change=held.change)
    group.apply(pb.ControlRequest(setSessionTimes=request))
    if fault.for_ns % 3:
        session_ends(cluster, fault)
    if fault.for_ns % 5 < 2:
        cluster.clock.after(_CHECK_NS * (1 + fault.for_ns % 40), partial(_another_leads, cluster))
    return group.image.session_times is not held


def _another_leads(cluster: Cluster) -> None:
    if cluster.group.available:
        cluster.group.set_available(False)
        cluster.group.set_available(True)


def hw_stalls(cluster: Cluster, fault: Fault) -> bool:
    """Stall the HW, and release it around the ISR change."""
    expiring = [each for each in leaders(cluster) if each.log.config.retention_age_s or each.log.config.retention_bytes]
    leader = _chosen(expiring, fault)
    followers = sorted(set(leader.replica.state.isr) - {leader.node_id}) if leader is not None else []
    if leader is None or not followers:
        return False
    one, network, config = followers[int(fault.draw * 100) % len(followers)], cluster.network, cluster.config
    held = {(leader.node_id, one), (one, leader.node_id)} - network.cuts
    network.cuts.update(held)
    _publish(cluster, leader, AckPolicy.LEADER, _BURSTS, _BURST)
    until_ns = cluster.clock.now_ns + int(_LAG_SHARE * config.max_lag_time_s * S)

    def look() -> None:
        if leader.process.dead or leader.process.paused or cluster.healed:
            return
        segments, high = leader.log.segments, leader.log.high_watermark
        if len(segments) > _SEGMENTS and segments[1].next_offset > high + 1:
            cluster.counters["segments above HW"] += 1
            expire()
        elif cluster.clock.now_ns < until_ns:
            cluster.clock.after(_CHECK_NS, look)

    def expire() -> None:
        age_s = leader.log.config.retention_age_s
        leader.apply_retention(leader.process.now_ns() + leader.process.node.wall_offset_ns + int((age_s + 1) * S))
        if fault.draw < _DIES:
            cluster.crash(leader.node_id, power=True)
            cluster.clock.after(fault.for_ns, cluster.nodes[leader.node_id].start)

    cluster.clock.after(_CHECK_NS, look)
    cluster.clock.at(until_ns + fault.for_ns, partial(network.cuts.difference_update, held))
    return True


def cut_publishes(cluster: Cluster, fault: Fault) -> bool:
    """Cut the connection for publishes of a leader."""
    leader = _chosen(leaders(cluster), fault)
    cut = (leader.host, INGEST) if leader is not None else None
    if cut is None or cut in cluster.network.links_down:
        return False
    cluster.network.links_down.add(cut)
    cluster.clock.after(fault.for_ns, partial(cluster.network.links_down.discard, cut))
    return True


def slow_updates(cluster: Cluster, fault: Fault) -> bool:
    """Let the replicas of a leader's node learn of changes long after the node has the image, and move the leadership."""
    leader = _chosen(leaders(cluster), fault)
    if leader is None or leader.process.update_delay_ns or not cluster.group.available:
        return False
    process, lease_s = leader.process, _times(cluster)[1]
    process.update_delay_ns = int((0.2 + 2 * fault.draw) * lease_s * S)
    cluster.clock.after(fault.for_ns, partial(setattr, process, "update_delay_ns", 0))
    if fault.for_ns % 4:
        _move_leadership(cluster, leader, fault)
    for part in range(1, _LATE_PUBLISHES):
        after_ns = part * process.update_delay_ns // _LATE_PUBLISHES
        cluster.clock.after(after_ns, partial(_publish, cluster, leader, AckPolicy.LEADER))
    return True


def _move_leadership(cluster: Cluster, leader: SimReplica, fault: Fault) -> None:
    others = sorted(set(leader.replica.state.isr) - {leader.node_id})
    if others:
        elect = pb.ElectLeader(
            stream=leader.key.stream, uid=leader.key.uid, partition=leader.key.partition,
            node=others[int(fault.draw * 100) % len(others)],
        )  # fmt: skip
        cluster.group.apply(pb.ControlRequest(electLeader=elect))


STRIKES = {
    SESSION_ENDS: session_ends, TIMES: times_change, HW_STALLS: hw_stalls, CUT_PUBLISHES: cut_publishes,
    SLOW_UPDATES: slow_updates,
}  # fmt: skip
"""Faults by kind."""


_YEAR_NS = 365 * 86_400 * S
_LOOKS = 8
"""Number of checks of the queue while more arrives than a process can handle. It is late from the second one on."""
_COLD = 0.3
"""Share of power cuts after a kill without a new process in between."""
_OLD_LOGS = 0.6
"""Share of restored logs that are an old copy of the node's own. The others are another node's."""
_OF_THE_LAST = 0.15
"""Share of the flips in a last batch that also hit the only complete replica. Then no replica of the partition may continue."""

_WAITS_NS, _TRIES_NS = 5 * S, 20 * MS
"""Times to wait for a twin, and between two checks."""


class Nemesis:
    """Carries a schedule out on a cluster."""

    def __init__(self, cluster: Cluster, faults: tuple[Fault, ...]) -> None:
        self.cluster = cluster
        self.stopped = False
        self._next = 0
        self._faults = faults
        self._start_ns = cluster.clock.now_ns
        self._arm()

    def _arm(self) -> None:
        if self._next < len(self._faults):
            fault = self._faults[self._next]
            self._next += 1
            self.cluster.clock.at(self._start_ns + fault.at_ns, lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self.stopped:
            strike(self.cluster, fault)
            self._arm()


def strike(cluster: Cluster, fault: Fault) -> None:
    """Apply one fault and its end."""
    done = _STRIKES[fault.kind](cluster, fault)
    cluster.counters[f"fault {fault.kind}" if done else f"fault {fault.kind} (skipped)"] += 1
    if cluster.trace is not None and done:
        cluster.trace.note(f"*** {fault}")


def _down(cluster: Cluster, fault: Fault, power: bool, empty: bool = False) -> bool:
    node = cluster.nodes[fault.node]
    if not node.up or (empty and not cluster.checkers.others_hold_all(fault.node)):
        return False
    cluster.crash(fault.node, power=power)
    if empty:
        _emptied(cluster, fault.node)
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _kill(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=False)


def _power(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=True)


def _empty(cluster: Cluster, fault: Fault) -> bool:
    return _down(cluster, fault, power=True, empty=True)


def _kill_power(cluster: Cluster, fault: Fault) -> bool:
    """Kill a process, then cut the power before the next process has flushed."""
    node = cluster.nodes[fault.node]
    if not node.up:
        return False
    cluster.crash(fault.node, power=False)
    power_ns = MS + int(fault.draw**2 * S)
    if fault.draw > _COLD:
        cluster.clock.after(MS, node.start)

    def cut() -> None:
        cluster.crash(fault.node, power=True)
        node.disk.cut_power()
        cluster.clock.after(fault.for_ns, node.start)

    cluster.clock.after(power_ns, cut)
    return True


def _empty_last(cluster: Cluster, fault: Fault) -> bool:
    """Empty the disk of the last node with all committed records."""
    node = cluster.nodes[fault.node]
    if not node.up or not cluster.checkers.is_the_last(fault.node):
        return False
    cluster.crash(fault.node, power=True)
    _emptied(cluster, fault.node)
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _emptied(cluster: Cluster, node_id: str) -> None:
    node = cluster.nodes[node_id]
    node.disk.empty()
    cluster.checkers.disk_lost()
    node.lost_data = True


def _flip_last(cluster: Cluster, fault: Fault) -> bool:
    """Flip a bit at rest on the disk of the last node with all committed records."""
    if not cluster.checkers.is_the_last(fault.node):
        return False
    return _flipped_at_rest(cluster, fault)


def _flip_newest(cluster: Cluster, fault: Fault) -> bool:
    """Flip a bit at rest in the last batch of a log, where the stored HW proves that it was complete."""
    node = cluster.nodes[fault.node]
    if not node.up:
        return False
    if fault.draw > _OF_THE_LAST and not cluster.checkers.others_hold_all(fault.node):
        return False
    cluster.checkers.is_the_last(fault.node)
    cluster.crash(fault.node, power=fault.draw < _OF_THE_LAST / 2)
    flipped = [name for name in sorted(node.disk.folders) if node.disk.flip_newest(name)]
    _after_flips(cluster, fault, flipped)
    return bool(flipped)


def _flip_running(cluster: Cluster, fault: Fault) -> bool:
    """Flip a bit under a running process."""
    node = cluster.nodes[fault.node]
    if node.process is None or not node.process.serves_all or not cluster.checkers.others_hold_all(fault.node):
        return False
    flipped = [name for name in sorted(node.disk.folders) if node.disk.flip_bit(name)]
    if flipped:
        node.lost_data = node.flipped = True
        cluster.checkers.disk_lost()
    return bool(flipped)


def _put_back(cluster: Cluster, fault: Fault) -> bool:
    """Stop a process, and copy its disk or replace it with an earlier copy."""
    node = cluster.nodes[fault.node]
    if not node.up or (node.copy is not None and not cluster.checkers.others_hold_all(fault.node)):
        return False
    cluster.crash(fault.node, power=False)
    if node.copy is None:
        node.disk.clean_stop = fault.draw < 0.5
        node.copy = node.disk.copy()
    else:
        node.disk.put_back(node.copy)
        node.copy, node.lost_data = None, True
        cluster.checkers.disk_lost()
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _other_logs(cluster: Cluster, fault: Fault) -> bool:
    """Replace only the logs of a node with older ones or with those of another node."""
    node, other = cluster.nodes[fault.node], cluster.nodes[fault.other]
    if not node.up or fault.node in cluster.twins.of or not cluster.checkers.others_hold_all(fault.node):
        return False
    source = node.logs_copy or other.disk.copy()
    node.logs_copy = node.disk.copy() if node.logs_copy is None and fault.draw < _OLD_LOGS else None
    if node.logs_copy is not None:
        return True
    cluster.crash(fault.node, power=False)
    identity = node.disk.copy()
    folders = {**identity.folders, **{name: log for name, log in source.folders.items() if name in identity.folders}}
    node.disk.put_back(replace(identity, folders=folders))
    node.lost_data = node.went_back = True
    cluster.checkers.disk_lost()
    cluster.clock.after(fault.for_ns, node.start)
    return True


def _twin(cluster: Cluster, fault: Fault) -> bool:
    return cluster.twins.strike(fault)


def _twin_disk(cluster: Cluster, fault: Fault) -> bool:
    """Damage the disk of a twin when there is one."""
    until_ns = cluster.clock.now_ns + _WAITS_NS

    def look() -> None:
        if not (cluster.healed or cluster.twins.strike_disk(fault)) and cluster.clock.now_ns < until_ns:
            cluster.clock.after(_TRIES_NS, look)

    look()
    return True


def _late_answers(cluster: Cluster, fault: Fault) -> bool:
    """Delay the answers of the metadata group to a node, and lose its messages."""
    group = cluster.group
    if fault.node in group.late_ns:
        return False
    group.late_ns[fault.node] = int((0.2 + fault.draw) * cluster.config.session_s * S)
    cluster.clock.after(fault.for_ns // 2, lambda: group.unheard.add(fault.node) if fault.node in group.late_ns else None)

    def over() -> None:
        group.late_ns.pop(fault.node, None)
        group.unheard.discard(fault.node)

    cluster.clock.after(fault.for_ns, over)
    return True


def _flip(cluster: Cluster, fault: Fault) -> bool:
    """Crash a node and flip one bit on its disk."""
    return cluster.checkers.others_hold_all(fault.node) and _flipped_at_rest(cluster, fault)


def _flipped_at_rest(cluster: Cluster, fault: Fault) -> bool:
    node = cluster.nodes[fault.node]
    if not node.up:
        return False
    cluster.crash(fault.node, power=fault.draw < 0.5)
    flipped = [name for name in sorted(node.disk.folders) if node.disk.flip_bit(name)]
    _after_flips(cluster, fault, flipped)
    return bool(flipped)


def _after_flips(cluster: Cluster, fault: Fault, flipped: list[str]) -> None:
    node = cluster.nodes[fault.node]
    node.lost_data = node.lost_data or bool(flipped)
    cluster.checkers.disk_lost()
    cluster.clock.after(fault.for_ns, node.start)


def _power_all(cluster: Cluster, fault: Fault) -> bool:
    for node_id in sorted(cluster.nodes):
        _down(cluster, replace(fault, node=node_id, for_ns=fault.for_ns // 3), power=True)
    return True


def _pause(cluster: Cluster, fault: Fault) -> bool:
    process = cluster.nodes[fault.node].process
    if process is None or process.paused:
        return False
    process.pause(suspended=False)
    cluster.clock.after(fault.for_ns, lambda: process.resume(timers_first=fault.draw < 0.5))
    return True


def _suspend(cluster: Cluster, fault: Fault) -> bool:
    """Suspend a host: a pause, and its event-loop timers do not advance."""
    process = cluster.nodes[fault.node].process
    if process is None or process.paused:
        return False
    process.pause(suspended=True)
    cluster.clock.after(fault.for_ns, lambda: process.resume(timers_first=fault.draw < 0.5))
    return True


def _toggle(
    cluster: Cluster, held: set[str] | set[tuple[str, str]] | set[tuple[str, str, bool]], what: object, for_ns: int
) -> bool:
    if what in held:
        return False
    held.add(what)  # type: ignore[arg-type]
    cluster.clock.after(for_ns, lambda: held.discard(what))
    return True


def _cut(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.network.down, fault.node, fault.for_ns)


def _cut_metadata(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.group.cut, fault.node, fault.for_ns)


def _cut_link(cluster: Cluster, fault: Fault) -> bool:
    if fault.draw < 0.5:
        _toggle(cluster, cluster.network.cuts, (fault.other, fault.node), fault.for_ns)
    return _toggle(cluster, cluster.network.cuts, (fault.node, fault.other), fault.for_ns)


def _cut_connection(cluster: Cluster, fault: Fault) -> bool:
    """Cut one connection of a node: of nodes, of publishers or of readers."""
    link = (REPLICATION, INGEST, "reads")[int(fault.draw * 3)]
    return _toggle(cluster, cluster.network.links_down, (fault.node, link), fault.for_ns)


def _half_open(cluster: Cluster, fault: Fault) -> bool:
    """Block one direction of a connection until its library notices."""
    network, number = cluster.network, int(fault.draw * 6)
    link, sends = (REPLICATION, INGEST, "reads")[number // 2], bool(number % 2)
    cut = (fault.node, link, sends)
    if (fault.node, link) in network.links_down or not _toggle(cluster, network.half_open, cut, min(fault.for_ns, SILENT_NS)):
        return False

    def found_out() -> None:
        if not cluster.healed and cut not in network.half_open:
            _toggle(cluster, network.links_down, (fault.node, link), fault.for_ns - SILENT_NS)

    if fault.for_ns > SILENT_NS:
        cluster.clock.after(SILENT_NS, found_out)
    return True


def _slow_consumer(cluster: Cluster, fault: Fault) -> bool:
    return _toggle(cluster, cluster.network.slow, fault.node, fault.for_ns)


def _reconnect(cluster: Cluster, fault: Fault) -> bool:
    cluster.network.drop_in_flight(fault.node)
    return True


def _metadata_down(cluster: Cluster, fault: Fault) -> bool:
    cluster.group.set_available(False)
    cluster.clock.after(fault.for_ns, lambda: cluster.group.set_available(True))
    return True


def _slow_disk(cluster: Cluster, fault: Fault) -> bool:
    disk, usual = cluster.nodes[fault.node].disk, cluster.plan.flush_ns
    disk.flush_ns = int(usual * 50 + 100 * MS)
    cluster.clock.after(fault.for_ns, lambda: setattr(disk, "flush_ns", usual))
    return True


def _dragging_disk(cluster: Cluster, fault: Fault) -> bool:
    """Slow down the disk of one node or of all."""
    chosen = cluster.nodes.values() if fault.draw < 0.1 else (cluster.nodes[fault.node],)
    for disk in (node.disk for node in chosen):
        disk.flush_ns = int((0.2 + fault.draw) * S)
        cluster.clock.after(fault.for_ns, partial(setattr, disk, "flush_ns", cluster.plan.flush_ns))
    return True


def _flush_error(cluster: Cluster, fault: Fault) -> bool:
    node = cluster.nodes[fault.node]
    if not node.up:
        return False
    node.disk.fail_syncs = 1
    cluster.clock.after(fault.for_ns, lambda: cluster.restart_if_failed(fault.node))
    return True


def _full_disk(cluster: Cluster, fault: Fault) -> bool:
    disk = cluster.nodes[fault.node].disk
    disk.set_capacity(int(fault.draw * 300))

    def freed() -> None:
        disk.set_capacity(None)
        cluster.restart_if_failed(fault.node)

    cluster.clock.after(fault.for_ns, freed)
    return True


def _hang_promotion(cluster: Cluster, fault: Fault) -> bool:
    cluster.candidates_fail = True
    cluster.clock.after(fault.for_ns, lambda: setattr(cluster, "candidates_fail", False))
    return True


def _retention(cluster: Cluster, fault: Fault) -> bool:
    """Apply retention on the leader and, later, on others."""
    process = cluster.nodes[fault.node].process
    if process is None or process.paused:
        return False
    done = False
    for replica in process.replicas.values():
        log = replica.log
        offset = log.log_start_offset + int((log.high_watermark + 1 - log.log_start_offset) * fault.draw)
        if replica.replica.role is RoleName.LEADER and offset > log.log_start_offset:
            replica.drop_prefix(offset)
            _expired(cluster, replica, offset, fault)
            done = True
    return done


def _truncate(cluster: Cluster, fault: Fault) -> bool:
    """Delete the records below a committed offset, as an operator."""
    process = cluster.nodes[fault.node].process
    if process is None or not cluster.group.available:
        return False
    for key, replica in sorted(process.replicas.items()):
        log = replica.log
        offset = log.log_start_offset + int((log.high_watermark + 1 - log.log_start_offset) * fault.draw)
        request = pb.TruncateBefore(stream=key.stream, uid=key.uid, partition=key.partition, offset=offset)
        cluster.group.apply(pb.ControlRequest(truncateBefore=request))
    return bool(process.replicas)


def _purge(cluster: Cluster, fault: Fault) -> bool:
    """Purge a key or the subject below a committed offset, as an operator."""
    process = cluster.nodes[fault.node].process
    if process is None or not cluster.group.available or cluster.plan.contends or cluster.plan.derives:
        return False
    for stream_key, replica in sorted(process.replicas.items()):
        log = replica.log
        end_offset = round((log.high_watermark + 1) * (0.5 + fault.draw / 2))
        deletes = cluster.plan.has_deletes(stream_key.stream)
        key = key_of(int(fault.draw * 1000), deletes=deletes) if log.config.is_cleaned else -1
        request = pb.PurgeRecords(
            stream=stream_key.stream, uid=stream_key.uid, partition=stream_key.partition, endOffset=end_offset,
            subjects=[replica.subject] if key < 0 else [], keys=[b"%d" % key] if key >= 0 else [],
        )  # fmt: skip
        before = {p.number for p in cluster.group.partition(stream_key.stream, stream_key.partition).purges}
        response = cluster.group.apply(pb.ControlRequest(purgeRecords=request))
        if response.error == pb.ControlResponse.OK and response.partition.purges:
            ghost, numbers = cluster.checkers.ghost(stream_key), {p.number for p in response.partition.purges}
            ghost.purges = [purge for purge in ghost.purges if purge.number not in before - numbers]  # this one took its place
            ghost.purges.append(GhostPurge(max(numbers), key, end_offset, deletes))
            cluster.counters["purges"] += 1
    return bool(process.replicas)


def _expired(cluster: Cluster, leader: SimReplica, offset: int, fault: Fault) -> None:
    for node_id in sorted(set(cluster.nodes) - {fault.node, fault.other}):
        process = cluster.nodes[node_id].process
        replica = process.replicas.get(leader.key) if process is not None and not process.paused else None
        if replica is not None and replica.log.log_start_offset < min(offset, replica.log.high_watermark + 1):
            replica.drop_prefix(offset)


def _forged_notice(cluster: Cluster, fault: Fault) -> bool:
    """Send a node a forged notice of its leader."""
    process = cluster.nodes[fault.node].process
    if process is None:
        return False
    for key, replica in sorted(process.replicas.items()):
        truth, log = cluster.group.partition(key.stream, key.partition), replica.log
        start, high = log.high_watermark + 1, log.log_end_offset + int(fault.draw * 100)
        notice = LeaderNotice(
            leader=truth.leader,
            leader_epoch=truth.leader_epoch,
            epoch=truth.epoch,
            epoch_start_offset=0,
            high_watermark=high,
            log_start_offset=start,
        )
        cluster.network.publish("anybody", f"notify.{fault.node}.{replica.subject}", notice)
    return bool(process.replicas)


def _wall_clock(cluster: Cluster, fault: Fault) -> bool:
    cluster.nodes[fault.node].wall_offset_ns = int((fault.draw - 0.5) * 7200 * S)
    years = fault.draw < 0.2  # the metadata leader's is one of them
    cluster.group.wall_offset_ns = 10 * _YEAR_NS if years else int((fault.draw - 0.5) * 7200 * S)
    return True


def _behind(cluster: Cluster, fault: Fault) -> bool:
    """Overload a process with the shipped rule for rejections. One ns stands for each byte."""
    process, clock = cluster.nodes[fault.node].process, cluster.clock
    if process is None:
        return False
    room, since_ns = process.room, clock.now_ns
    for look in range(_LOOKS):
        clock.after(fault.for_ns * look // _LOOKS, lambda: room.update_wait(clock.now_ns, since_ns - 1, clock.now_ns))
    clock.after(fault.for_ns, lambda: room.update_wait(clock.now_ns, clock.now_ns, clock.now_ns))
    return True


def _transfer(cluster: Cluster, fault: Fault) -> bool:
    if not cluster.group.available:
        return False
    for _, stream in sorted(cluster.group.image.streams.items()):  # a Map follows the hash
        number = int(fault.draw * len(stream.partitions))
        request = pb.ElectLeader(stream=stream.name, uid=stream.uid, partition=number, node=fault.node)
        cluster.group.apply(pb.ControlRequest(electLeader=request))
    return True


_STRIKES = {
    "kill": _kill, "power": _power, "empty": _empty, "pause": _pause, "cut": _cut, "cut-metadata": _cut_metadata,
    "cut-link": _cut_link, "slow-consumer": _slow_consumer, "reconnect": _reconnect, "metadata-down": _metadata_down,
    "slow-disk": _slow_disk, "flush-error": _flush_error, "full-disk": _full_disk, "hang-promotion": _hang_promotion,
    "retention": _retention, "wall-clock": _wall_clock, "power-all": _power_all, "transfer": _transfer, "flip": _flip,
    "kill-power": _kill_power, "empty-last": _empty_last, "flip-last": _flip_last, "flip-newest": _flip_newest,
    "cut-connection": _cut_connection, "flip-running": _flip_running, "suspend": _suspend,
    PUT_BACK: _put_back, FORGE: _forged_notice, DRAG: _dragging_disk,
    TRUNCATE: _truncate, PURGE: _purge, BEHIND: _behind,
    MOVE: move, HALF_OPEN: _half_open, OTHER_LOGS: _other_logs, TWIN: _twin, TWIN_DISK: _twin_disk, LATE: _late_answers,
    **STRIKES, **operations.STRIKES,
}  # fmt: skip
