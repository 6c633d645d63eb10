"""The cluster, its services and what is known of both: what the faults strike, and where it is found that all is well."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from liftpy.client import Client, connect
from liftpy.config import StreamConfig
from liftpy.core.services.snapshot import decode
from liftpy.errors import LiftError
from liftpy.service import Identity
from sidecar.cli.service import DO_NOT_RESTART, store_now
from sidecar.dev.cluster import DevCluster
from tests.examples.processes import ROOT, snapshot_path, start_service
from tests.system.service_chaos.ledger import PLANT, PLANT_BELOW, POISON, TIMED, VERSION
from tests.system.service_chaos.model import Model, Said, ViolationError

NODES = ("n1", "n2", "n3")
SERVICE = "ledger"
CODE = "tests.system.service_chaos.ledger:Ledger"
STREAM, OUTPUTS, DEAD = "commands", "entries", "dead"
EVERY = 20
PATIENCE_S = 90.0
_CHUNK = 25
"""Commands between two looks at the log: fewer bytes than retention leaves."""
_INPUT = StreamConfig(segment_bytes=4096, retention_bytes=16_384)
QUICK = {
    "LIFTPY_REPLICATION_LEASE_S": "1.0",
    "LIFTPY_REPLICATION_SESSION_S": "1.4",
    "LIFTPY_REPLICATION_HEARTBEAT_INTERVAL_S": "0.1",
    "LIFTPY_REPLICATION_MAX_LEADER_TIMEOUT_S": "1.5",
    "LIFTPY_REPLICATION_CANDIDATE_TIMEOUT_S": "1.0",
    "LIFTPY_REPLICATION_SERVICE_GRACE_S": "1.5",
}


class Ground:
    """``open`` it, strike, ``settle``, ``check``; ``close`` it at the end."""

    client: Client
    uid: str

    def __init__(self, rng: Random, show: Callable[[str, str], None] = lambda node, line: None) -> None:
        self.rng = rng
        self.cluster = DevCluster(len(NODES), settings=QUICK, on_line=show)
        self.folder = Path(tempfile.mkdtemp(prefix="liftpy-service-chaos-"))
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.versions = dict.fromkeys(NODES, 1)
        self.model = Model(SERVICE)
        self.acked: dict[int, bytes] = {}
        self.written: list[Said] = []
        self.dead: set[int] = set()
        """Offsets of the records in the dead-letter stream."""
        self._dead_end = 0
        self._log: list[Any] = []
        self._sent = 0
        self.restarts = 0
        """Services that ended with a code that says "start me again"."""

    async def open(self) -> None:
        """Start all of it."""
        await asyncio.to_thread(self.cluster.start)
        self.client = await connect(self.cluster.nats_url)
        self.uid = (await self.client.create_stream(STREAM, STREAM, config=_INPUT)).uid
        for stream in (OUTPUTS, DEAD):
            await self.client.create_stream(stream, stream)
        for node in NODES:
            self.start(node)
        await self.settle()

    async def close(self) -> None:
        """Stop all of it."""
        if "client" in self.__dict__:
            await self.client.close()
        for node in self.processes:
            self.kill(node)
        await asyncio.to_thread(self.cluster.stop)
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_last_output(self) -> str:
        """Log lines of the services for the report."""
        return "\n".join(
            f"---- {log.stem}\n" + "\n".join(log.read_text().splitlines()[-12:]) for log in sorted(self.folder.glob("*.log"))
        )

    # ---- services --------------------------------------------------------------------------------------------------------
    def start(self, node: str, *, plant: str = "", below: int = 0, version: int = 0) -> subprocess.Popen[Any]:
        """Its service: as it should be, or with something planted, or of another version than it has."""
        process = self.processes[node] = start_service(
            CODE,
            stream=STREAM,
            node=node,
            data=self.folder,
            output=OUTPUTS,
            snapshot_interval_records=EVERY,
            nats_url=self.cluster.nats_url,
            more=("--dead-letter-stream", DEAD),
            environment={VERSION: str(version or self.versions[node]), PLANT: plant, PLANT_BELOW: str(below)},
        )
        return process

    def kill(self, node: str) -> None:
        """kill -9 of its service."""
        self.processes[node].kill()
        self.processes[node].wait(10)

    async def stop(self, node: str) -> None:
        """SIGTERM: it must end with 0."""
        self.processes[node].terminate()
        if code := await self.ended(node):
            raise ViolationError(f"the service beside {node} was told to stop and ended with {code}")

    async def ended(self, node: str) -> int:
        """The exit code of its service, once there is one."""
        try:
            return await asyncio.to_thread(self.processes[node].wait, PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ViolationError(f"the service beside {node} does not end") from None

    def forget_snapshots(self, node: str) -> None:
        """As on a new node."""
        shutil.rmtree(self.folder / node)

    def words(self, node: str) -> str:
        """Return what the services of the node have logged so far."""
        return (self.folder / f"{node}.log").read_text()

    async def command(self, *words: str) -> tuple[int, str]:
        """``liftpy service ...``: its exit code, and all that it says."""
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from sidecar.cli.main import main; main()", "service", *words),
            *("--nats", self.cluster.nats_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        said, _ = await asyncio.wait_for(running.communicate(), PATIENCE_S)
        return running.returncode or 0, said.decode()

    # ---- nodes -----------------------------------------------------------------------------------------------------------
    async def leader(self) -> str:
        """Return the leader of the partition with the commands."""
        return str(await self.until(self._leader, "the input has a leader"))

    async def _leader(self) -> str:
        return (await self.client.stream(STREAM)).partitions[0].leader

    async def revive(self, node: str) -> None:
        """Start a node that was killed."""
        self.cluster.nodes[node].start()
        await asyncio.to_thread(self.cluster.nodes[node].wait_ready)

    # ---- records ---------------------------------------------------------------------------------------------------------
    async def publish(self, count: int) -> None:
        """So many commands, each until it is acknowledged, whatever happens meanwhile."""
        for number in range(count):
            await self.publish_one(TIMED if number % 5 == 4 else b"plain")
            if number % _CHUNK == _CHUNK - 1:
                await self.read()
        await self.read()

    async def publish_one(self, kind: bytes) -> int:
        """One command; its offset."""
        self._sent += 1
        value = b"%b %d " % (kind, self._sent) + self.rng.randbytes(40).hex().encode()

        async def acknowledged() -> Any:
            return await self.client.publish(STREAM, value, key=b"k%d" % (self._sent % 7))

        ack = await self.until(acknowledged, "a command is acknowledged")
        if ack.offset in self.acked:
            raise ViolationError(f"two commands were acknowledged at offset {ack.offset}")
        self.acked[ack.offset] = value
        return int(ack.offset)

    async def poison(self) -> int:
        """A record that no service can apply; its offset."""
        return await self.publish_one(POISON)

    async def read(self) -> None:
        """Read the log on, before retention takes it. It is applied to the model when all is well."""

        async def read_on() -> bool:
            at = self.model.position + len(self._log)
            if (await self.client.bounds(STREAM)).end_offset > at:
                async for record in self.client.consume(STREAM, start=at, until="end"):
                    self._log.append(record)
            return True

        await self.until(read_on, "the log is read")

    async def apply(self) -> bool:
        """Bring the model to the end of the log, once it is known what was passed over."""
        await self.read()
        for record in self._log:
            self.model.apply(record)
        self._log.clear()
        return True

    # ---- all well --------------------------------------------------------------------------------------------------------
    async def until(self, condition: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Wait until ``condition`` is true; raise ViolationError with the story otherwise."""
        deadline, last = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < deadline:
            try:
                last = await condition()
            except (LiftError, OSError) as error:  # a node that is down is part of what is waited out
                last = error
            if last and not isinstance(last, Exception):
                return last
            await asyncio.sleep(0.05)
        raise ViolationError(f"{what}: not within {PATIENCE_S:g} s; last: {last!r}")

    async def said(self, node: str) -> dict[str, Any]:
        """Return the row of the service in the status of a node. {}: the node has no such service."""
        status = await self.client.admin.node_status(node)
        services = [s for p in status["partitions"] if p["stream"] == STREAM for s in p.get("services", [])]
        return next((s for s in services if s["service"] == SERVICE and s["role"] != "GONE"), {})

    def supervise(self) -> None:
        """Restart the services that ask for it. Raise ViolationError if a service has ended and a restart does not help."""
        for node, process in self.processes.items():
            if (code := process.poll()) is None:
                continue
            if code in DO_NOT_RESTART or code <= 0:
                raise ViolationError(f"the service beside {node} has ended with {code}")
            self.restarts += 1
            self.start(node)

    async def is_well(self) -> bool:
        """Whether every service has applied the whole log, one leads, and every output is written."""
        self.supervise()
        partition = (await self.client.stream(STREAM)).partitions[0]
        said = {node: await self.said(node) for node in NODES}
        if len(partition.isr) < len(NODES) or not all(said.values()):
            return False
        end = (await self.client.bounds(STREAM)).end_offset
        written = (await self.client.bounds(OUTPUTS)).end_offset
        there = {(s["position"], s["output_count"], s["failing"], s["acknowledged"]) for s in said.values()}
        roles = sorted(str(s["role"]) for s in said.values())
        return there == {(end, written, False, True)} and roles == ["FOLLOWER", "FOLLOWER", "LEADER"]

    async def settle(self) -> None:
        """Wait for it."""
        await self.until(self.is_well, "all services have applied the log and one of them leads")

    async def check(self) -> None:
        """Compare all that there is with the model. Raises ViolationError."""
        await self.apply()
        self.model.check_log(self.acked)
        if (await self.client.bounds(OUTPUTS)).end_offset > len(self.written):
            async for record in self.client.consume(OUTPUTS, start=len(self.written), until="end"):
                if record.offset != len(self.written):
                    raise ViolationError(f"output {record.offset} follows {len(self.written) - 1}")
                self.written.append((record.value, record.key or None))
        self.model.check_outputs(self.written)
        if (await self.client.bounds(DEAD)).end_offset > self._dead_end:
            async for record in self.client.consume(DEAD, start=self._dead_end, until="end"):
                self._dead_end = record.offset + 1
                self.dead.add(int(dict(record.headers)["Lift-Dead-Letter-Source"].rsplit(b"/", 1)[1]))
        if self.dead != self.model.decided:
            raise ViolationError(f"dead letters: {sorted(self.dead)}, passed over: {sorted(self.model.decided)}")
        await self._check_states()

    async def _check_states(self) -> None:
        stored = await store_now(self.client, SERVICE, STREAM, 0, NODES, PATIENCE_S, self.cluster.namespace)
        identity = Identity(SERVICE, STREAM, self.uid, 0)
        files, states, counts = set(), {}, {}
        for node, position in stored.items():
            data = snapshot_path(self.folder, node, SERVICE, STREAM, self.uid, position).read_bytes()
            snapshot = decode(data, identity)
            files.add(data)
            states[node], counts[node] = snapshot.state, snapshot.output_count
        if set(stored) != set(NODES) or len(set(stored.values())) != 1:
            raise ViolationError(f"snapshots are at {stored}")
        self.model.check_states(stored[NODES[0]], states, counts)
        if len(files) != 1:
            raise ViolationError("the snapshots of the nodes differ beside the state")
        answer = await self.client.services.query(SERVICE, b"", timeout_s=PATIENCE_S)
        if json.loads(answer.value) != json.loads(self.model.state) or answer.position != self.model.position:
            raise ViolationError(f"a query is answered {answer.value!r} at {answer.position}, not {self.model.state!r}")
