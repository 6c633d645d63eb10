"""``python -m tests.system.groups.trimmed --rounds 10 [--old COMMIT]``: a line for each round; exit 1 at the first violation.

Consumer groups, cursors, work queues and a replicated service lose nothing when all nodes are killed and started after retention has
deleted the records of ``_groups``, and of the service's stream, that their state came from. The state is in snapshots alone then.

A round changes the state, makes retention delete all of its records, kills all nodes and services, starts them, and compares the state
with what it was. In every third round the snapshots are those that a coordinator makes every 10,000 commands, else those of a clean
stop. At the end everything is read: no record that was committed or acknowledged comes again, all others come.

``--old COMMIT``: nodes and services of that commit make the first round and are stopped in one of four ways, in turn over the rounds;
then those of this checkout go on with their data directories. Each round has a cluster of its own then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from liftpy.client import Client, GroupOptions, QueueOptions, connect
from liftpy.config import StreamConfig
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster, DevNode
from sidecar.dev.nats_server import spawn
from tests.system.groups.charging import HOLD
from tests.system.groups.ground import ROOT, ViolationError

NODES = ("n1", "n2", "n3")
STREAM, PARTITIONS, DEAD, COMMANDS = "work", 2, "work-dead", "commands"
SERVICE, FILL = "charging", "fill"
SNAPSHOT_EVERY = 10_000
"""Commands between two snapshots of a coordinator (``sidecar/groups/coordinators.py``)."""
PATIENCE_S = 90.0
_SMALL = {"segment_bytes": 4096, "retention_bytes": 8192}
_SETTINGS = {
    "LIFTPY_REPLICATION_GROUPS_PARTITIONS": "1",
    "LIFTPY_REPLICATION_LEASE_S": "1.0",
    "LIFTPY_REPLICATION_SESSION_S": "1.4",
    "LIFTPY_REPLICATION_HEARTBEAT_INTERVAL_S": "0.1",
}
_AT_ONCE = 64
"""Commands under way while records of ``_groups`` are made."""
_QUEUE = QueueOptions(dead_letters=DEAD, ack_wait_s=5.0)


class Nodes(DevCluster):
    """``code``: the checkout that nodes run, changed between two starts."""

    def __init__(self, data: Path, code: Path, log: Callable[[str, str], None]) -> None:
        paths = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
        super().__init__(len(NODES), data=data, settings={**_SETTINGS, **paths}, on_line=log)
        self.code = code

    def start_nodes(self) -> None:
        """Start all, of the present code; the NATS server runs."""
        self._settings["PYTHONPATH"] = str(self.code)
        for name in NODES:
            self.nodes[name] = DevNode(
                name, self._command(name, list(NODES)), self._environment(name, name == "n1"), self._on_line
            )
            self.nodes[name].start()
        for node in self.nodes.values():
            node.wait_ready(PATIENCE_S)

    def end_nodes(self, number: signal.Signals) -> None:
        """End all at the same time, and wait."""
        for node in self.nodes.values():
            node.send(number)
        for node in self.nodes.values():
            node.kill() if number is signal.SIGKILL else node.terminate() if number is signal.SIGTERM else node.interrupt()


@dataclass
class Known:
    """The state as clients know it."""

    groups: dict[str, dict[Any, int]] = field(default_factory=dict)
    cursors: dict[str, dict[Any, int]] = field(default_factory=dict)
    queue: list[tuple[Any, ...]] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    """Message id -> the service's answer."""


