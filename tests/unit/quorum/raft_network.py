"""Provide members of the metadata group on a simulated network in virtual time: sessions, journal and ticks."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.metadata.member import RaftMember
from sidecar.metadata.member_log import MemberDirectory
from sidecar.quorum.driver import tick_once
from sidecar.quorum.library import FAIL_REASON, check_library
from sidecar.quorum.probation import MARKER
from tests.unit.quorum.plain_member import Member

REASONS = {value: name for name, value in vars(FAIL_REASON).items() if not name.startswith("_")}
STEP_S = 0.01


class Network:
    """Provide FIFO wires between members and one clock. ``stalled``: pairs whose messages wait. ``lose``: lost messages."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.members = tuple(ids)
        self.now = 1000.0
        self.wires: dict[tuple[str, str], deque[Any]] = defaultdict(deque)
        self.stalled: set[tuple[str, str]] = set()
        self.lose: Callable[[str, str, Any], bool] = lambda *_: False
        self.up: dict[str, Any] = {}

    def clock(self) -> float:
        """Advance the clock a little with every call. PySyncObj waits in loops for time to pass."""
        self.now += 1e-5
        return self.now

    def post(self, sender: str, receiver: str, message: Any) -> None:
        if not self.lose(sender, receiver, message):
            self.wires[sender, receiver].append(message)

    def deliver(self, sender: str, receiver: str, count: int | None = None) -> None:
        """Deliver the first ``count`` messages of a wire, or all."""
        wire = self.wires[sender, receiver]
        for _ in range(len(wire) if count is None else count):
            message = wire.popleft()
            if receiver in self.up:
                self.receive(sender, receiver, message)

    def step(self) -> None:
        self.now += STEP_S
        for pair in list(self.wires):
            if pair not in self.stalled:
                self.deliver(*pair)
        for name in list(self.up):
            self.tick(name)

    def run(self, until: Callable[[], Any], seconds: float = 20.0) -> bool:
        """Run steps until ``until()`` is true. Return False after ``seconds`` of virtual time."""
        end = self.now + seconds
        while not until():
            if self.now > end:
                return False
            self.step()
        return True

    def crash(self, *names: str) -> None:
        """Crash members and drop their messages in flight."""
        for name in names:
            del self.up[name]
            for pair in [pair for pair in self.wires if name in pair]:
                self.wires[pair].clear()

    def last_indexes(self) -> set[int]:
        raise NotImplementedError

    def logs_are_equal(self) -> bool:
        return len(self.last_indexes()) == 1

    def pairs(self, one: str, other: str) -> set[tuple[str, str]]:
        return {(one, other), (other, one)}

    def receive(self, sender: str, receiver: str, message: Any) -> None:
        raise NotImplementedError

    def tick(self, name: str) -> None:
        raise NotImplementedError


