"""A simulated cluster whose metadata group is Raft on its own nodes, controllers that come and go among the faults included."""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from liftpy.core.base.invariants import check
from liftpy.core.metadata.controller_list import majority
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import InvariantError
from tests.simulation.raft.disk import faulty_disk
from tests.simulation.raft.ghost import Violation
from tests.simulation.raft.group_simulation import _virtual
from tests.simulation.replica.availability import Availability
from tests.simulation.replica.clock import S
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.faults import Nemesis
from tests.simulation.replica.group import SimGroup
from tests.simulation.replica.plan import Plan, draw_plan
from tests.simulation.replica.run import Outcome
from tests.simulation.replica.trace import Trace
from tests.simulation.whole.group import Host, RaftGroup

if TYPE_CHECKING:
    from tests.simulation.replica.process import SimNode, SimProcess

_CHECK_NS = S // 2
_QUIET_S = 4.0
"""Nobody is lost for good so soon after a change of the controllers was asked for: what the change comes to is not known."""
_LONG_GRACE_S = 60.0
_OFTEN = (1.5, 4.0, 10.0)
"""Between two changes of the controllers, s."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of the controllers: asked for at ``at_ns`` after the start."""

    at_ns: int
    what: str
    draw: float


@dataclass(frozen=True, slots=True)
class WholePlan:
    """``plan``: of the nodes; ``controllers``: who forms the group at first; ``gone`` is lost for good at ``gone_ns``, '' nobody."""

    plan: Plan
    controllers: tuple[str, ...]
    changes: tuple[Change, ...]
    gone: str
    gone_ns: int


def draw_whole_plan(seed: int, horizon_s: float = 120.0) -> WholePlan:
    """Nodes that are drained, as the profile ``drains`` draws them; and what befalls the controllers."""
    plan = draw_plan(seed, "drains", horizon_s)
    rng = random.Random(f"{seed}/whole")
    config = plan.config
    if rng.random() < 0.5:
        config = replace(config, heartbeat_interval_s=0.25, lease_s=1.5, session_s=2.0)
    if rng.random() < 0.5:
        config = replace(config, replacement_grace_s=rng.choice((1.0, 4.0)))
    nodes = [f"n{number}" for number in range(1, plan.node_count + 1)]
    controllers = tuple(nodes[: rng.choice((3, 3, 3, 1))])
    changes, at_s, gap_s = [], 1.0, rng.choice(_OFTEN)
    while (at_s := at_s + rng.expovariate(1 / gap_s)) < horizon_s:
        changes.append(Change(int(at_s * S), rng.choice(("add", "remove", "replace", "replace")), rng.random()))
    gone = rng.choice((*nodes, *controllers)) if rng.random() < 0.6 else ""
    plan = replace(plan, config=config, metadata_loss=min(plan.metadata_loss, 0.02))
    return WholePlan(plan, controllers, tuple(changes), gone, int(rng.uniform(2.0, 12.0) * S))


