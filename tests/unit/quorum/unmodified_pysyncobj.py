"""Provide unmodified PySyncObj nodes on a network that the test controls, in virtual time.

Of the library only the clock and (by a public parameter) the transport are given. The scenarios run in a process of their own,
by ``in_process``, because ``sidecar.raft`` replaces parts of the library for the whole process.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import os
import random
import subprocess
import sys
import textwrap
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

__all__ = ["REASONS", "Any", "Network", "Node", "Path", "Shipped", "ShippedNet", "in_process", "json", "logging", "os", "sys"]

REASONS = {value: name for name, value in vars(FAIL_REASON).items() if not name.startswith("_")}
STEP_S = 0.01
_ROOT = Path(__file__).resolve().parents[3]


def in_process(scenario: Callable[[Path], Any], folder: Path, *more: Callable[..., Any], dies: bool = False) -> Any:
    """What ``scenario(folder)`` returns in a process where nothing of the library is replaced. It sees this module's names
    and the functions ``more``. ``dies``: the process is expected to be killed by signal 9 instead."""
    sources = [textwrap.dedent(inspect.getsource(f)) for f in (*more, scenario)]
    head = "from __future__ import annotations\nfrom tests.unit.quorum.unmodified_pysyncobj import *\n"
    call = f"print('\\n' + json.dumps({scenario.__name__}(Path(sys.argv[1]))), flush=True)"
    code = "\n".join([head, *sources, "logging.disable(logging.CRITICAL)", call, "os._exit(0)"])
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    if dies:
        assert done.returncode == -9, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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


class _Wire(Transport):
    def __init__(self, net: ShippedNet, name: str) -> None:
        super().__init__(None, None, [])
        self.net, self.name = net, name

    def addNode(self, node: Node) -> None:
        pass

    def dropNode(self, node: Node) -> None:
        pass

    def send(self, node: Node, message: Any) -> bool:
        self.net.post(self.name, node.id, copy.deepcopy(message))
        return True


class Shipped(SyncObj):
    """Provide a node with a replicated list, written as in the documentation of PySyncObj."""

    def __init__(self, name: str, ids: Iterable[str], transport: Transport, **conf: Any) -> None:
        others = [Node(i) for i in ids if i != name]
        chosen: dict[str, Any] = {"autoTick": False, "logCompactionMinEntries": 10**6, "logCompactionMinTime": 10**9, **conf}
        super().__init__(Node(name), others, SyncObjConf(**chosen), transport=transport, nodeClass=Node)
        self.values: list[Any] = []

    @replicated
    def put(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values)

    @property
    def last_index(self) -> int:
        return int(self._SyncObj__raftLog[-1][1])


class ShippedNet(Network):
    """Connect nodes of unmodified PySyncObj. ``results``: (value, reason) of each answered command."""

    def __init__(self, ids: str = "abc", seed: int = 1, **conf: Any) -> None:
        super().__init__(ids)
        random.seed(seed)
        pysyncobj.syncobj.monotonicTime = self.clock
        self.conf = conf
        self.transports: dict[str, _Wire] = {}
        self.results: list[tuple[Any, str]] = []
        for name in ids:
            self.start(name)

    def start(self, name: str, **conf: Any) -> Shipped:
        transport = self.transports[name] = _Wire(self, name)
        node = self.up[name] = Shipped(name, self.members, transport, **{**self.conf, **conf})
        for other in self.members:
            if other != name:
                transport._onNodeConnected(Node(other))
        return node

    def receive(self, sender: str, receiver: str, message: Any) -> None:
        self.transports[receiver]._onMessageReceived(Node(sender), message)

    def tick(self, name: str) -> None:
        self.up[name].doTick(0)

    def put(self, name: str, value: Any) -> None:
        self.up[name].put(value, callback=lambda _, reason: self.results.append((value, REASONS[reason])))

    def split(self, *groups: str) -> None:
        """Partition the network into groups. Both sides notice at once. One group heals the network."""
        side = {name: number for number, group in enumerate(groups) for name in group}
        for one in self.up:
            for other in self.members:
                if one != other:
                    together, end = side.get(one) == side.get(other), self.transports[one]
                    (end._onNodeConnected if together else end._onNodeDisconnected)(Node(other))
                    if not together:
                        self.wires[one, other].clear()
        self.lose = lambda sender, receiver, _: side.get(sender) != side.get(receiver)

    def leaders(self) -> list[str]:
        return [name for name, node in self.up.items() if node._isLeader()]

    def elected(self) -> tuple[str, ...]:
        """Run until a leader is elected and all are ready. Return the leader, then the others."""
        assert self.run(lambda: len(self.leaders()) == 1 and all(n.isReady() for n in self.up.values()))
        (leader,) = self.leaders()
        return (leader, *(name for name in self.members if name != leader))

    def forbid_elections(self, *names: str) -> None:
        for name in names:
            self.up[name]._SyncObj__raftElectionDeadline = 1e12

    def elect_now(self, name: str) -> None:
        self.up[name]._SyncObj__raftElectionDeadline = 0
        self.tick(name)

    def last_indexes(self) -> set[int]:
        return {node.last_index for node in self.up.values()}

    def applied_everywhere(self) -> bool:
        return self.last_indexes() == {node.raftLastApplied for node in self.up.values()} and self.logs_are_equal()