class OurNet(Network):
    """Three members, or as many as ``ids``. ``results``: (value, reason) of what was put and answered, after the flush.

    ``new``: their folders are, otherwise they have been members; ``members``: all of the group, where not all are started.
    """

    def __init__(
        self,
        folder: Path,
        ids: str = "abc",
        seed: int = 1,
        *,
        members: str = "",
        new: bool = False,
        majority: bool = False,
        compact_after: int = 100_000,
    ) -> None:
        super().__init__(members or ids)
        self.majority = majority
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.random = random.Random(seed)
        self.compact_after = compact_after
        self.ghost: dict[int, bytes] = {}
        self.seen: Counter[str] = Counter()
        self.results: list[tuple[bytes, str]] = []
        for name in ids:
            if not new:
                (folder / name).mkdir(exist_ok=True)
                (folder / name / MARKER).write_text(name)
            self.start(name)

    def start(self, name: str) -> Member:
        self.up[name] = Member(self, name)  # type: ignore[arg-type]
        return self.up[name]

    def receive(self, sender: str, receiver: str, message: Any) -> None:
        self.up[receiver].inbox.append((sender, message))

    def tick(self, name: str) -> None:
        member = self.up[name]
        frames, member.inbox = member.inbox, []
        tick_once(member.core, member.transport, member.journal, frames)
        member.look()
        outbox = member.transport.sessions.outbox
        leaving, outbox[:] = outbox[:], []
        for receiver, frame in leaving:
            self.post(name, receiver, frame)
        self.results += [(value, REASONS[reason]) for value, _, reason in member.answers]
        member.answers.clear()

    def put(self, name: str, value: bytes) -> None:
        self.up[name].propose(value)

    def crash(self, *names: str) -> None:
        for name in names:
            self.up[name].journal.abandon()
        super().crash(*names)

    def empty(self, name: str) -> None:
        """Crash a member and delete its data directory."""
        self.crash(name)
        shutil.rmtree(self.folder / name)

    def copy(self, name: str) -> None:
        """Copy the data directory of a stopped member."""
        assert name not in self.up
        shutil.copytree(self.folder / name, self.folder / f"copy-of-{name}")

    def put_back(self, name: str) -> None:
        """Replace the data directory by the copy."""
        if name in self.up:
            self.crash(name)
        shutil.rmtree(self.folder / name)
        shutil.copytree(self.folder / f"copy-of-{name}", self.folder / name)

    def ask_for_barrier(self, name: str, leader: str) -> None:
        """Request a barrier on the control subject, like a starting member."""
        self.up[name].ask_for_barrier(b"a barrier %d for %s" % (len(self.up[name].barriers), name.encode()), self.up[leader])

    def split(self, *groups: str) -> None:
        """Partition the network into groups. Frames between them are lost, and members notice the silence."""
        side = {name: number for number, group in enumerate(groups) for name in group}
        self.lose = lambda sender, receiver, _: side.get(sender) != side.get(receiver)

    def leaders(self) -> list[str]:
        return [name for name, member in self.up.items() if member.core.leads]

    def elected(self) -> tuple[str, ...]:
        """Run until a leader is elected and all are ready. Return the leader, then the others."""
        assert self.run(lambda: len(self.leaders()) == 1 and all(m.core.isReady() for m in self.up.values()))
        (leader,) = self.leaders()
        return (leader, *(name for name in self.members if name != leader))

    def forbid_elections(self, *names: str) -> None:
        for name in names:
            self.up[name].core.hold_election(1e12)

    def elect_now(self, name: str) -> None:
        self.up[name].core._SyncObj__raftElectionDeadline = 0
        self.up[name].core.doTick(0)

    def last_indexes(self) -> set[int]:
        return {member.journal.last_index for member in self.up.values()}

    def acknowledged(self) -> set[bytes]:
        return {value for value, reason in self.results if reason == REASONS[FAIL_REASON.SUCCESS]}

    def values(self, name: str) -> list[bytes]:
        return [bytes.fromhex(entry) for _, entry in self.up[name].machine.applied]

    def counter(self, name: str, what: str) -> int:
        return self.up[name].transport.sessions.counters[what]


@contextmanager
def our_net(folder: Path, ids: str = "abc", seed: int = 1, **more: Any) -> Iterator[OurNet]:
    """Provide a group with a virtual clock and seeded random numbers, also for PySyncObj."""
    check_library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pysyncobj.syncobj, "random", random.Random(seed))
        clock: list[float] = [1000.0]
        patch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: clock[0])
        net = OurNet(folder, ids, seed, **more)
        patch.setattr(pysyncobj.syncobj, "monotonicTime", net.clock)
        try:
            yield net
        finally:
            for member in net.up.values():
                member.journal.abandon()


def bare_member(folder: Path) -> RaftMember:
    """A controller on ``folder``, opened but not started: it has no connection."""
    nothing: Any = None
    opened = MemberDirectory("a", ("a", "b", "c"), folder)
    return RaftMember(opened, nothing, Subjects("space"), ReplicationConfig(), print, InboxRule(("_INBOX.",)))
