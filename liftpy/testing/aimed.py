"""Faults that know whom they strike: a leader, at the moment at which a bug would show. Chance alone hardly tells these stories.

The edge of a session: a leader is cut off from the metadata group, or its host sleeps as well, until the moment at which its session is
ended; publishes wait for it then. On a clock that runs slow its lease has lasted longest. HW that stands still: one member of an ISR
fetches no more, whole segments lie above HW, and housekeeping looks at them with a wall clock that has jumped; then those that hold
what is committed may die. Publishes cut off: of a leader's connections the one that carries them is gone, and nothing else is.
Times that change: the cluster's session and lease become others while one of these stories is told, or another metadata leader begins.
"""

from __future__ import annotations

from functools import partial

from liftpy.config import AckPolicy
from liftpy.replica.data_path import INGEST
from liftpy.testing.clock import MS, S
from liftpy.testing.cluster import Cluster
from liftpy.testing.plan import CUT_PUBLISHES, HW_STALLS, SESSION_ENDS, TIMES, Fault
from liftpy.testing.sim_replica import SimReplica
from liftpy.wire._pb import cluster_pb2 as pb

_LOOK_NS = 5 * MS
_LOOKS_S = 3.0
"""Sessions: by then it has ended, or something else has happened."""
_STILL, _ASLEEP = 0.35, 0.7
"""So many of the leaders at the edge stand still before it; so many less those of a host that sleeps; the others go on."""
_STANDS_FROM = 0.9
"""Of the lease, from the cut on."""
_BURSTS, _BURST = 12, 60
"""Publishes, and messages of each: more than ``_SEGMENTS`` of the smallest segments."""
_SEGMENTS = 2
_LAG_SHARE = 0.7
"""For so much of the time that a member of the ISR may lag it does."""
_DIES = 0.5
TIMES_TRIED = ((0.3, 0.2), (0.7, 0.5), (2.0, 1.5), (3.0, 1.0), (3.0, 2.9))
"""(session, lease) that the cluster's become, in s."""


def leaders(cluster: Cluster) -> list[SimReplica]:
    """Of every partition that has one which is open and runs, in the order of the keys."""
    found = [cluster.leader(key) for key in cluster.keys]
    return [leader for leader in found if leader is not None and not leader.process.paused]


def _chosen(leading: list[SimReplica], fault: Fault) -> SimReplica | None:
    return leading[int(fault.draw * 1000) % len(leading)] if leading else None


def _publish(cluster: Cluster, leader: SimReplica, policy: AckPolicy, times: int = 1, count: int = 1) -> None:
    """Its publishers send something now."""
    publisher = next((each for each in cluster.publishers if each.key == leader.key and not each.stopped), None)
    for _ in range(times if publisher is not None else 0):
        assert publisher is not None
        publisher.publish(policy, count)


def _times(cluster: Cluster) -> tuple[float, float]:
    """Session and lease that may hold now, in s."""
    times = cluster.group.image.session_times
    if times is None:
        return cluster.config.session_s, cluster.config.lease_s
    return times.longest_session_ns / S, times.longest_lease_ns / S


def session_ends(cluster: Cluster, fault: Fault) -> bool:
    """What it says of itself, and what it is told, gets lost from now on; see above."""
    group = cluster.group
    leading = sorted(leaders(cluster), key=lambda leader: leader.process.node.clock.rate)
    slowest = [leader for leader in leading if leader.process.node.clock.rate == leading[0].process.node.clock.rate]
    leader = _chosen(slowest, fault)
    if leader is None or not group.available or leader.host in group.cut:
        return False
    process = leader.process
    session_s, lease_s = _times(cluster)
    looks = int(_LOOKS_S * session_s * S) // _LOOK_NS
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
            cluster.clock.after(_LOOK_NS, partial(look, left - 1))
            return
        ends()
        cluster.clock.after(fault.for_ns, partial(group.cut.discard, leader.host))

    cluster.clock.after(_LOOK_NS, partial(look, looks))
    return True


def times_change(cluster: Cluster, fault: Fault) -> bool:
    """The cluster's session and lease become others, often just before a leader is cut off from the metadata group until its session is
    ended, and before another metadata leader begins."""
    group, held = cluster.group, cluster.group.image.session_times
    if held is None or not group.available:
        return False
    session_s, lease_s = TIMES_TRIED[int(fault.draw * 1000) % len(TIMES_TRIED)]
    request = pb.SetSessionTimes(sessionMs=round(session_s * 1000), leaseMs=round(lease_s * 1000), change=held.change)
    group.apply(pb.ControlRequest(setSessionTimes=request))
    if fault.for_ns % 3:
        session_ends(cluster, fault)
    if fault.for_ns % 5 < 2:
        cluster.clock.after(_LOOK_NS * (1 + fault.for_ns % 40), partial(_another_leads, cluster))
    return group.image.session_times is not held


def _another_leads(cluster: Cluster) -> None:
    if cluster.group.available:
        cluster.group.set_available(False)
        cluster.group.set_available(True)


def hw_stalls(cluster: Cluster, fault: Fault) -> bool:
    """See above. HW is let go before the metadata group hears of it, or a little after."""
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
            cluster.clock.after(_LOOK_NS, look)

    def expire() -> None:
        age_s = leader.log.config.retention_age_s
        leader.apply_retention(leader.process.now_ns() + leader.process.node.wall_offset_ns + int((age_s + 1) * S))
        if fault.draw < _DIES:
            cluster.crash(leader.node_id, power=True)
            cluster.clock.after(fault.for_ns, cluster.nodes[leader.node_id].start)

    cluster.clock.after(_LOOK_NS, look)
    cluster.clock.at(until_ns + fault.for_ns, partial(network.cuts.difference_update, held))
    return True


def cut_publishes(cluster: Cluster, fault: Fault) -> bool:
    """See above."""
    leader = _chosen(leaders(cluster), fault)
    cut = (leader.host, INGEST) if leader is not None else None
    if cut is None or cut in cluster.network.links_down:
        return False
    cluster.network.links_down.add(cut)
    cluster.clock.after(fault.for_ns, partial(cluster.network.links_down.discard, cut))
    return True


STRIKES = {SESSION_ENDS: session_ends, TIMES: times_change, HW_STALLS: hw_stalls, CUT_PUBLISHES: cut_publishes}
"""By kind."""