class WholeCluster(Cluster):
    """Its metadata group is in ``folder``."""

    group: RaftGroup

    def __init__(self, whole: WholePlan, folder: Path, trace: Trace | None = None) -> None:
        self.whole = whole
        self._folder = folder
        super().__init__(whole.plan, trace)
        group = self.group
        group.run.faults.rates["drop"] = group.loss
        group.down = lambda host: host in self.network.down
        group.cut_between = lambda one, other: (one, other) in self.network.cuts
        group.hosts = {name: Host(group, name) for name in self.nodes}
        self._changed_ns = 0

    def make_group(self) -> SimGroup:
        return RaftGroup(self.clock, self.plan.seed, self.plan.config, self._folder, self.whole.controllers)

    # ---- what befalls a node befalls its controller -------------------------------------------------------------------
    def begin(self, process: SimProcess) -> None:
        self.group.hosts[process.host].begin(process)
        super().begin(process)

    def ended(self, machine: SimNode, *, power: bool) -> None:
        self.group.hosts[machine.host].end()
        self.group.run.gone(machine.host, power=power)

    def stands_still(self, process: SimProcess, *, still: bool) -> None:
        host = self.group.hosts[process.host]
        if still:
            host.pause()
        else:
            host.resume()

    # ---- what the operator does ---------------------------------------------------------------------------------------
    def strike_controllers(self, start_ns: int) -> None:
        """All that the plan has for them, from ``start_ns`` on."""
        for change in self.whole.changes:
            self.clock.at(start_ns + change.at_ns, lambda change=change: self._change(change))  # type: ignore[misc]
        if self.whole.gone:
            self.clock.at(start_ns + self.whole.gone_ns, self._lose)
        self._look_after()

    def _change(self, change: Change) -> None:
        """Sensible or not; but none while somebody who is gone for good waits to be replaced."""
        if self.healed or self._gone():
            return
        rng, now = random.Random(change.draw), self.group.run.newest_list
        others = [name for name in sorted(self.nodes) if not now.names(name)]
        asked = pb.ChangeControllers()
        if change.what != "remove" and not others:
            return
        match change.what:
            case "add":
                if len(now.voters) >= 5:
                    return
                asked.what, asked.node = asked.ADD, rng.choice(others)
            case "remove":
                asked.what, asked.node = asked.REMOVE, rng.choice(now.members)
            case _:
                asked.what, asked.node, asked.replaced = asked.REPLACE, rng.choice(others), rng.choice(now.voters)
        self._ask_for(asked)

    def _ask_for(self, asked: pb.ChangeControllers) -> None:
        self.counters["changes of the controllers asked for"] += 1
        self._changed_ns = self.clock.now_ns
        self.group.apply(pb.ControlRequest(changeControllers=asked))

    def _gone(self) -> str:
        return next((name for name, node in self.nodes.items() if node.is_gone), "")

    def _lose(self) -> None:
        """A node is gone for good, its controller with it; everything else has to go on, and its place to be taken."""
        name, group = self.whole.gone, self.group
        quiet = self.clock.now_ns - self._changed_ns > _QUIET_S * S
        staying = [voter for voter in group.run.newest_list.voters if voter != name]
        most = max((len(p.target or p.replicas) for s in group.image.streams.values() for p in s.partitions), default=0)
        one = group.run.newest_list
        if (
            self.healed
            or not quiet
            or one.learner
            or one.leaving
            or len(staying) < majority(len(one.voters))
            or most >= len(self.nodes)
            or not self.checkers.others_hold_all(name)
            or any(len({*held.voters} - {name}) < held.majority for held in group.run.lists())
        ):
            if not self.healed:
                self.clock.after(_CHECK_NS, self._lose)
            return
        self.counters["a node is gone for good"] += 1
        self.counters["a controller is gone for good"] += one.names(name)
        if self.trace is not None:
            self.trace.note(f"*** {name} is gone for good")
        self.nodes[name].is_gone = True
        self.crash(name, power=True)

    def _look_after(self) -> None:
        """An operator drains lost nodes and replaces lost controllers. At the end, all other nodes take replicas."""
        gone, group, image = self._gone(), self.group, self.group.image
        now = group.run.newest_list
        if gone and not (now.learner or now.leaving) and now.names(gone):
            others = [name for name in sorted(self.nodes) if not now.names(name) and image.is_live(name)]
            asked = pb.ChangeControllers(what=pb.ChangeControllers.REMOVE, node=gone)
            if others:
                asked = pb.ChangeControllers(what=pb.ChangeControllers.REPLACE, node=others[0], replaced=gone)
            self._ask_for(asked)
        known = image.nodes.get(gone)
        if known is not None and not known.leaving and self.config.replacement_grace_s > _LONG_GRACE_S:
            group.apply(pb.ControlRequest(setNode=pb.SetNode(nodeId=gone, leaving=True)))
        if self.healed:
            for name, node in sorted(image.nodes.items()):
                if node.leaving and name != gone:
                    group.apply(pb.ControlRequest(setNode=pb.SetNode(nodeId=name, leaving=False)))
                if not node.weight:  # otherwise the replicas of the lost node may have no other place
                    group.apply(pb.ControlRequest(setNode=pb.SetNode(nodeId=name, weight=1.0)))
        room = len(self.nodes) - bool(gone)
        for name, stream in sorted(image.streams.items()):
            if max(len(p.target or p.replicas) for p in stream.partitions) > room:
                group.apply(pb.ControlRequest(alterStream=pb.AlterStream(name=name, replicationFactor=room)))
        self.clock.after(2 * _CHECK_NS if not self.healed else _CHECK_NS, self._look_after)

    # ---- the end -------------------------------------------------------------------------------------------------------
    def heal(self) -> None:
        super().heal()
        self.group.run.faults.heal()

    def unconverged(self) -> str:
        """What the controllers still lack, '' when all is well."""
        run, now = self.group.run, self.group.run.newest_list
        if now.learner or now.leaving:
            return f"a change is under way: {now}"
        if set(run.up) != set(now.voters):
            return f"{sorted(run.up)} are up of {now}"
        if not all(member.log.probation.over for member in run.up.values()):
            return "a member is on probation"
        if not any(member.log.leads and member.member.is_active for member in run.up.values()):
            return "nobody is in office"
        if len({member.log.applied_index for member in run.up.values()}) != 1:
            return "the members have not applied the same"
        for name, host in self.group.hosts.items():
            if not self.nodes[name].is_gone and (host.member is not None) is not (name in now.voters):
                return f"{name} has another role than it should"
        return ""

    def describe(self) -> str:
        run = self.group.run
        members = [
            f"{name}: term {member.log.term}{', leads' if member.log.leads else ''}, applied {member.log.applied_index}"
            for name, member in sorted(run.up.items())
        ]
        return "\n".join([super().describe(), f"controllers: {run.newest_list}", *members, self.unconverged()])


