"""The faults of a run: what fails, when, and what is left of it. Each kind draws from its own generator, at every tick, whether it is
wanted or not, so that one more kind, or another rate, changes no other kind's draws."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.config import NS_PER_S
from liftpy.core.metadata.records import StreamDeleted, record_to_pb
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.quorum.probation import FILE, MARK
from tests.simulation.raft.disk import Fault
from tests.simulation.raft.nodes import NODES
from tests.simulation.raft.plots import Plots

if TYPE_CHECKING:
    from tests.simulation.raft.group_simulation import Run
    from tests.simulation.raft.member import SimMember
    from tests.simulation.raft.nodes import DataNode

DEATHS = ("before", "within", "after")
"""When a member dies, seen from the flush of its tick."""
_EMPTIED = 0.4
"""Share of the deaths after which the folder is empty, as long as a majority has never lost anything."""
_PUT_BACK = 0.7
"""Of these, the share in which an older copy takes its place, where the others can tell."""
_COPIED = 0.5
"""Share of the deaths after which the folder is copied, as it was left."""
_LEADER_LOST = 0.01
"""How likely, per tick of any member, the leader that a member with an emptied folder has just heard of dies."""
_RATES = {
    "drop": 0.08, "duplicate": 0.08, "delay": 0.15, "crash": 0.004, "cut": 0.004, "disk": 0.002, "plot": 0.004, "pause": 0.004,
    "isolate": 0.003, "clock": 0.002, "node kill": 0.002, "node stop": 0.002, "node cut": 0.01, "node pause": 0.006, "forge": 0.002,
}  # fmt: skip
"""The highest of each kind, per frame, call or tick; a seed draws its own below it."""
_OF_THE_BUS = ("drop", "duplicate", "delay")
_OF_THE_GROUP = ("crash", "cut", "disk", "plot", "pause", "isolate")


class Faults:
    """Of one run. ``rates``: per kind, of this seed; ``wall_offsets_ns``: how far each controller's wall clock is off."""

    def __init__(self, run: Run) -> None:
        self._run = run
        draw = run.draws["rates"]
        bus = draw.choice((0.0, 0.05, 1.0))  # a perfect one, a good one, one on which few sessions live for a second
        group = draw.choice((0.15, 1.0, 1.0))  # some leaders stay long enough to judge the nodes
        self.rates = {
            kind: run.draws[f"rate of {kind}"].random()
            * rate
            * (bus if kind in _OF_THE_BUS else group if kind in _OF_THE_GROUP else 1)
            for kind, rate in _RATES.items()
        }
        self.wall_offsets_ns = dict.fromkeys((*run.members, *NODES), 0)
        self._cut: dict[tuple[str, str], float] = {}
        self._cut_off: dict[str, float] = {}
        """Whose connection is down -> until when."""
        self._down: dict[str, float] = {}
        self.emptied: set[str] = set()
        """Members that have lost their folder, or got an older one, and don't vote again yet."""
        self._copies: dict[str, dict[str, bytes]] = {}
        """Of each member, the files of a folder that a process had left."""
        self._begun: set[str] = set()
        """Members that have voted once. Until all have, the first start is under way, and its operator would begin it anew."""
        self._doomed, self._doom_at = "", 0.0
        """The member that will lose its folder, and when."""
        self.to_copy: set[str] = set()
        """Members whose folder is copied at their next death, and nothing else done to it."""
        self.last = True
        """They have not ended."""
        self.plots = Plots(run, self)

    def _hits(self, kind: str) -> bool:
        return self._run.draws[kind].random() < self.rates[kind]

    # ---- every tick ----------------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """New faults begin."""
        if self._hits("cut"):
            self._cut_a_link()
        if self._hits("plot") and not self.emptied:
            self._plot()
        if self._hits("pause"):
            self._pause()
        if self._hits("isolate"):
            draw = self._run.draws["isolate"]
            name, length_s, of_the_leader = draw.choice(self._run.group), draw.random() * 3, draw.random()
            self._cut_off[self._leader_or(name, of_the_leader)] = self._run.now + length_s
            self._run.seen["controllers cut off"] += 1
        if self._hits("clock"):
            self.wall_offsets_ns[self._run.draws["clock"].choice(self._run.group)] = self._run.draws["clock"].randrange(
                -5 * NS_PER_S, 100 * NS_PER_S
            )
        self._of_the_nodes()
        self._lose_leaders()
        self.plots.tick()

    def _cut_a_link(self) -> None:
        draw, now = self._run.draws["cut"], self._run.now
        one, other = draw.sample(self._run.group, 2) if len(self._run.group) > 1 else self._run.group * 2
        until = now + draw.random() * 3
        self._cut[(one, other)] = until
        if draw.random() < 0.7:
            self._cut[(other, one)] = until
        self._run.seen["links cut"] += 1

    def _pause(self) -> None:
        """A controller stands still: its host is suspended, or has no time. Its timers and what came for it wait."""
        run, draw = self._run, self._run.draws["pause"]
        name, length_s, of_the_leader = draw.choice(run.group), draw.random() ** 2 * 4, draw.random()
        cut_off, cut_off_s = draw.random() < 0.5, draw.random() * 2
        member = run.up.get(self._leader_or(name, of_the_leader))
        if member is not None and member.paused_until <= run.now:
            member.paused_until = run.now + length_s
            run.seen["controllers paused"] += 1
            if cut_off:  # what was on its way when it stopped is there when it goes on, and nothing newer
                until = member.paused_until + cut_off_s
                run.later(NS_PER_S // 16, lambda: self._cut_off.update({member.node_id: until}))

    def _leader_or(self, name: str, draw: float) -> str:
        leaders = [m.node_id for m in self._run.up.values() if m.log.leads]
        return leaders[0] if leaders and draw < 0.5 else name

    def _of_the_nodes(self) -> None:
        run = self._run
        for kind in ("node kill", "node stop", "node cut", "node pause"):
            if not self._hits(kind):
                continue
            draw = run.draws[kind]
            node, length_s, clean = run.nodes[draw.choice(sorted(run.nodes))], draw.random() * 3, draw.random() < 0.6
            process = node.process
            run.seen[f"{kind}s"] += process is not None
            if kind == "node cut":
                self._cut_off[node.node_id] = run.now + length_s
            elif process is None:
                continue
            elif kind == "node kill":
                run.restart_node(node)
            elif kind == "node stop":
                process.through(lambda process=process, clean=clean: process.stop(logs_are_clean=clean))
            elif process.paused_until <= run.now:
                process.paused_until = run.now + length_s
                run.later(round(length_s * NS_PER_S) + 1000, process.resume)
        if self._hits("forge"):
            self._forge(run.nodes[run.draws["forge"].choice(sorted(run.nodes))])

    def _forge(self, node: DataNode) -> None:
        """Somebody says on the feed that a stream is deleted, which nobody has deleted."""
        streams = self._run.ghost.newest.streams
        process = node.process
        if process is None or not streams:
            return
        stream = streams[self._run.draws["forge"].choice(sorted(streams))]
        index = process.subscription.image.index
        forged = pb.FeedEntry(previousIndex=index, index=index + 1)
        forged.records.append(record_to_pb(StreamDeleted(stream.name, stream.uid)))
        said = forged.SerializeToString()
        self._run.seen["feed entries forged"] += 1
        process.through(lambda: process.forged(said))

    def _lose_leaders(self) -> None:
        up = self._run.up
        if self._doomed and self._doom_at <= self._run.now and self._doomed in up:
            up[self._doomed].death = "after"
        for name in sorted(self.emptied):
            member = up.get(name)
            leader = up.get(member.log.leader_id) if member is not None else None
            draw = self._run.draws["leader lost"]
            if leader is not None and not leader.death and draw.random() < _LEADER_LOST:
                leader.death = draw.choice(DEATHS)
                self._run.seen["leaders lost to a member on probation"] += 1

    def heal(self) -> None:
        """No more of it."""
        self.last = False
        self.plots.heal()
        self._cut.clear()
        self._cut_off.clear()
        self.rates = dict.fromkeys(self.rates, 0.0)
        self.wall_offsets_ns = dict.fromkeys(self.wall_offsets_ns, 0)
        self._doomed = ""
        for member in self._run.up.values():
            member.death = ""
        self._down = dict.fromkeys(self._down, self._run.now)

    # ---- the bus -------------------------------------------------------------------------------------------------------
    def cut_link(self, one: str, other: str, until: float) -> None:
        """Nothing gets from one to the other, nor back."""
        self._cut[(one, other)] = self._cut[(other, one)] = until

    def cut_off(self, name: str, until: float) -> None:
        """The connection of ``name`` is down."""
        self._cut_off[name] = until

    def link_is_cut(self, sender: str, receiver: str) -> bool:
        """Whether nothing gets from one to the other."""
        now = self._run.now
        return self._cut.get((sender, receiver), 0) > now or self.connection_is_cut(sender) or self.connection_is_cut(receiver)

    def connection_is_cut(self, name: str) -> bool:
        """Whether its connection to the bus is down."""
        return self._cut_off.get(name, 0) > self._run.now

    # ---- the disk ------------------------------------------------------------------------------------------------------
    def of_the_disk(self, kind: str, size: int) -> Fault | None:
        """How a call ends."""
        draw = self._run.draws["disk"]
        if not self._hits("disk"):
            return None
        self._run.seen[f"disk faults: {kind}"] += 1
        number = draw.choice((errno.EIO, errno.ENOSPC))
        short = kind == "write" and draw.random() < 0.5
        return Fault(0 if short else number, draw.randrange(size) if size else 0)

    def _lose_power(self, name: str) -> None:
        self._run.disk.power_cut(self._folder(name), self._run.draws["power"])  # a copy that was put back stays: it is durable
        self._run.seen["power cuts"] += 1

    def _folder(self, name: str) -> Path:
        return self._run.folder / name

    def _empty(self, name: str) -> None:
        for path in self._folder(name).iterdir():
            path.unlink()
        self._run.disk.forget(self._folder(name))
        self._run.checks.forgotten(name)
        self.emptied.add(name)
        self._run.seen["folders emptied"] += 1

    def _would_be_told(self, name: str) -> bool:
        """Whether every other member has heard a process of this one that the copy does not know."""
        copy = _lineage(self._copies.get(name, {}).get(FILE, b""))
        held = {copy["nonce"], *copy["earlier"]}
        known = [_known_of(self._folder(other), name) for other in self._run.group if other != name]
        return name in self._copies and all(nonce and nonce not in held for nonce in known)

    def _put_back(self, name: str) -> None:
        self._run.disk.forget(self._folder(name))
        self._run.disk.leave(self._folder(name), self._copies[name])
        self.emptied.add(name)
        self._run.checks.forgotten(name)
        self._run.seen["folders put back from a copy"] += 1

    # ---- deaths --------------------------------------------------------------------------------------------------------
    def draw_death(self, member: SimMember) -> None:
        """It may die in this tick."""
        draw = self._run.draws["crash"]
        hits, when = draw.random() < self.rates["crash"], draw.choice(DEATHS)
        if hits and not member.death:
            member.death = when

    def _plot(self) -> None:
        """A follower falls behind and will campaign; another one, which may have what it lacks, loses its folder meanwhile."""
        run, draw = self._run, self._run.draws["plot"]
        leader = next((name for name, m in run.up.items() if m.log.leads), "")
        others = [name for name in run.up if name != leader and not run.up[name].death]
        if leader and len(others) == len(run.group) - 1 and len(others) > 1:
            behind, emptied = draw.sample(others, 2)
            self.cut_link(leader, behind, run.now + 1 + draw.random() * 2)
            self.doom(emptied, run.now + draw.random() * 1.5)

    def doom(self, name: str, at: float) -> None:
        """The member dies then, and what comes back is emptied or older."""
        self._doomed, self._doom_at = name, at

    def crash(self, member: SimMember) -> None:
        """It has died; what is left of its folder is drawn."""
        run, name, draw = self._run, member.node_id, self._run.draws["after a crash"]
        run.seen[f"crashes {member.death} the flush"] += 1
        self.collect(member)
        member.died()
        self._down[name] = run.now + draw.random() * 3
        del run.up[name]
        if member.death != "within" and draw.random() < 0.5:
            self._lose_power(name)
        doomed = name == self._doomed
        if doomed:
            self._doomed = ""
            self._down[name] = run.now + 0.05
        few = self._begun >= set(run.members) and self._stays_few(name)
        left = {path.name: path.read_bytes() for path in self._folder(name).iterdir()}
        to_copy = name in self.to_copy
        self.to_copy.discard(name)
        if few and (doomed or draw.random() < _EMPTIED) and not to_copy:
            if draw.random() < _PUT_BACK and self._would_be_told(name):
                self._put_back(name)
            else:
                self._empty(name)
        if draw.random() < _COPIED or to_copy:
            self._copies[name] = left
        if to_copy:
            self._down[name] = run.now + 0.05

    def _stays_few(self, name: str) -> bool:
        """Whether a majority of whoever may decide has lost nothing, when this one does: by the log of everybody. Who was found to hold
        another image puts its folder aside with its next start."""
        found = {other for other in self._run.group if (self._folder(other) / MARK).exists()}
        lost = self.emptied | found | {name}
        return all(len(lost & {*one.members}) <= (len(one.voters) - 1) // 2 for one in self._run.lists())

    def may_start(self, name: str) -> bool:
        """Whether the member that is down comes back now."""
        return self._down.get(name, 0) <= self._run.now

    def started(self, name: str) -> None:
        """It is back."""
        self._down.pop(name, None)

    def votes(self, member: SimMember) -> None:
        """It is not on probation."""
        self._begun.add(member.node_id)
        if member.node_id in self.emptied and self.is_itself_again(member):
            self.emptied.discard(member.node_id)

    def is_itself_again(self, member: SimMember) -> bool:
        """The others know it by no process of which it holds nothing."""
        others = [other for other in self._run.group if other != member.node_id]
        known = [_known_of(self._folder(other), member.node_id) for other in others]
        probation = member.log.probation
        return probation.over and all(not nonce or probation.lineage.holds(nonce) for nonce in known)

    def collect(self, member: SimMember) -> None:
        """Add up what it has counted."""
        for what, count in member.log.transport.sessions.counters.items():
            self._run.seen[what] += count


def _lineage(stored: bytes) -> dict[str, Any]:
    """What the file says; of none, that of a folder without memory."""
    empty: dict[str, Any] = {"nonce": 0, "earlier": [], "known": {}}
    return json.loads(stored.partition(b"\n")[2]) if stored else empty


def _known_of(folder: Path, name: str) -> int:
    """Nonce of the process by which the member on ``folder`` knows ``name``, durably; 0: none."""
    path = folder / FILE
    return int(_lineage(path.read_bytes() if path.exists() else b"")["known"].get(name, 0))
