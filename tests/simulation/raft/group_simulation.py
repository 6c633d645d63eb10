"""A metadata group in virtual time: our sessions, hardening, journal and driver tick around the library, on a bus that misbehaves.

Members propose operations while they believe to lead. The bus drops, delays, duplicates and reorders frames; links are cut;
members crash at any tick, before or after the flush, and come back with what was flushed, or with what a power cut leaves; writes,
flushes and renames fail, once each, short or with an error; a minority comes back with an emptied folder, or with the copy of one
that an earlier process had left, as long as the others have heard a process that the copy does not know. Checked while it runs: one
leader per term [M1], terms never fall over restarts [M2], every index holds the same operation everywhere [M3, M5], nothing is applied
twice, nothing is committed past the log [M9], who
may grant leases is the only leader there is [D22]. At the end, healed: every acknowledged operation is on every member [M4].
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pysyncobj.syncobj

from liftpy.cluster.session import DEFAULT_CONFIRMED_WITHIN_S
from liftpy.errors import StorageError
from sidecar.raft.driver import tick_once
from sidecar.raft.journal import GroupJournal
from sidecar.raft.library import FAIL_REASON, Node, RaftCore, check_library, settings
from sidecar.raft.lineage import FILE
from sidecar.raft.probation import Probation
from sidecar.raft.snapshot_file import SnapshotFile, load_snapshot_file, trim_journal, write_snapshot_file
from sidecar.raft.transport import SessionTransport
from tests.simulation.raft.disk import Fault, FaultyDisk, faulty_disk

TICK_S = 0.03
CHAOS_S = 12.0
PEACE_S = 30.0
MAX_FRAMES_PER_TICK = 500
"""More is a busy loop: as shipped, thousands while a snapshot is asked for and not ready."""
DEATHS = ("before", "within", "after")
"""When a member dies, seen from the flush of its tick."""
EMPTIED = 0.4
"""Share of the deaths after which the folder is empty, as long as a majority has never lost anything."""
PUT_BACK = 0.7
"""Of these, the share in which an older copy takes its place, where the others can tell."""
COPIED = 0.5
"""Share of the deaths after which the folder is copied, as it was left."""
LEADER_LOST = 0.01
"""How likely, per tick of any member, the leader that a member with an emptied folder has just heard of dies."""


class Violation(AssertionError):
    """An invariant broke; the text names it."""


@dataclass
class Machine:
    """The replicated state: the operations in order. ``ghost``: index -> operation, as any member has ever applied it."""

    ghost: dict[int, bytes]
    applied: list[tuple[int, str]] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    """The operations in ``applied``."""
    ahead: tuple[int, int] = (0, 0)
    """Index of the entry that is to be applied next, and the steps of work on it that are left."""

    def work_ahead(self, entry: bytes, index: int) -> bool:
        """Every fourth entry takes up to 12 steps, three ticks of them, with everything that may happen in between."""
        if self.ghost.get(index, entry) != entry:
            raise Violation(f"M5: index {index} holds {entry!r} here and {self.ghost[index]!r} elsewhere")
        drawn = hashlib.sha256(entry).digest()[0]
        left = self.ahead[1] if self.ahead[0] == index else (drawn // 4) % 13 if drawn % 4 == 0 else 0
        self.ahead = index, max(0, left - 1)
        return left <= 1

    def apply(self, entry: bytes, index: int) -> bytes:
        """Apply one entry; a Violation stops the member, and with it the run."""
        if self.ghost.setdefault(index, entry) != entry:
            raise Violation(f"M5: index {index} holds {entry!r} here and {self.ghost[index]!r} elsewhere")
        if self.applied and self.applied[-1][0] >= index:
            raise Violation(f"M5: index {index} is applied after {self.applied[-1][0]}")
        if entry.hex() in self.held:
            raise Violation(f"applied twice: {entry!r} at {index}")
        self.applied.append((index, entry.hex()))
        self.held.add(entry.hex())
        return b"%d" % index

    def digest(self) -> str:
        """Of everything that was applied, in order."""
        return hashlib.sha256(json.dumps(self.applied).encode()).hexdigest()


class Disk:
    """A member's journal before a tick, to be left as a death within the tick's flush leaves it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"
        self._before = self._path.read_bytes() if self._path.exists() else b""

    @property
    def written(self) -> bool:
        """Whether the tick changed the file: only then can a death be within its flush."""
        return self._path.read_bytes() != self._before

    def tear(self, draw: random.Random) -> str:
        """Keep a part of what the tick wrote: some first bytes of an append; of a rewrite the old file or the new one."""
        after = self._path.read_bytes()
        if after.startswith(self._before) and self._before:
            self._path.write_bytes(after[: draw.randrange(len(self._before), len(after))])
            return "torn: append"
        if draw.random() < 0.5:
            self._path.with_name("journal.tmp").write_bytes(after[: draw.randrange(len(after))])
            self._path.write_bytes(self._before)
            return "torn: rewrite, not yet renamed"
        return "torn: rewrite, just renamed"