class Ground:
    """The cluster, its services, and what is known of both."""

    client: Client

    def __init__(self, folder: Path, code: Path, rng: Random, log: Callable[[str, str], None]) -> None:
        self.rng = rng
        self.cluster = Nodes(folder / "nodes", code, log)
        self.folder = folder
        self.hold = folder / "hold"
        self.services: dict[str, subprocess.Popen[Any]] = {}
        self.known = Known()
        self.published = 0
        self.given: dict[str, set[tuple[int, int]]] = {}
        """Group -> (partition, offset) of the records that it has committed."""
        self.acked: set[tuple[int, int]] = set()
        self.rejected: set[tuple[int, int]] = set()

    # ---- life ------------------------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything, with empty streams."""
        (self.folder / "services").mkdir(parents=True)
        try:
            await asyncio.to_thread(self.cluster.start)
            async with connect(self.cluster.nats_url) as self.client:
                self.client.admin.allow_internal()
                await self.client.create_stream(STREAM, "data.work", partitions=PARTITIONS)
                await self.client.create_stream(DEAD, "data.dead")
                await self.client.create_stream(COMMANDS, "data.commands", config=StreamConfig(**_SMALL))  # type: ignore[arg-type]
                self._start_services()
                yield
        finally:
            self._end_services(signal.SIGKILL)
            await asyncio.to_thread(self.cluster.stop)

    def _start_services(self) -> None:
        for node in NODES:
            flags = {
                "--stream": COMMANDS, "--node": node, "--data": str(self.folder / "services" / node), "--nats": self.cluster.nats_url,
                "--snapshot-interval-records": "20", "--name": SERVICE,
            }  # fmt: skip
            command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "service", "charging:Charging"]
            path = os.pathsep.join([str(self.cluster.code), str(Path(__file__).parent)])
            environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", HOLD: str(self.hold)}
            words = [word for pair in flags.items() for word in pair]
            with (self.folder / "services" / f"{node}.log").open("ab") as log:
                self.services[node] = spawn([*command, *words], signal.SIGKILL, stdout=log, stderr=log, env=environment)

    def _end_services(self, number: signal.Signals) -> None:
        for process in self.services.values():
            process.send_signal(number)
        for node, process in self.services.items():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
            if number is signal.SIGTERM and process.returncode:
                raise ViolationError(f"the service beside {node} was told to stop and ended with {process.returncode}")
        self.services.clear()

    async def restart(self, number: signal.Signals) -> None:
        """End all nodes and services, and start them."""
        await asyncio.to_thread(self._end_services, signal.SIGKILL if number is signal.SIGKILL else signal.SIGTERM)
        await asyncio.to_thread(self.cluster.end_nodes, number)
        await asyncio.to_thread(self.cluster.start_nodes)
        self._start_services()

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for it."""
        give_up, why = time.monotonic() + timeout_s, ""
        while time.monotonic() < give_up:
            try:
                if await condition():
                    return
                why = ""
            except (LiftError, TimeoutError) as error:
                why = f": {error}"
            await asyncio.sleep(0.1)
        raise ViolationError(f"not within {timeout_s:g} s: {what}{why}")

    # ---- what a round changes ----------------------------------------------------------------------------------------------
    async def change(self, number: int) -> None:
        """Groups and cursors commit, a queue gives and takes back, the service answers; some are new, some go on."""
        for _ in range(60):
            await self.client.publish(STREAM, b"%d" % self.published, partition=self.published % PARTITIONS)
            self.published += 1
        for name in ("crew", f"crew-{number}"):
            await self._read(name)
        for name in ("place", f"place-{number}"):
            async with self.client.cursor(name, STREAM) as cursor:
                for partition in range(PARTITIONS):
                    committed = await cursor.fetch(partition) or 0
                    end = (await self.client.bounds(STREAM, partition)).end_offset
                    await cursor.commit(self.rng.randint(committed, end), partition)
        await self._work(30)
        if number % 3:
            self.hold.touch()
        for one in range(30):
            id = f"c{number}-{one}"
            self.known.answers[id] = (await self._call(id)).value
        self.known.groups = {one.name: (await self.client.groups.describe(one.name)).positions for one in await self._groups()}
        self.known.cursors = {name: await self.client.cursors.describe(name) for name in await self.client.cursors.list()}

    async def _groups(self) -> list[Any]:
        return [one for one in await self.client.groups.list() if not one.queues and one.name != FILL]

    async def _call(self, id: str) -> Any:
        return await self.client.services.call(SERVICE, COMMANDS, id.encode(), message_id=id, timeout_s=30)

    async def _read(self, name: str, *, whole: bool = False) -> None:
        """A member that commits some parts, and leaves one that it was given."""
        given = self.given.setdefault(name, set())
        ends = {number: (await self.client.bounds(STREAM, number)).end_offset for number in range(PARTITIONS)}
        total = sum(ends.values())
        share = total if whole else self.rng.randint(len(given), total)
        async with self.client.group(name, [STREAM], options=GroupOptions(auto_commit_s=0, session_s=6)) as group:
            while len(given) < share:
                part = await asyncio.wait_for(anext(group.batches()), PATIENCE_S)
                places = {(part.key.partition, record.offset) for record in part.slice.records()}
                if again := sorted(places & given):
                    raise ViolationError(f"group {name}: {again[:3]} were committed and are given again")
                await group.commit()
                given |= places
            if not whole and share < total:
                await asyncio.wait_for(anext(group.batches()), PATIENCE_S)  # is not committed, and comes again

    async def _work(self, jobs: int, *, whole: bool = False) -> int:
        """Settle some jobs of the queue; how many were taken."""
        taken = 0
        async with self.client.queue(STREAM, "jobs", options=_QUEUE) as queue:
            while taken < jobs and (some := await queue.take(min(16, jobs - taken), timeout_s=0.5)):
                taken += len(some)
                for job in some:
                    at = job.key.partition, job.record.offset
                    if at in self.acked | self.rejected:
                        raise ViolationError(f"queue: {at} was settled and is given again")
                    what = "ack" if whole else self.rng.choices(("ack", "nack", "reject", "keep"), (60, 20, 10, 10))[0]
                    if what == "ack":
                        await job.ack()
                        self.acked.add(at)
                    elif what == "nack":
                        await job.nack()
                    elif what == "reject":
                        await job.reject("bad")
                        self.rejected.add(at)
        return taken

    # ---- what deletes its records ------------------------------------------------------------------------------------------
    async def trim(self, *, by_stop: signal.Signals | None) -> None:
        """Have retention delete all records up to here, of ``_groups`` and of the commands."""
        await self.client.admin.alter_stream(GROUPS_STREAM, **_SMALL)
        marks = {name: (await self.client.bounds(name)).end_offset for name in (GROUPS_STREAM, COMMANDS)}
        await self._fill(100)
        if by_stop is not None:
            await self.restart(by_stop)
            await self.until(self._works, "the cluster answers after a clean stop")
            await self._fill(200)
        else:
            end = (await self.client.bounds(GROUPS_STREAM)).end_offset
            await self._fill(SNAPSHOT_EVERY - end % SNAPSHOT_EVERY + 100)

        async def trimmed() -> bool:
            return all([(await self.client.bounds(name)).log_start_offset >= mark for name, mark in marks.items()])

        await self.until(trimmed, "retention has deleted the records of this round")

    async def _fill(self, count: int) -> None:
        """So many commands in ``_groups``, and some for the service."""
        key, left = (await self.client.stream(STREAM)).key(0), count

        async def commit() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.client.groups.reset(FILL, {key: left})

        await asyncio.gather(*(commit() for _ in range(min(_AT_ONCE, count))))
        for _ in range(3):
            self.known.answers[f"f{len(self.known.answers)}"] = (await self._call(f"f{len(self.known.answers)}")).value
        end = (await self.client.bounds(COMMANDS)).end_offset
        while (await self.client.bounds(COMMANDS)).end_offset < end + 60:
            id = f"f{len(self.known.answers)}"
            self.known.answers[id] = (await self._call(id)).value

    async def _works(self) -> bool:
        await self.client.groups.list()
        return bool(await self.client.services.query(SERVICE, b""))

    # ---- what is compared --------------------------------------------------------------------------------------------------
    async def compare(self) -> None:
        """The state is what it was."""
        await self.until(self._works, "the cluster answers after a kill")
        groups = {one.name: (await self.client.groups.describe(one.name)).positions for one in await self._groups()}
        _same("groups", self.known.groups, groups)
        cursors = {name: await self.client.cursors.describe(name) for name in await self.client.cursors.list()}
        _same("cursors", self.known.cursors, cursors)
        queue = (await self.client.groups.describe("jobs")).queues
        for one in queue:
            done = {offset for partition, offset in self.acked | self.rejected if partition == one.key.partition}
            if not set(range(one.acknowledged_below)) <= done:
                raise ViolationError(f"queue: {one} counts as done what was not settled")
        said = json.loads((await self.client.services.query(SERVICE, b"")).value)
        if set(said) != set(self.known.answers):
            raise ViolationError(f"service: {sorted(set(said) ^ set(self.known.answers))[:3]} differ from what was answered")
        for id in self.rng.sample(sorted(self.known.answers), 10):
            if (answer := (await self._call(id)).value) != self.known.answers[id]:
                raise ViolationError(f"service: {id} was answered {self.known.answers[id]!r}, and now {answer!r}")
        self.hold.unlink(missing_ok=True)

        async def charged() -> bool:
            said = json.loads((await self.client.services.query(SERVICE, b"")).value)
            if twice := [id for id, count in said.items() if count > 1]:
                raise ViolationError(f"service: the result of {twice[:3]} came twice")
            return set(said.values()) == {1}

        await self.until(charged, "every effect has its result")

    async def drain(self) -> None:
        """Read everything: what was not committed or acknowledged comes."""
        total = sum([(await self.client.bounds(STREAM, number)).end_offset for number in range(PARTITIONS)])
        for name in self.given:
            await self._read(name, whole=True)
        give_up = time.monotonic() + PATIENCE_S
        while len(self.acked | self.rejected) < total:
            if time.monotonic() > give_up:
                raise ViolationError(f"queue: {total - len(self.acked | self.rejected)} records never come")
            await self._work(200, whole=True)
        dead = (await self.client.bounds(DEAD)).end_offset
        if dead != len(self.rejected):
            raise ViolationError(f"queue: {len(self.rejected)} records were rejected, {dead} are dead letters")


def _same(what: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise ViolationError(f"{what}: {name} was {before.get(name)}, and is {after.get(name)}")


def checked_out(commit: str, folder: Path) -> Path:
    """The files of a commit, in ``folder``."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