@contextmanager
def whole_cluster(whole: WholePlan, trace: Trace | None = None) -> Iterator[WholeCluster]:
    """A cluster in a folder of its own, with the library's clock and random."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="liftpy-whole-", dir=base))
    cluster = WholeCluster(whole, folder, trace)
    run = cluster.group.run
    try:
        with _virtual(run), faulty_disk() as run.disk:
            yield cluster
    finally:
        for member in run.up.values():
            member.log.journal.abandon()
        shutil.rmtree(folder, ignore_errors=True)


def run_whole(whole: WholePlan, events: int, *, trace: bool = False) -> Outcome:
    """Chaos for about ``events`` events, then everything heals."""
    kept = Trace() if trace else None
    violation, details = None, ""
    with whole_cluster(whole, kept) as cluster:
        start_ns = cluster.clock.now_ns
        try:
            _run(cluster, events)
        except (InvariantError, Violation) as error:
            violation, details = str(error), cluster.describe()
        except Exception as error:  # a bug is a finding too
            reason = error.__cause__ if isinstance(error.__cause__, Violation) else error
            violation, details = f"{type(reason).__name__}: {reason}", traceback.format_exc()
        cluster.group.run.seen = +cluster.group.run.seen
        counters = cluster.counters + cluster.network.counters + cluster.group.counters + cluster.group.run.seen
        seconds, happened = (cluster.clock.now_ns - start_ns) / S, cluster.clock.events
    return Outcome(whole.plan, happened, violation, counters, kept, seconds, details, min(events, happened))


def _run(cluster: WholeCluster, events: int) -> None:
    cluster.boot()
    cluster.group.at_once = False
    cluster.start_clients()
    nemesis, availability = Nemesis(cluster, cluster.plan.faults), Availability(cluster)
    cluster.strike_controllers(cluster.clock.now_ns)
    while cluster.clock.events < events:
        cluster.clock.step()
    nemesis.stopped = availability.stopped = True
    cluster.heal()
    cluster.wait_for(lambda: not cluster.unconverged(), 60, "L5")
    cluster.become_whole()
    check(not cluster.unconverged(), "L5", cluster.unconverged())


def run_seed(seed: int, events: int, *, trace: bool = False) -> Outcome:
    """The plan that ``seed`` draws."""
    return run_whole(draw_whole_plan(seed), events, trace=trace)
