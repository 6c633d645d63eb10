"""A metadata group in virtual time: whole controllers, and nodes that depend on them, on a bus that misbehaves.

Shipped: sessions, hardening, journal, snapshots, probation and driver tick around the library; the state machine, the duties of the
metadata leader, the feed and its followers, the rules of membership (``member.py``, ``nodes.py``). The bus drops, delays, duplicates
and reorders; links are cut; controllers and nodes stand still, and go on with what waited; they crash at any tick, before or after
the flush, and come back with what was flushed, or with what a power cut leaves; writes, flushes and renames fail, once each, short or
with an error; a minority of controllers comes back with an emptied folder, or with the copy of one that an earlier process had left,
as long as the others have heard a process that the copy does not know; somebody publishes forged records on the feed. Clients create
and delete streams, move leaderships, and order barriers.

In seeds from ``CHANGES_FROM`` on clients change who forms the group, among all that: nodes become controllers, controllers go and are
replaced, in any order, whatever is dead; at the end the change that is under way has come to its end, and exactly those who are
controllers run as such [M10].

In seeds from ``DEADLINES_FROM`` on controllers tick as the shipped driver does: when a frame arrives, and at the deadline that
``time_to_next_tick_s`` computes. So followers rest while they hear a leader, the leader of a settled group sends append messages less
often, and some ticks are late. In all other seeds controllers tick every 0.03 s.

Faults that matter only together come as plots (``plots.py``), each aimed at one rule. Checked while it runs: ``checks.py``, the ghost,
and on nodes (``nodes.py``) that none is fenced while its lease runs, nor believes a lease on an image from before it was [D22]. At the
end, healed: every acknowledged operation is on every member [M4], all hold the same image, the nodes are live, hold leases and the same
image [L5]. Each kind of fault draws from its own generator; the same seed gives the same history in every process.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pysyncobj.syncobj

import sidecar.metadata.identity
from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.metadata.controller.streams import AS_MANY
from liftpy.core.metadata.controller_list import ControllerList, first_list, waits_for
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.placement import POLICIES
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.quorum.driver import time_to_next_tick_s
from sidecar.quorum.library import APPEND_EVERY_S, MAX_APPEND_BYTES, Node, check_library
from tests.born import born_image
from tests.simulation.raft.asking import Asking
from tests.simulation.raft.checks import Checks
from tests.simulation.raft.disk import FaultyDisk, faulty_disk
from tests.simulation.raft.draws import Draws, Secrets
from tests.simulation.raft.faults import DEATHS, Faults
from tests.simulation.raft.ghost import Ghost, Violation
from tests.simulation.raft.member import DiskBefore, SimMember
from tests.simulation.raft.nodes import NODES, DataNode

CHANGES_FROM = 1000
"""Seeds from here on."""
LEVELS_FROM = 5000
"""Seeds from here on begin as new groups do, and decide the feature level first. Those before begin with an image that has a level."""
DEADLINES_FROM = 10_000
"""Seeds from here on."""
TICK_S = 0.03
CHAOS_S = 12.0
PEACE_S = 40.0
MAX_FRAMES_PER_TICK = 500
"""More is a busy loop: as shipped, thousands while a snapshot is asked for and not ready."""
_CLIENT_TIMEOUT_NS = 2 * NS_PER_S
_WAKE_S = 1e-4
"""Time from an arrival to the tick that it causes, in seconds."""


class Run:
    """One seed. ``seen``: what happened how often."""

    make_member: type[SimMember] = SimMember

    def __init__(self, seed: int, folder: Path) -> None:
        self.draws = draws = Draws(seed)
        self.folder = folder
        self.now = 100.0
        self.majority = False
        self.config = ReplicationConfig(lease_s=1.5)  # as when the mutants' seeds were found
        made = draws["made"]
        self.members = tuple(f"n{i}" for i in range(made.choice((3, 3, 5))))
        self.compact_after = made.choice((15, 60, 100_000))
        self.max_payload = made.choice((1200, 8192, 1 << 20))
        """Of the NATS server: what travels is cut into chunks accordingly."""
        self.piece_bytes = made.choice((700, 256 * 1024))
        """Of a snapshot that the library sends."""
        self.append_bytes, self.barrier_sender = draws["appends"].choice(((MAX_APPEND_BYTES, ""), (3000, "x" * 400)))
        """Of entries in one message; and what makes barriers large enough for several messages."""
        if self.barrier_sender and draws["compaction beside large barriers"].random() < 0.7:
            self.compact_after = 100_000  # who comes back is sent entries, and no snapshot
        self.changes = seed >= CHANGES_FROM
        """Clients change the controllers, too."""
        self.changes_rate = draws["made with changes"].choice((0.004, 0.02, 0.08))
        self.first_image = born_image(times=self.config.session_times) if seed < LEVELS_FROM else None
        """Of every state machine; None: of a new group."""
        self.spoken_by_nodes = SUPPORTED_LEVELS
        """Feature levels that nodes which are no controllers speak."""
        self.roles = set(self.members)
        """Who runs as a controller, or would if it were up."""
        self._left_at: dict[str, int] = {}
        """Who has ceased to be one -> index of the list that said so."""
        self.has_wide_streams = draws["made with wide streams"].random() < 0.5
        """So that a snapshot of the feed takes several messages."""
        self.has_long_entries = draws["made with long entries"].random() < 0.7
        self.ghost = Ghost()
        self.ghost.watch = self._decided
        self.seen: Counter[str] = Counter()
        self.acked: dict[bytes, int] = {}
        """Operation id -> index, of what was acknowledged."""
        self.fenced_at: dict[tuple[str, int], int] = {}
        """(node, incarnation) -> index at which it was fenced last."""
        self.faults = Faults(self)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._arrives: dict[tuple[str, str], float] = {}
        """When the last frame of a link arrives: without a fault none overtakes another."""
        self._sent = 0
        self._streams = 0
        self._weights = 0
        self.checks = Checks(self)
        self._has_deadlines = seed >= DEADLINES_FROM
        self._barrier_rate = draws["barriers beside deadlines"].choice((0.6, 0.05, 0.0)) if self._has_deadlines else 0.6
        """Share of the leader's turns with barriers. Without entries, the group is settled more often."""
        self._late_rate = draws["rate of late ticks"].choice((0.0, 0.001, 0.01))
        self._due: dict[str, float] = {}
        """Time of the next tick of each controller, in seconds. Only with deadlines."""
        self._chaos = True
        self._next_tick = {name: self.now + draws["ticks"].random() * TICK_S for name in self.members}
        self.disk = FaultyDisk()
        self.up: dict[str, SimMember] = {}
        self.nodes = {name: DataNode(self, name) for name in NODES}

    def execute(self) -> None:
        """Chaos, then peace, then the final checks. Raises Violation."""
        with _virtual(self), faulty_disk() as self.disk:
            for name in self.members:
                self.up[name] = self.make_member(self, name)
            for node in self.nodes.values():
                node.start()
            self.disk.fault = self.faults.of_the_disk
            self._until(self.now + CHAOS_S, chaos=True)
            self.faults.heal()
            end = self.now + PEACE_S
            while self.now < end and self._unconverged():
                self._until(self.now + 0.5, chaos=False)
            self._final_checks()

    def close(self) -> None:
        """Give the files back."""
        for member in self.up.values():
            member.log.journal.abandon()
        for node in self.nodes.values():
            if node.process is not None:
                node.process.end()

    # ---- who runs as a controller -----------------------------------------------------------------------------------------
    @property
    def group(self) -> tuple[str, ...]:
        """The controllers, of which some may be down."""
        return tuple(sorted(self.roles))

    @property
    def newest_list(self) -> ControllerList:
        """As the group has decided."""
        decided = self.ghost.newest.controllers
        return decided if decided.index else first_list(self.members)

    def lists(self) -> list[ControllerList]:
        """Those by which anybody may count now."""
        return [self.newest_list, *(member.log.core.controllers for member in self.up.values())]

    def _follow_the_roles(self) -> None:
        """As the shell does: a node whose feed says that it is a controller becomes one, and one that is none any more ceases."""
        for name in [name for name, member in self.up.items() if not member.log.is_member]:
            member = self.up.pop(name)
            self._left_at[name] = max(member.log.core.controllers.index, member.log.core.dismissed_at)
            self.faults.collect(member)
            with suppress(StorageError):
                member.log.journal.close()
            member.died()
            self._no_role(name)
        for name, node in self.nodes.items():
            process = node.process
            fed = process.subscription.image.controllers if process is not None and process.knows_the_group else None
            if name not in self.roles and fed is not None and fed.names(name) and fed.index > self._left_at.get(name, -1):
                self.seen["nodes that become controllers"] += 1
                self.roles.add(name)
                self._next_tick[name] = self.now + TICK_S
                self._start(name, fed)

    def _no_role(self, name: str) -> None:
        self.seen["controllers that cease to be one"] += 1
        self.roles.discard(name)
        self._next_tick.pop(name, None)

    # ---- time ----------------------------------------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Monotonic."""
        return round(self.now * NS_PER_S)

    def wall_ns(self, name: str) -> int:
        """The wall clock of a controller."""
        return self.now_ns() + self.faults.wall_offsets_ns[name]

    def library_time(self) -> float:
        """The clock moves a little with every look at it: the library waits in loops for time to pass."""
        self.now += 1e-5
        return self.now

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Call back when so much time has passed."""
        self._at(self.now + delay_ns / NS_PER_S, callback)

    def _at(self, at: float, callback: Callable[[], None]) -> None:
        self._sent += 1
        heapq.heappush(self._queue, (at, self._sent, callback))

    def _until(self, end: float, *, chaos: bool) -> None:
        while self.now < end:
            name = min(self._next_tick, key=lambda n: (self._next_tick[n], n))
            self._chaos = chaos
            while self._queue and self._queue[0][0] <= self._next_tick[name]:
                at, _, callback = heapq.heappop(self._queue)
                self.now = max(self.now, at)
                callback()
            self.now = max(self.now, self._next_tick[name])
            self._next_tick[name] = self.now + TICK_S * (0.5 + self.draws["ticks"].random())
            if self.changes:
                self._follow_the_roles()
            if name not in self.roles:
                continue
            if chaos:
                self.faults.tick()
            member = self.up.get(name)
            if member is None:
                if self.faults.may_start(name):
                    self._start(name)
            elif member.paused_until <= self.now:
                member.resume()
                if name in self.up:
                    self._turn(member, chaos)

    def _start(self, name: str, joins: ControllerList | None = None) -> None:
        try:
            member = self.make_member(self, name, joins)
            if not member.log.is_member:  # by its own log: the feed may say that it is
                member.died()
                self._no_role(name)
                return
            self.up[name] = member
            self._due.pop(name, None)
            self.wake(name)
            self.faults.started(name)
            self.checks.started(self.up[name])
        except StorageError:
            self.seen["starts that the disk refused"] += 1  # and tries again

    # ---- a controller's tick ---------------------------------------------------------------------------------------------
    def _turn(self, member: SimMember, chaos: bool) -> None:
        """Draw the requests of clients to the controller and its death. Tick it, if ticks have no deadlines."""
        if not self._has_deadlines:
            self._tick(member, chaos)
            return
        self._befall(member, chaos)
        if member.node_id not in self._due:
            self.wake(member.node_id)

    def _befall(self, member: SimMember, chaos: bool) -> None:
        self._work(member, chaos)
        if chaos:
            self.faults.draw_death(member)

    def wake(self, name: str) -> None:
        """Let a controller tick at once."""
        if self._has_deadlines:
            self._tick_at(name, self.now + _WAKE_S)

    def _tick_at(self, name: str, at: float) -> None:
        if self._due.get(name, at + 1) > at:
            self._due[name] = at
            self._at(at, partial(self._deadline, name, at))

    def _deadline(self, name: str, at: float) -> None:
        """The time of a tick has come, unless the tick has run earlier."""
        if self._due.get(name) != at:
            return
        del self._due[name]
        member = self.up.get(name)
        if member is None:
            return
        if member.paused_until > self.now:
            self._tick_at(name, member.paused_until)
            return
        member.resume()
        if self.up.get(name) is not member:
            return
        self._tick(member, self._chaos)
        if self.up.get(name) is not member or name in self._due:
            return
        if member.inbox or member.log.core.behind:
            self.wake(name)
            return
        rest_s, draw = self.rest_s(member), self.draws["late ticks"]
        late_s = draw.random() * 0.4 if draw.random() < self._late_rate else draw.random() * 0.002
        self._tick_at(name, self.now + rest_s + late_s)

    def rest_s(self, member: SimMember) -> float:
        """Set the time to the next tick as the driver does, and return it."""
        core = member.log.core
        duty_s = member.member.time_to_next_duty_ns(self.now_ns()) / NS_PER_S
        core.rest_s = time_to_next_tick_s(core, member.log.transport, duty_s)
        if core.leads:
            self.seen["ticks of a settled leader"] += core.until_append_s() > APPEND_EVERY_S
        self.seen["late ticks"] += core.turn_is_late
        return core.rest_s

    def _tick(self, member: SimMember, chaos: bool) -> None:
        if not self._has_deadlines:
            self._befall(member, chaos)
        frames, member.inbox = member.inbox, []
        disk = DiskBefore(self.folder / member.node_id) if member.death == "within" else None
        if member.death == "before":
            member.log.journal.sync = lambda: None  # type: ignore[method-assign]
        try:
            member.tick(frames)
            dies = bool(member.death) and (disk is None or disk.written)
            self.checks.ticked(member, flushed=not dies or member.death == "after")
            if not dies:
                self._send(member)
                member.after_tick()
        except StorageError as error:
            if isinstance(error.__cause__, Violation):
                raise
            member.death = "by the disk, within"
            with suppress(StorageError):
                member.log.journal.close()
            self.checks.died(member)
            self.faults.crash(member)
            return
        if dies:
            if disk is not None:
                self.seen[disk.tear(self.draws["tear"])] += 1
            self.faults.crash(member)

    def _send(self, member: SimMember) -> None:
        outbox = member.log.transport.sessions.outbox
        if len(outbox) > MAX_FRAMES_PER_TICK * max(1, 65_536 // self.max_payload):
            raise Violation(f"L7: {len(outbox)} frames in one tick of {member.node_id}")
        leaving, outbox[:] = outbox[:], []
        for receiver, frame in leaving:
            self._send_frame(member.node_id, receiver, frame)

    # ---- the bus -------------------------------------------------------------------------------------------------------
    def _send_frame(self, sender: str, receiver: str, frame: bytes) -> None:
        draw, rates = self.draws["frames"].random, self.faults.rates
        lost, twice, late, jitter, delay = draw(), draw(), draw(), draw(), draw()
        slow_s = self.faults.plots.delay_s(sender, receiver)
        if self.faults.link_is_cut(sender, receiver) or lost < rates["drop"] or slow_s is None:
            self.seen["frames lost"] += 1
            return
        for _ in range(2 if twice < rates["duplicate"] else 1):
            at = max(self.now + slow_s + 0.001 + jitter * 0.002, self._arrives.get((sender, receiver), 0.0))
            if late < rates["delay"]:
                at += delay * 0.4  # and is overtaken
            else:
                self._arrives[(sender, receiver)] = at
            self._at(at, partial(self._arrived, sender, receiver, frame))

    def _arrived(self, sender: str, receiver: str, frame: bytes) -> None:
        if receiver in self.up:
            self.up[receiver].inbox.append((sender, frame))
            self.wake(receiver)

    def travel(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        """One message beside the group's own frames."""
        draw, rates = self.draws["messages"].random, self.faults.rates
        lost, late, delay = draw(), draw(), draw()
        if self.faults.link_is_cut(sender, receiver) or lost < rates["drop"]:
            self.seen["messages lost"] += 1
            return
        delay_s = 0.001 + (delay * 0.8 if late < rates["delay"] else delay * 0.004)
        self._at(self.now + delay_s, lambda: None if self.faults.link_is_cut(sender, receiver) else arrive())

    def published(self, member: SimMember, entry: pb.FeedEntry) -> None:
        """The metadata leader, or who takes itself for it, puts an entry on the feed."""
        said = entry.SerializeToString()
        self.seen["feed entries published"] += len(entry.records) > 0
        for node in self.nodes.values():
            self.travel(member.node_id, node.node_id, partial(self._fed, node, said))

    def _fed(self, node: DataNode, said: bytes) -> None:
        process = node.process
        if process is not None and not self.faults.plots.feed_is_cut(node.node_id):
            process.through(lambda: process.published(said))

    def is_cut(self, name: str) -> bool:
        """Whether the connection of ``name`` is down."""
        return self.faults.connection_is_cut(name)

    def is_absent(self, node_id: str) -> bool:
        """Whether the bus says that nobody listens for the node."""
        return self.nodes[node_id].process is None or self.is_cut(node_id)

    def somebody(self) -> SimMember | None:
        """Any controller that listens."""
        return self.draws["messages"].choice(list(self.up.values())) if self.up else None

    def restart_node(self, node: DataNode) -> None:
        """The process ends, and its supervisor starts it again."""
        node.kill()
        self.later(NS_PER_S // 2, node.start)

    # ---- clients -------------------------------------------------------------------------------------------------------
    def _work(self, member: SimMember, chaos: bool) -> None:
        draw = self.draws["work"]
        quiet = self.faults.plots.is_quiet
        if member.log.leads and draw.random() < self._barrier_rate:
            for _ in range(draw.randint(1, 4)):
                request = pb.ControlRequest(barrier=pb.Barrier(), operationId=draw.randbytes(16), sender=self.barrier_sender)
                if not quiet:
                    member.decide(request, _CLIENT_TIMEOUT_NS, partial(self._acked, request))
        if chaos and member.log.leads and draw.random() < 0.02:
            self.ask_here(member, draw, draw.randint(_CLIENT_TIMEOUT_NS // 2, 2 * _CLIENT_TIMEOUT_NS), quiet=quiet)
        if chaos and self.changes and self.draws["changes"].random() < self.changes_rate:
            self._ask_for_a_change()
        if chaos and draw.random() < 0.03:
            request = self._client_request(draw)
            if not quiet:
                self.seen["requests of clients"] += 1
                Asking(
                    self,
                    "client",
                    lambda callback: callback(),
                    request,
                    _CLIENT_TIMEOUT_NS,
                    partial(self._client_answered, request),
                )

    def _ask_for_a_change(self) -> None:
        """Of the controllers, sensible or not."""
        draw, asked = self.draws["what changes"], pb.ChangeControllers()
        asked.what = draw.choice((asked.ADD, asked.REMOVE, asked.REPLACE, asked.REPLACE))
        asked.node = draw.choice(NODES)
        now = self.newest_list
        if asked.what != asked.ADD:
            asked.replaced = draw.choice(now.voters)
            asked.node = (
                draw.choice((*now.members, now.learner or now.leaving or asked.node))
                if asked.what == asked.REMOVE
                else asked.node
            )
        request = pb.ControlRequest(changeControllers=asked, operationId=draw.randbytes(16))
        self.seen["changes of the controllers that are asked for"] += 1
        Asking(self, "client", lambda c: c(), request, _CLIENT_TIMEOUT_NS, partial(self._client_answered, request))

    def ask_here(self, member: SimMember, draw: random.Random, timeout_ns: int, *, quiet: bool = False) -> None:
        """A client asks as the node does that the leader runs on."""
        mine = self._client_request(draw)
        if not quiet:
            answered = partial(self._client_answered, mine)
            Asking(self, member.node_id, member.run, mine, timeout_ns, answered, here=member)

    def _client_request(self, draw: random.Random) -> pb.ControlRequest:
        streams = sorted(self.ghost.newest.streams)
        kind, operation_id = draw.random(), draw.randbytes(16)
        if kind < 0.5 or not streams:
            self._streams += 1
            name = f"s{self._streams}"
            create = pb.CreateStream(name=name, subject=f"subject.{name}{self._width()}", partitions=draw.randint(1, 3))
            create.placement = self.draws["placement"].choice(("", *POLICIES))
            create.replicationFactor = self.draws["placement"].randint(0, len(self.nodes))
            return pb.ControlRequest(createStream=create, operationId=operation_id)
        name = draw.choice(streams)
        uid = self.ghost.newest.streams[name].uid
        if kind < 0.7:
            return pb.ControlRequest(deleteStream=pb.DeleteStream(name=name), operationId=operation_id)
        if kind < 0.8:
            count = len(self.ghost.newest.streams[name].partitions) + 1
            more = pb.AddPartitions(
                name=name, uid=uid, partitions=count, placement=self.draws["placement"].choice(list(POLICIES))
            )
            return pb.ControlRequest(addPartitions=more, operationId=operation_id)
        if kind < 0.85:
            weight = self.draws["placement"].randint(0, 2) + self._weights * 1e-6  # another one each time
            self._weights += 1
            weighed = pb.SetNode(nodeId=draw.choice(sorted(self.nodes)), weight=weight)
            return pb.ControlRequest(setNode=weighed, operationId=operation_id)
        return pb.ControlRequest(
            electLeader=pb.ElectLeader(stream=name, uid=uid, partition=0, node=draw.choice(sorted(self.nodes))),
            operationId=operation_id,
        )

    def _width(self) -> str:
        return self.draws["wide streams"].randbytes(100).hex() if self.has_wide_streams else ""

    def _client_answered(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        self.seen[f"clients: {pb.ControlResponse.Error.Name(response.error)}"] += 1
        if response.error in (pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.NOT_METADATA_LEADER):
            self.ghost.told_refused(request)
        elif request.HasField("changeControllers"):
            self.seen[f"changes: {pb.ControlResponse.Error.Name(response.error)}"] += 1
            if response.index:  # else there was nothing to do
                self._acked(request, response)
        elif response.error == pb.ControlResponse.OK and response.detail == AS_MANY:
            self.seen["partitions that were there already"] += 1  # which needs no entry
        elif response.error == pb.ControlResponse.OK and request.WhichOneof("request") != "electLeader":
            self._acked(request, response)

    def _acked(self, request: pb.ControlRequest, response: pb.ControlResponse | None) -> None:
        if response is None or response.error != pb.ControlResponse.OK:
            return
        if request.operationId not in self.ghost.ids:
            raise Violation(f"M4: a {request.WhichOneof('request')} is acknowledged, and nobody has applied it")
        self.acked[request.operationId] = response.index

    # ---- checks --------------------------------------------------------------------------------------------------------
    def _decided(self, before: ClusterImage, after: ClusterImage, request: pb.ControlRequest) -> None:
        """An entry was applied for the first time."""
        if request.HasField("registerNode"):
            self.nodes[request.registerNode.nodeId].check_claim(request.registerNode)
        if after.nodes is before.nodes:
            return
        for node_id, node in after.nodes.items():
            old = before.nodes.get(node_id)
            if not node.fenced or old is None or old.fenced:
                continue
            self.seen["nodes fenced"] += 1
            self.fenced_at[(node_id, old.incarnation)] = after.index
            process = self.nodes[node_id].process
            if process is not None and process.holds_a_lease(old.incarnation):
                raise Violation(f"D22: {node_id} is fenced at {after.index}, and its lease runs")

    def _unconverged(self) -> str:
        """What is still to come, '' when all is well."""
        decided = self.newest_list
        if decided.learner or decided.leaving:
            waits = [waits_for(member.log.view()) for member in self.up.values() if member.log.leads]
            return f"a change is under way: {decided}, waits for {waits}"
        if set(self.up) != set(decided.voters):
            return f"{sorted(self.up)} are up of {decided}"
        if not all(self.faults.is_itself_again(m) for m in self.up.values()):
            return "a member is on probation, or not believed"
        if not any(m.log.leads and m.member.is_active for m in self.up.values()):
            return "nobody is in office"
        if len({m.log.applied_index for m in self.up.values()}) != 1:
            return "the members have not applied the same"
        newest = self.ghost.newest
        for node_id, node in self.nodes.items():
            known, process = newest.nodes.get(node_id), node.process
            if process is None or known is None or known.fenced or not process.holds_a_lease(known.incarnation):
                return f"{node_id} holds no lease"
            if process.subscription.image.index < newest.index - 200:
                return f"{node_id} does not follow the feed"
        return ""

    def _final_checks(self) -> None:
        self._check_what_is_missing()
        if missing := self._unconverged():
            raise Violation(f"L5: the healed group does not converge: {missing}")
        for member in self.up.values():
            self.ghost.check_restored(member.log.image, member.node_id)
            self.faults.collect(member)
        self.seen["operations acknowledged"] += len(self.acked)
        self.seen["leaders elected"] += len(self.checks.leaders)

    def _check_what_is_missing(self) -> None:
        last = max(self.acked.values(), default=0)
        for member in self.up.values():
            if member.member.is_active and member.log.leads and member.log.image.index < last:
                raise Violation(f"M4: {last} is acknowledged, the leader {member.node_id} has {member.log.image.index}")


@contextmanager
def _virtual(run: Run) -> Iterator[None]:
    """The library's clock and random are the run's, and it goes through its sets of nodes in the same order in every process."""
    check_library()
    module = pysyncobj.syncobj
    before = module.monotonicTime, module.random, sidecar.metadata.identity.secrets
    module.monotonicTime, module.random = run.library_time, run.draws["library"]
    sidecar.metadata.identity.secrets = Secrets(run.draws)  # type: ignore[assignment]
    hashed, Node.__hash__ = Node.__hash__, lambda node: zlib.crc32(node.id.encode())  # type: ignore[method-assign]
    try:
        yield
    finally:
        module.monotonicTime, module.random, sidecar.metadata.identity.secrets = before
        Node.__hash__ = hashed  # type: ignore[method-assign]


__all__ = ["DEATHS", "Run", "Violation"]