class Member:
    """One member between two crashes."""

    def __init__(self, run: Run, node_id: str) -> None:
        self.run = run
        self.node_id = node_id
        folder = run.folder / node_id
        folder.mkdir(exist_ok=True)
        self.machine = Machine(run.ghost)
        self.probation = Probation(folder, run.members, majority=run.majority, draw=lambda: run.random.getrandbits(63))
        self.journal = GroupJournal(folder / "journal")
        self.probation.opened(self.journal)
        self.transport = SessionTransport(
            node_id,
            run.members,
            clock=lambda: run.now,
            draw=lambda: run.random.getrandbits(63),
            stamp=lambda: round(run.now * 1e9),
        )
        conf = settings(self.journal, str(folder / "snapshot"), self._save, self._load, lambda *_: None, run.compact_after)
        self.core = RaftCore(node_id, run.members, conf, self.transport, self.machine)
        self.transport.attach(self.core, self.probation)
        self.probation.attach(self.core, tuple(self.transport.sessions.peers.values()))
        self.transport.sessions.set_online(True)
        self.barriers: list[tuple[int, bytes]] = []
        """Those that this process has asked the leader for, each with the turn of its probation."""
        self.inbox: list[tuple[str, bytes]] = []
        self.death = ""
        """When it will die: one of DEATHS, or not at all; or of what it died."""
        self.answers: list[tuple[bytes, bytes | None, int]] = []

    def _save(self, name: str, state: Any) -> None:
        last, previous, nodes = state
        image = json.dumps(self.machine.applied).encode()
        write_snapshot_file(Path(name), SnapshotFile(last, previous, tuple(n.id for n in nodes), image))
        self.run.seen["snapshots taken"] += 1

    def _load(self, name: str) -> Any:
        snapshot = load_snapshot_file(Path(name))
        self.machine.applied = [(index, op) for index, op in json.loads(snapshot.image)]
        self.machine.held = {op for _, op in self.machine.applied}
        trim_journal(self.journal, snapshot.previous, snapshot.last)
        return snapshot.last, snapshot.previous, {Node(i) for i in snapshot.nodes}

    def look(self) -> None:
        """What ``RaftMember`` does after a tick that is flushed."""
        self.probation.look()
        for turn, barrier in self.barriers:
            if barrier.hex() in self.machine.held:
                self.probation.barrier_applied(turn)

    def ask_for_barrier(self, barrier: bytes, leader: Member) -> None:
        """As a start does, by way of the control subject."""
        self.barriers.append((self.probation.turn, barrier))
        leader.propose(barrier)

    def propose(self, operation: bytes) -> None:
        """Propose here; the answer counts only once the tick's flush is done."""
        self.core.propose(operation, lambda answer, reason: self.answers.append((operation, answer, reason)))