async def _round(ground: Ground, number: int, how: str) -> str:
    """``how``: what ends the nodes before and after retention."""
    began = time.monotonic()
    await ground.change(number)
    stop = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(how)
    await ground.trim(by_stop=stop)
    start = (await ground.client.bounds(GROUPS_STREAM)).log_start_offset
    await ground.restart(signal.SIGKILL)
    await ground.compare()
    groups, cursors = len(ground.known.groups), len(ground.known.cursors)
    return (
        f"{number:3} snapshots by {how:10} _groups starts at {start:6}: {groups} groups, {cursors} cursors, the queue "
        f"and {len(ground.known.answers)} answers are as before ({time.monotonic() - began:.0f} s)"
    )


async def run(rounds: int, seed: int, log: Path | None = None) -> int:
    """All rounds on one cluster; the exit code."""
    rng = Random(seed)
    with _shown(log) as show, tempfile.TemporaryDirectory(prefix="liftpy-trimmed-") as folder:
        ground = Ground(Path(folder), ROOT, rng, show)
        try:
            async with ground.running():
                for number in range(1, rounds + 1):
                    how = "commands" if number % 3 == 0 else rng.choice(("interrupt", "terminate"))
                    print(await _round(ground, number, how), flush=True)
                await ground.drain()
        except (ViolationError, LiftError, TimeoutError) as violation:
            return _failed(ground, seed, violation)
    print(f"{rounds} rounds with seed {seed}: nothing was lost, nothing came again")
    return 0


