"""The ground that the faults happen on: a cluster, one stream, and what can be asked of both while nodes are missing."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liftpy.client import connect
from liftpy.config import StreamConfig
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.cluster import DevCluster, LineSink
from sidecar.dev.nats_server import NatsServer
from tests.system.faults.check import partition_folder
from tests.system.faults.relay import Relay
from tests.system.powercut.cut import PowerCut

STREAM, SUBJECT = "faulted", "data.faulted"
REPLICAS, MIN_ISR = 3, 2
_STATUS_TIMEOUT_S = 0.4
_CHECK_EVERY_S = 0.04
_FRESH_S = 0.5
_SUPERVISED_EVERY_S = 0.5
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the nodes have said by ``at`` (monotonic seconds): the view with the highest Epoch among those that answer."""

    at: float
    epoch: int
    leader: str
    isr: frozenset[str]
    phases: Mapping[str, str]
    """Node -> phase of its replica; only those that answered."""
    positions: Mapping[str, int | None]
    """Follower -> its position, as its leader has it."""
    ends: Mapping[str, tuple[int, int, int]]
    """Node -> (LeaderEpoch, newest offset, HW)."""


class Ground:
    """``open`` it, strike it, ``close`` it. ``relayed``: each reaches NATS through a relay of its own;
    ``powered``: their power can be cut and their disks can fail; ``supervised``: a node that ends by itself is started again;
    ``segment_bytes``: of the stream, 0: the default."""

    def __init__(
        self,
        *,
        relayed: bool = False,
        powered: bool = False,
        supervised: bool = False,
        segment_bytes: int = 0,
        settings: Mapping[str, str] | None = None,
        on_line: LineSink | None = None,
    ) -> None:
        self._relayed = relayed
        self._powered = powered
        self._supervised = supervised
        self._held: set[str] = set()
        self.supervised_starts = 0
        self._config = StreamConfig(min_isr=MIN_ISR, **({"segment_bytes": segment_bytes} if segment_bytes else {}))
        self._settings = dict(settings or {})
        self._on_line = on_line
        self._server = NatsServer()
        self._folder: Path | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}
        """Replica -> when it answered last, and what."""
        self.relays: dict[str, Relay] = {}
        self.power: PowerCut | None = None
        """Of all nodes' folders."""
        self.history: list[Seen] = []
        """Every look at the cluster since ``forget``, in order."""
        self.cluster: Any = None
        self.client: Any = None
        self.replicas: tuple[str, ...] = ()
        self.uid = ""

    # ---- life --------------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Start everything."""
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-faults-"))
        await asyncio.to_thread(self._server.start)
        if self._relayed:
            for number in range(REPLICAS):
                relay = self.relays[f"n{number + 1}"] = Relay(self._server.port)
                await relay.start()
        data = self._folder / "nodes"
        data.mkdir()
        if self._powered:
            self.power = PowerCut(data, self._folder / "shadow")
            self._settings |= self.power.environment
        self.cluster = DevCluster(
            REPLICAS,
            data=data,
            nats_url=self._server.url,
            settings=self._settings,
            on_line=self._on_line,
            node_nats_urls={name: relay.url for name, relay in self.relays.items()},
        )
        await asyncio.to_thread(self.cluster.start)
        self.client = await connect(self._server.url)
        stream = await self.client.create_stream(STREAM, SUBJECT, replicas=REPLICAS, config=self._config)
        self.replicas, self.uid = stream.partitions[0].replicas, stream.uid
        self._watchers = [asyncio.create_task(self._watch(name)) for name in self.replicas]
        if self._supervised:
            self._watchers.append(asyncio.create_task(self._supervise()))
        await self.whole()

    async def close(self) -> None:
        """Stop everything and remove its files."""
        for relay in self.relays.values():
            await relay.heal()
        await end_tasks(self._watchers)
        if self.client is not None:
            await self.client.close()
        if self.cluster is not None:
            await asyncio.to_thread(self.cluster.stop)
        for relay in self.relays.values():
            await relay.close()
        await asyncio.to_thread(self._server.stop)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Where clients connect; no relay is between."""
        return self._server.url

    @property
    def others(self) -> tuple[str, ...]:
        """The replicas that do not lead, as last seen."""
        return tuple(name for name in self.replicas if name != self.history[-1].leader)

    @property
    def leader(self) -> str:
        """The partition's leader as last seen."""
        return self.history[-1].leader

    def folders(self) -> dict[str, Path]:
        """Each replica's folder of the partition."""
        return {name: self.folder(name) for name in self.replicas}

    def folder(self, node: str) -> Path:
        """A replica's folder of the partition."""
        return partition_folder(self.data(node).parent, node, STREAM, self.uid)

    def data(self, node: str) -> Path:
        """A node's data folder."""
        return Path(self.cluster.data) / node

    # ---- looking -----------------------------------------------------------------------------------------------------
    async def _watch(self, name: str) -> None:
        """Each node by itself, so that one that does not answer delays no look at the others."""
        while True:
            answer = await self._status(name)
            if answer:
                self._told[name] = (time.monotonic(), answer)
                self.history.append(self._combine())
            await asyncio.sleep(_CHECK_EVERY_S)

    def _combine(self) -> Seen:
        since = time.monotonic() - _FRESH_S
        told = {name: answer for name, (at, answer) in self._told.items() if at >= since}
        best = max(told.values(), key=lambda answer: answer["epoch"])
        leading = told.get(best["leader"], {})
        return Seen(
            at=time.monotonic(),
            epoch=best["epoch"],
            leader=best["leader"],
            isr=frozenset(best["isr"]),
            phases={name: answer["phase"] for name, answer in told.items()},
            positions={name: f["position"] for name, f in leading.get("followers", {}).items()},
            ends={name: (a["leader_epoch"], a["newest_offset"], a["high_watermark"]) for name, a in told.items()},
        )

    async def _status(self, name: str) -> dict[str, Any]:
        if not self.cluster.nodes[name].running:
            return {}
        try:
            status = await self.client.admin.node_status(name, _STATUS_TIMEOUT_S)
        except LiftError:
            return {}
        return next((dict(p) for p in status["partitions"] if p["stream"] == STREAM and p["uid"] == self.uid), {})

    def forget(self) -> None:
        """Begin the history anew, with the last look in it."""
        del self.history[:-1]

    async def see(self, what: str, condition: Callable[[Seen], bool], timeout_s: float = DEADLINE_S) -> Seen:
        """Wait for a look, made from now on, that satisfies ``condition``."""
        began = time.monotonic()
        while time.monotonic() < began + timeout_s:
            if self.history and self.history[-1].at > began and condition(self.history[-1]):
                return self.history[-1]
            await asyncio.sleep(_CHECK_EVERY_S / 4)
        logs = {name: list(node.log)[-8:] for name, node in self.cluster.nodes.items()}
        raise TimeoutError(f"{what}: not within {timeout_s:g} s; last seen {self.history[-1:]}; logs {logs}")

    async def whole(self, timeout_s: float = DEADLINE_S) -> Seen:
        """Wait until the leader takes publishes and every replica is in the ISR and has fetched from it."""
        return await self.see("every replica is in the ISR", self.is_whole, timeout_s)

    def is_whole(self, seen: Seen) -> bool:
        """Whether the leader takes publishes and every replica is in the ISR and has fetched from it."""
        followers = [name for name in self.replicas if name != seen.leader]
        return (
            seen.phases.get(seen.leader) == "LEADER_READY"
            and seen.isr == set(self.replicas)
            and all(name in seen.phases and seen.positions.get(name) is not None for name in followers)
        )

    async def equal(self) -> None:
        """Wait until all replicas hold and have committed the same; nobody may publish meanwhile."""

        def same(seen: Seen) -> bool:
            return self.is_whole(seen) and len(set(seen.ends.values())) == 1 and _all_committed(seen)

        await self.see("the replicas are equal", same)

    async def group_whole(self) -> str:
        """Wait until the metadata group has a leader and every controller is connected and has caught up; return the leader."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(LiftError):
                state = await self.client.admin.describe_cluster()
                if state.metadata_leader and all(c.connected and c.lag <= 2 for c in state.controllers):
                    return str(state.metadata_leader)
            await asyncio.sleep(_CHECK_EVERY_S)
        raise TimeoutError("the metadata group is not whole")

    async def metadata_leader(self) -> str:
        """Who leads the metadata group."""
        return str((await self.client.admin.describe_cluster()).metadata_leader)

    # ---- doing -------------------------------------------------------------------------------------------------------
    async def move_leadership(self, node: str) -> None:
        """A planned transfer to ``node``."""
        request = cluster_pb2.ControlRequest()
        elect = cluster_pb2.ElectLeader(stream=STREAM, uid=self.uid, partition=0, node=node)
        request.electLeader.CopyFrom(elect)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.leader != node:
            request.operationId = secrets.token_bytes(16)
            with contextlib.suppress(LiftError):
                await self.client._transport.request(Subjects("liftpy").control_admin(), frames.encode(request), 2.0)
                with contextlib.suppress(TimeoutError):
                    await self.see(f"{node} leads", lambda seen: seen.leader == node, 3.0)
        await self.whole()

    async def restore(self) -> None:
        """Take back whatever a fault that failed half-way has left."""
        for relay in self.relays.values():
            await relay.heal()
        for node in self.cluster.nodes.values():
            node.send(signal.SIGCONT)
        if self.power is not None:
            self.power.heal()
        await self.start([name for name, node in self.cluster.nodes.items() if not node.running])

    def kill_at_once(self, names: Sequence[str]) -> None:
        """SIGKILL to all of them; ``start`` reaps them."""
        self._held |= set(names)
        for name in names:
            self.cluster.nodes[name].send(signal.SIGKILL)

    async def calm(self) -> None:
        """As after an hour without a fault: no node pauses before its next restart because of those it has made before."""
        nodes = [node.node_id for node in self.cluster.nodes.values() if node.running and _has_restarted(node.pid)]
        self.kill_at_once(nodes)
        await self.reap(nodes)
        await self.start(nodes)

    async def reap(self, names: Iterable[str]) -> None:
        """Wait for the ends of killed nodes."""
        await asyncio.gather(*(asyncio.to_thread(self.cluster.nodes[name].kill) for name in names))

    async def start(self, names: Sequence[str]) -> None:
        """Start stopped nodes, and what is to run beside them, and wait until the nodes have registered."""
        nodes = [self.cluster.nodes[name] for name in names]
        for node in nodes:
            if not node.running:  # its supervisor may have been first
                node.start()
        self._held -= set(names)
        await asyncio.gather(*(asyncio.to_thread(node.wait_ready) for node in nodes))

    async def _supervise(self) -> None:
        """As a supervisor does: whoever has ended is started again, but who is held (was killed on purpose, and not started yet)."""
        while True:
            for name, node in self.cluster.nodes.items():
                if not node.running and name not in self._held:
                    node.start()
                    self.supervised_starts += 1
            await asyncio.sleep(_SUPERVISED_EVERY_S)


def _has_restarted(pid: int) -> bool:
    """Whether a node's process has replaced itself; it counts that in its environment."""
    with contextlib.suppress(OSError):  # it has just ended
        return b"LIFTPY_RESTARTS_IN_A_ROW=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _all_committed(seen: Seen) -> bool:
    return all(newest == high_watermark for _, newest, high_watermark in seen.ends.values())
