"""Replicated services on a cluster of real processes, as the tests run them: one process beside each node, and what it should be."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.services.bad_records import decided_unit
from liftpy.core.services.snapshot import Snapshot
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import NotFoundError
from liftpy.service import Identity, Outbox, Service, ServiceMachine
from tests.examples.bank import FirstBank
from tests.examples.echo import Echo
from tests.examples.processes import snapshot_path, start_service
from tests.examples.rate_limiter import RateLimiter
from tests.examples.till import Till
from tests.examples.versioned import CountedSums, QuietSums
from tests.integration.conftest import Bench

NODES = ("n1", "n2", "n3")
EVERY = 50
EXAMPLES: dict[str, tuple[str, Callable[[], Service]]] = {
    "bank": ("tests.examples.bank:FirstBank", FirstBank),
    "echo": ("tests.examples.echo:Echo", Echo),
    "ratelimiter": ("tests.examples.rate_limiter:RateLimiter", RateLimiter),
    "till": ("tests.examples.till:Till", lambda: Till(".")),
    "quiet": ("tests.examples.versioned:QuietSums", QuietSums),
    "sums": ("tests.examples.versioned:Sums", CountedSums),
}
QUICK = {
    "LIFTPY_REPLICATION_LEASE_S": "1.0",
    "LIFTPY_REPLICATION_SESSION_S": "1.4",
    "LIFTPY_REPLICATION_HEARTBEAT_INTERVAL_S": "0.1",
    "LIFTPY_REPLICATION_MAX_LEADER_TIMEOUT_S": "1.5",
    "LIFTPY_REPLICATION_CANDIDATE_TIMEOUT_S": "1.0",
    "LIFTPY_REPLICATION_SERVICE_GRACE_S": "1.5",
}


class Running:
    """A service over a stream of its own, on every node, and what it should be."""

    def __init__(self, bench: Bench, example: str, stream: str, data: Path) -> None:
        self.bench = bench
        self.example = example
        self.name = example
        self.stream = stream
        self.outputs = f"{stream}-out"
        self.data = data
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.sent = 0
        self.more: tuple[str, ...] = ()
        """Flags beside those that all have."""

    def start(self, node: str, code: str = "") -> None:
        self.processes[node] = start_service(
            code or EXAMPLES[self.example][0],
            stream=self.stream,
            node=node,
            data=self.data,
            output=self.outputs,
            snapshot_interval_records=EVERY,
            nats_url=self.bench.cluster.nats_url,
            more=("--name", self.name, *self.more),
        )

    def send(self, node: str, number: int) -> None:
        self.processes[node].send_signal(number)

    def kill(self, node: str) -> None:
        self.processes[node].kill()
        self.processes[node].wait(10)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for log in sorted(self.data.glob("*.log")):
            print(f"---- service beside {log.stem}\n{log.read_text()}")

    # ---- what the sidecars say of it -----------------------------------------------------------------------------------
    async def said(self, node: str) -> dict[str, Any]:
        replica = await self.bench.replica(node, self.stream)
        return next((s for s in replica.get("services", []) if s["service"] == self.name), {})

    async def role(self, node: str) -> str:
        return str((await self.said(node)).get("role", ""))

    async def leads(self) -> str:
        """The node whose service is LEADER beside the partition's leader, '' while there is none."""
        leader = await self.bench.leader(self.stream)
        return leader if leader and await self.role(leader) == "LEADER" else ""

    async def caught_up(self) -> bool:
        said = [await self.said(node) for node in NODES]
        return all(s.get("position") == self.sent and s["acknowledged"] for s in said)

    async def went_on(self) -> bool:
        """As ``caught_up``, when records come from the services themselves."""
        self.sent = (await self.bench.client.bounds(self.stream)).end_offset
        return await self.caught_up() and not any([(await self.said(node))["failing"] for node in NODES])

    async def emitted(self) -> bool:
        """Whether everything that was produced is in the output stream."""
        bounds = await self.bench.client.bounds(self.outputs)
        produced = {(await self.said(node)).get("output_count", -1) for node in NODES}
        return produced == {bounds.end_offset}

    # ---- work ----------------------------------------------------------------------------------------------------------
    def command(self, number: int) -> bytes:
        what = ("open", "deposit", "deposit", "transfer", "withdraw", "lock")[number % 6 if number >= 12 else 0]
        names = ("a", "b", "c", "d", "e")
        value = {"do": what, "account": names[number % 5], "to": names[number // 5 % 5], "amount": number % 37, "for_s": 0.05}
        return json.dumps({"id": str(number), **value}).encode()

    async def elect(self, node: str) -> None:
        """A planned transfer of the leadership to ``node``."""
        request = cluster_pb2.ControlRequest(sender="test", operationId=secrets.token_bytes(16))
        request.electLeader.CopyFrom(cluster_pb2.ElectLeader(stream=self.stream, partition=0, node=node))
        answer = await self.bench.nc.request("liftpy.control.admin", frames.encode(request), timeout=5)
        response = frames.decode(answer.data, cluster_pb2.ControlResponse)
        assert response.error == cluster_pb2.ControlResponse.OK, response

    async def publish(self, count: int) -> None:
        """``count`` more commands, each acknowledged; over a fail-over one may be in the log twice, which is counted by ``sent``."""
        async with self.bench.client.publisher(self.stream) as publisher:
            futures = [await publisher.send(self.command(self.sent + n), key=b"k%d" % (n % 7)) for n in range(count)]
            await publisher.flush()
        self.sent = max(self.sent, *(future.result().offset + 1 for future in futures))

    # ---- what it should be ---------------------------------------------------------------------------------------------
    async def replayed(self) -> tuple[ServiceMachine, list[Snapshot]]:
        """A replay of the log from its start, here."""
        uid = (await self.bench.client.stream(self.stream)).uid
        machine = ServiceMachine(
            EXAMPLES[self.example][1](),
            Identity(self.name, self.stream, uid, 0),
            snapshot_interval_records=EVERY,
            outbox=Outbox(f"{uid}/0"),
        )
        machine.start(None)
        records = [record async for record in self.bench.client.consume(self.stream, until="end")]
        for unit in [decided_unit(record, self.name) for record in records]:
            if unit is not None:
                machine.skip(unit)
        return machine, machine.apply(records).snapshots

    async def check(self) -> None:
        """Fill the log up to a snapshot's position; then compare every node's with the replay, and the outputs."""
        await self.publish(EVERY - self.sent % EVERY)
        bench = self.bench
        await bench.until(self.caught_up, "every service has applied the whole log")
        machine, snapshots = await self.replayed()
        expected = snapshots[-1].encode()
        assert snapshots[-1].position == self.sent
        for node in NODES:
            path = snapshot_path(self.data, node, self.name, self.stream, machine.identity.uid, self.sent)
            await bench.until(lambda path=path: exists(path), f"{node} has its snapshot at {self.sent}")
            assert path.read_bytes() == expected, f"the service beside {node} differs from a replay of the log"
        await bench.until(self.emitted, "all outputs are written")
        written = [record async for record in bench.client.consume(self.outputs, until="end")]
        assert machine.outbox is not None
        wanted = machine.outbox.read(0, machine.outbox.output_count)
        assert [(r.offset, r.value, r.key or None) for r in written] == [(o.number, o.value, o.key or None) for o in wanted]


async def answers(question: Callable[[], Awaitable[str]], wanted: str) -> bool:
    """Whether that is what ``question`` says."""
    return bool(await question() == wanted)


async def exists(path: Path) -> bool:
    """Whether there is a file."""
    return path.exists()  # noqa: ASYNC240


async def _is_deleted(bench: Bench, stream: str) -> bool:
    with contextlib.suppress(NotFoundError):
        await bench.client.admin.delete_stream(stream)
    return True


@contextlib.asynccontextmanager
async def running_services(bench: Bench, stream: str) -> AsyncIterator[Callable[..., Any]]:
    """Begins services over ``stream``, each led when it is given back, and ends them."""
    with tempfile.TemporaryDirectory(prefix="liftpy-services-") as folder:
        begun: list[Running] = []

        async def begin(
            example: str, config: StreamConfig | None = None, *, partitions: int = 1, more: Sequence[str] = ()
        ) -> Running:
            running = Running(bench, example, stream, Path(folder))
            running.more = tuple(more)
            begun.append(running)
            await bench.create(running.stream, config=config, partitions=partitions)
            await bench.create(running.outputs, partitions=partitions)
            for node in NODES:
                running.start(node)
            await bench.until(running.leads, "a service leads")
            return running

        try:
            yield begin
        finally:
            for running in begun:
                running.stop()
            for kind in ("", "-out"):  # as long as there is a stream, its nodes tell of the services that were killed
                await bench.until(lambda name=stream + kind: _is_deleted(bench, name), f"{stream}{kind} is deleted")