OLD_STOPS = ("commands", "interrupt", "terminate", "commands")


async def run_old(commit: str, rounds: int, seed: int, log: Path | None = None) -> int:
    """Each round: a cluster whose files an older version has written."""
    rng = Random(seed)
    with _shown(log) as show, tempfile.TemporaryDirectory(prefix="liftpy-old-code-") as code:
        old = checked_out(commit, Path(code))
        for number in range(1, rounds + 1):
            folder = Path(tempfile.mkdtemp(prefix="liftpy-trimmed-"))
            ground = Ground(folder, old, rng, show)
            how, began = OLD_STOPS[number % len(OLD_STOPS)], time.monotonic()
            try:
                async with ground.running():
                    await ground.change(number)
                    if how != "commands":
                        ground.cluster.code = ROOT  # the old version stops, this one starts, and retention is its work
                    await ground.trim(by_stop={"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(how))
                    ground.cluster.code = ROOT
                    await ground.restart(signal.SIGKILL)
                    await ground.compare()
                    print(f"{number:3} files of {commit}, {how:10} as before ({time.monotonic() - began:.0f} s)", flush=True)
                    print(await _round(ground, number + 1, "commands"), flush=True)
                    await ground.drain()
            except (ViolationError, LiftError, TimeoutError) as violation:
                return _failed(ground, seed, violation)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{rounds} clusters with files of {commit} and seed {seed}: nothing was lost, nothing came again")
    return 0


def _failed(ground: Ground, seed: int, violation: Exception) -> int:
    print(f"VIOLATION with seed {seed}: {type(violation).__name__}: {violation}", flush=True)
    for path in sorted((ground.folder / "services").glob("*.log")):
        print(f"---- service beside {path.stem}\n" + "\n".join(path.read_text().splitlines()[-8:]))
    return 1


@contextlib.contextmanager
def _shown(log: Path | None) -> Any:
    with log.open("a", encoding="utf-8") if log else contextlib.nullcontext() as lines:
        yield lambda node, line: print(node, line, file=lines, flush=True) if lines else None


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.groups.trimmed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--old", metavar="COMMIT", default="", help="nodes of this commit write the files")
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    given = parser.parse_args()
    if given.old:
        return asyncio.run(run_old(given.old, given.rounds, given.seed, given.log))
    return asyncio.run(run(given.rounds, given.seed, given.log))


if __name__ == "__main__":
    sys.exit(main())