class Run:
    """One seed. ``seen``: what happened how often."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.now = 100.0
        self.majority = False
        self.members = tuple(f"n{i}" for i in range(self.random.choice((3, 3, 5))))
        self.compact_after = self.random.choice((15, 60, 100_000))
        self.ghost: dict[int, bytes] = {}
        self.seen: Counter[str] = Counter()
        self.acked: set[str] = set()
        bus = self.random.choice((0.0, 0.05, 1.0))  # a perfect one, a good one, one on which few sessions live for a second
        rates = {
            "drop": 0.08 * bus,
            "duplicate": 0.08 * bus,
            "delay": 0.15 * bus,
            "crash": 0.004,
            "cut": 0.004,
            "disk": 0.002,
            "plot": 0.004,
        }
        self._rates = {fault: self.random.random() * rate for fault, rate in rates.items()}
        self._queue: list[tuple[float, int, str, str, bytes]] = []
        self._arrives: dict[tuple[str, str], float] = {}
        """When the last frame of a link arrives: without a fault none overtakes another."""
        self._sent = 0
        self._operations = 0
        self._cut: dict[tuple[str, str], float] = {}
        self._down: dict[str, float] = {}
        self._leaders: dict[int, str] = {}
        self._terms: dict[str, int] = dict.fromkeys(self.members, 0)
        self._next_tick = {name: self.now + self.random.random() * TICK_S for name in self.members}
        self._emptied: set[str] = set()
        """Members that have lost their folder, or got an older one, and don't vote again yet."""
        self._copies: dict[str, dict[str, bytes]] = {}
        """Of each member, the files of a folder that a process had left."""
        self._begun: set[str] = set()
        """Members that have voted once. Until all have, the first start is under way, and its operator would begin it anew."""
        self._doomed, self._doom_at = "", 0.0
        """The member that will lose its folder, and when."""
        self.disk = FaultyDisk()
        self.up: dict[str, Member] = {}

    def execute(self) -> None:
        """Chaos, then peace, then the final checks. Raises Violation."""
        with _virtual(self), faulty_disk() as self.disk:
            for name in self.members:
                self.up[name] = Member(self, name)
            self.disk.fault = self._disk_fault
            self._until(self.now + CHAOS_S, chaos=True)
            self._heal()
            end = self.now + PEACE_S
            while self.now < end and not self._converged():
                self._until(self.now + 0.5, chaos=False)
            self._final_checks()

    def close(self) -> None:
        """Give the files back."""
        for member in self.up.values():
            member.journal.abandon()

    # ---- time ----------------------------------------------------------------------------------------------------------
    def library_time(self) -> float:
        """The clock moves a little with every look at it: the library waits in loops for time to pass."""
        self.now += 1e-5
        return self.now

    def _until(self, end: float, *, chaos: bool) -> None:
        while self.now < end:
            name = min(self._next_tick, key=lambda n: (self._next_tick[n], n))
            self.now = max(self.now, self._next_tick[name])
            self._next_tick[name] = self.now + TICK_S * (0.5 + self.random.random())
            self._deliver()
            if chaos:
                self._faults()
            if name in self._down:
                if self._down[name] <= self.now:
                    self._start(name)
                continue
            self._tick(self.up[name], chaos)

    def _start(self, name: str) -> None:
        try:
            self.up[name] = Member(self, name)
            del self._down[name]
        except StorageError:
            self.seen["starts that the disk refused"] += 1  # and tries again

    def _tick(self, member: Member, chaos: bool) -> None:
        if not member.probation.over and member.core.leader_id:
            self._ask_for_barrier(member)
        if member.core.leads and self.random.random() < 0.6:
            for _ in range(self.random.randint(1, 4)):
                self._operations += 1
                member.propose(b"op-%d" % self._operations)
        frames, member.inbox = member.inbox, []
        if chaos and not member.death and self.random.random() < self._rates["crash"]:
            member.death = self.random.choice(DEATHS)
        disk = Disk(self.folder / member.node_id) if member.death == "within" else None
        if member.death == "before":
            member.journal.sync = lambda: None  # type: ignore[method-assign]
        try:
            tick_once(member.core, member.transport, member.journal, frames)
            if not member.death:
                member.look()
        except StorageError as error:
            if isinstance(error.__cause__, Violation):
                raise
            member.death = "by the disk, within"
            with suppress(StorageError):
                member.journal.close()
            self._crash(member)
            return
        dies = bool(member.death) and (disk is None or disk.written)
        self._check(member, flushed=not dies or member.death == "after")
        if dies:
            if disk is not None:
                self.seen[disk.tear(self.random)] += 1
            self._crash(member)
            return
        if len(member.transport.sessions.outbox) > MAX_FRAMES_PER_TICK:
            raise Violation(f"L7: {len(member.transport.sessions.outbox)} frames in one tick of {member.node_id}")
        for receiver, frame in member.transport.sessions.outbox:
            self._send(member.node_id, receiver, frame)
        member.transport.sessions.outbox.clear()
        for operation, answer, reason in member.answers:
            if reason == FAIL_REASON.SUCCESS and answer is not None:
                self.acked.add(operation.hex())
        member.answers.clear()

    def _ask_for_barrier(self, member: Member) -> None:
        leader = self.up.get(member.core.leader_id)
        if leader is None or not leader.core.leads or self._cut.get((member.node_id, leader.node_id), 0) > self.now:
            return
        if len(member.barriers) < 20 and self.random.random() < 0.03:
            member.ask_for_barrier(b"barrier-%d-of-%s" % (self._operations, member.node_id.encode()), leader)
            self._operations += 1

    # ---- faults --------------------------------------------------------------------------------------------------------
    def _send(self, sender: str, receiver: str, frame: bytes) -> None:
        draw = self.random.random
        if self._cut.get((sender, receiver), 0) > self.now or draw() < self._rates["drop"]:
            self.seen["frames lost"] += 1
            return
        for _ in range(2 if draw() < self._rates["duplicate"] else 1):
            at = max(self.now + 0.001 + draw() * 0.002, self._arrives.get((sender, receiver), 0.0))
            if draw() < self._rates["delay"]:
                at += draw() * 0.4  # and is overtaken
            else:
                self._arrives[(sender, receiver)] = at
            self._sent += 1
            heapq.heappush(self._queue, (at, self._sent, sender, receiver, frame))

    def _deliver(self) -> None:
        while self._queue and self._queue[0][0] <= self.now:
            _, _, sender, receiver, frame = heapq.heappop(self._queue)
            if receiver in self.up and receiver not in self._down:
                self.up[receiver].inbox.append((sender, frame))

    def _faults(self) -> None:
        if self.random.random() < self._rates["cut"]:
            pair = tuple(self.random.sample(self.members, 2))
            until = self.now + self.random.random() * 3
            self._cut[(pair[0], pair[1])] = until
            if self.random.random() < 0.7:
                self._cut[(pair[1], pair[0])] = until
            self.seen["links cut"] += 1
        if self.random.random() < self._rates["plot"] and not self._emptied:
            self._plot()
        if self._doomed and self._doom_at <= self.now and self._doomed in self.up:
            self.up[self._doomed].death = "after"
        for name in sorted(self._emptied):
            member = self.up.get(name)
            leader = self.up.get(member.core.leader_id) if member is not None else None
            if leader is not None and not leader.death and self.random.random() < LEADER_LOST:
                leader.death = self.random.choice(DEATHS)
                self.seen["leaders lost to a member on probation"] += 1

    def _disk_fault(self, kind: str, size: int) -> Fault | None:
        if self.random.random() >= self._rates["disk"]:
            return None
        self.seen[f"disk faults: {kind}"] += 1
        number = self.random.choice((errno.EIO, errno.ENOSPC))
        short = kind == "write" and self.random.random() < 0.5
        return Fault(0 if short else number, self.random.randrange(size) if size else 0)

    def _lose_power(self, name: str) -> None:
        self.disk.power_cut(self.folder / name, self.random)  # a copy that was put back stays: it is durable
        self.seen["power cuts"] += 1

    def _empty(self, name: str) -> None:
        for path in (self.folder / name).iterdir():
            path.unlink()
        self.disk.forget(self.folder / name)
        self._emptied.add(name)
        self.seen["folders emptied"] += 1

    def _would_be_told(self, name: str) -> bool:
        """Whether every other member has heard a process of this one that the copy does not know."""
        copy = _lineage(self._copies.get(name, {}).get(FILE, b""))
        held = {copy["nonce"], *copy["earlier"]}
        known = [_known_of(self.folder / other, name) for other in self.members if other != name]
        return name in self._copies and all(nonce and nonce not in held for nonce in known)

    def _put_back(self, name: str) -> None:
        self.disk.forget(self.folder / name)
        self.disk.leave(self.folder / name, self._copies[name])
        self._emptied.add(name)
        self._terms[name] = 0
        self.seen["folders put back from a copy"] += 1

    def _is_itself_again(self, member: Member) -> bool:
        """The others know it by no process of which it holds nothing."""
        others = [other for other in self.members if other != member.node_id]
        known = [_known_of(self.folder / other, member.node_id) for other in others]
        return member.probation.over and all(not nonce or member.probation.lineage.holds(nonce) for nonce in known)

    def _plot(self) -> None:
        """A follower falls behind and will campaign; another one, which may have what it lacks, loses its folder meanwhile."""
        leader = next((name for name, m in self.up.items() if m.core.leads), "")
        others = [name for name in self.up if name != leader and not self.up[name].death]
        if leader and len(others) == len(self.members) - 1:
            behind, emptied = self.random.sample(others, 2)
            self._cut[(leader, behind)] = self._cut[(behind, leader)] = self.now + 1 + self.random.random() * 2
            self._doomed = emptied
            self._doom_at = self.now + self.random.random() * 1.5

    def _crash(self, member: Member) -> None:
        self.seen[f"crashes {member.death} the flush"] += 1
        self._collect(member)
        member.journal.abandon()
        self._down[member.node_id] = self.now + self.random.random() * 3
        del self.up[member.node_id]
        if member.death != "within" and self.random.random() < 0.5:
            self._lose_power(member.node_id)
        doomed = member.node_id == self._doomed
        if doomed:
            self._doomed = ""
            self._down[member.node_id] = self.now + 0.05
        begun = len(self._begun) == len(self.members)
        few = begun and len(self._emptied | {member.node_id}) <= (len(self.members) - 1) // 2
        folder = self.folder / member.node_id
        left = {path.name: path.read_bytes() for path in folder.iterdir()}
        if few and (doomed or self.random.random() < EMPTIED):
            if self.random.random() < PUT_BACK and self._would_be_told(member.node_id):
                self._put_back(member.node_id)
            else:
                self._empty(member.node_id)
        if self.random.random() < COPIED:
            self._copies[member.node_id] = left

    def _collect(self, member: Member) -> None:
        for what, count in member.transport.sessions.counters.items():
            self.seen[what] += count

    def _heal(self) -> None:
        self._cut.clear()
        self._rates = dict.fromkeys(self._rates, 0.0)
        self._doomed = ""
        for member in self.up.values():
            member.death = ""
        self._down = dict.fromkeys(self._down, self.now)

    # ---- checks --------------------------------------------------------------------------------------------------------
    def _check(self, member: Member, *, flushed: bool) -> None:
        core, name = member.core, member.node_id
        if core.leads and self._leaders.setdefault(core.raftCurrentTerm, name) != name:
            raise Violation(f"M1: {name} and {self._leaders[core.raftCurrentTerm]} lead in term {core.raftCurrentTerm}")
        granting = core.leads and round(self.now * 1e9) - member.transport.confirmed_ns() <= DEFAULT_CONFIRMED_WITHIN_S * 1e9
        self.seen["ticks in which a leader may grant leases"] += granting
        others = [m for m in self.up.values() if m.core.leads and m.core.raftCurrentTerm > core.raftCurrentTerm]
        if granting and others:
            raise Violation(
                f"D22: {name} may grant leases in term {core.raftCurrentTerm}, {others[0].node_id} leads a later one"
            )
        if core.raftCommitIndex > member.journal.last_index:
            raise Violation(f"M9: {name} commits {core.raftCommitIndex}, its log ends at {member.journal.last_index}")
        stored = member.journal.getCurrentTerm()
        if not member.probation.over:
            self._terms[name] = stored  # what it stores is no promise yet
        else:
            self._begun.add(name)
            if name in self._emptied and self._is_itself_again(member):
                self._emptied.discard(name)
        if flushed:
            if stored < self._terms[name]:
                raise Violation(f"M2: the term of {name} falls from {self._terms[name]} to {stored}")
            self._terms[name] = stored

    def _converged(self) -> bool:
        if len(self.up) < len(self.members) or self._down:
            return False
        last = {m.core.raftLastApplied for m in self.up.values()}
        done = self.acked <= {op for _, op in self.up[self.members[0]].machine.applied}
        voting = all(self._is_itself_again(m) for m in self.up.values())
        return len(last) == 1 and done and voting and any(m.core.leads for m in self.up.values())

    def _final_checks(self) -> None:
        if not self._converged():
            self._check_what_is_missing()
            raise Violation("L5: the healed group does not converge")
        self._check_what_is_missing()
        if len({m.machine.digest() for m in self.up.values()}) != 1:
            raise Violation("M5: the members hold different sequences")
        for member in self.up.values():
            self._collect(member)
        self.seen["operations acknowledged"] += len(self.acked)
        self.seen["leaders elected"] += len(self._leaders)

    def _check_what_is_missing(self) -> None:
        for member in self.up.values():
            missing = self.acked - {op for _, op in member.machine.applied}
            if missing and member.core.leads:
                raise Violation(f"M4: {len(missing)} acknowledged operations are missing on the leader {member.node_id}")


def _lineage(stored: bytes) -> dict[str, Any]:
    """What the file says; of none, that of a folder without memory."""
    empty: dict[str, Any] = {"nonce": 0, "earlier": [], "known": {}}
    return json.loads(stored.partition(b"\n")[2]) if stored else empty


def _known_of(folder: Path, name: str) -> int:
    """Nonce of the process by which the member on ``folder`` knows ``name``, durably; 0: none."""
    path = folder / FILE
    return int(_lineage(path.read_bytes() if path.exists() else b"")["known"].get(name, 0))


@contextmanager
def _virtual(run: Run) -> Iterator[None]:
    """The library's clock and random are the run's, and it goes through its sets of nodes in the same order in every process."""
    check_library()
    module = pysyncobj.syncobj
    before = module.monotonicTime, module.random
    module.monotonicTime, module.random = run.library_time, run.random
    hashed, Node.__hash__ = Node.__hash__, lambda node: zlib.crc32(node.id.encode())  # type: ignore[method-assign]
    try:
        yield
    finally:
        module.monotonicTime, module.random = before
        Node.__hash__ = hashed  # type: ignore[method-assign]
