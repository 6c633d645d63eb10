"""One run: old nodes, up node by node, down again and up, with kills; soak; finalize; everything compared.

Before that the cluster goes to a level that the new version does not speak: a new node has to end, and to say what to do.

Acknowledged load runs all the time. A node is changed as docs/upgrades.md has it: can-stop, SIGTERM, the other version, start, synced;
the metadata leader last. At every step some node may be killed, and comes back as the version that it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import connect
from liftpy.core.metadata.describe import reasons_to_keep_running
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.cluster import DevCluster, DevNode
from tests.system.upgrade.beside import Beside
from tests.system.upgrade.images import equal, images
from tests.system.upgrade.wheel import Installed

NODES = ("n1", "n2", "n3")
NEWEST = SUPPORTED_LEVELS.most
_STEP_S = 90.0
_POLL_S = 0.1
_KILL_SHARE = 0.5
"""Of the steps, in which a node is killed."""
_STREAM = "load"


@dataclass(slots=True)
class Outcome:
    """What came of it; right if ``wrong`` is empty."""

    acknowledged: int = 0
    lost: int = 0
    longest_gap_s: float = 0.0
    kills: int = 0
    changes: int = 0
    refusals: list[str] = field(default_factory=list)
    """What finalize said while an old node was there."""
    new_ended_with: int | None = None
    """Exit code of the new version while the cluster is below its levels; None: there is no such level."""
    old_ended_with: int | None = None
    """Exit code of the old version after finalize; None: it speaks the level."""
    found: int = 0
    """Records in the log in the end."""
    level: int = 0
    index: int = 0
    digest: str = ""
    beside: str = ""
    """What ran beside the load."""
    wrong: list[str] = field(default_factory=list)


class MixedCluster(DevCluster):
    """Nodes of two versions. ``old``: where the old one is installed."""

    def __init__(self, old: Installed, on_line: Callable[[str, str], None], olds: Collection[str] = NODES) -> None:
        super().__init__(len(NODES), on_line=on_line)
        self._old = old
        self.version = {name: "old" if name in olds else "new" for name in NODES}

    def _command(self, name: str, controllers: list[str]) -> list[str]:
        command = super()._command(name, controllers)
        return [str(self._old.python), *command[1:]] if self.version[name] == "old" else command

    def _environment(self, name: str, says_if_open: bool) -> dict[str, str]:
        made = super()._environment(name, says_if_open)
        if self.version[name] == "old":
            made.pop("PYTHONPATH")
        return {**made, "PYTHONSAFEPATH": "1"}

    def install(self, name: str, version: str) -> None:
        """What the next process of the node is; it does not run now."""
        self.version[name] = version
        self.nodes[name] = DevNode(name, self._command(name, list(NODES)), self._environment(name, False), self._on_line)


async def first_starts(old: Installed, say: Callable[[str], None]) -> list[str]:
    """A new cluster of both versions, each mixture: it has to begin at the newest level that both speak. Returns what is wrong."""
    wrong = []
    for olds in (("n3",), ("n1",), ("n1", "n2")):
        with MixedCluster(old, lambda node, line: None, olds) as cluster:
            async with await connect(cluster.nats_url, cluster.namespace) as client:
                await client.create_stream(_STREAM, "data.load", partitions=1, replicas=3)
                for number in range(20):
                    await client.publish(_STREAM, b"%d" % number)
                level = (await client.admin.describe_cluster(linearizable=True)).image.feature_level
            ended = [name for name in NODES if not cluster.nodes[name].running]
        say(f"first start with {', '.join(olds)} old: level {level}")
        wrong += [f"with {olds} old it began at level {level}"] if level != min(NEWEST, old.most) else []
        wrong += [f"with {olds} old {ended} ended"] if ended else []
    return wrong


class Run:
    """``say``: a line for each step. ``spark``: a session for the query beside the load, None: there is none."""

    def __init__(
        self,
        old: Installed,
        rounds: int,
        soak_s: float,
        seed: int,
        say: Callable[[str], None],
        log: Any = None,
        spark: Any = None,
    ) -> None:
        self._spark = spark
        self._old = old
        self._cluster = MixedCluster(old, lambda node, line: print(node, line, file=log) if log else None)
        self._rounds = rounds
        self._soak_s = soak_s
        self._draw = random.Random(seed)
        self._say = say
        self._acked: list[bytes] = []
        self._load_ends = False
        self.outcome = Outcome()

    async def go(self) -> Outcome:
        """All of it."""
        with self._cluster as cluster:
            folders = [cluster.data / name / "raft" for name in NODES]
            async with await connect(cluster.nats_url, cluster.namespace) as client:
                self._client = client
                await client.create_stream(_STREAM, "data.load", partitions=1, replicas=3)
                with tempfile.TemporaryDirectory(prefix="liftpy-beside-") as folder:
                    beside = Beside(client, cluster.nats_url, _STREAM, NODES, Path(folder), self._spark)
                    await beside.start()
                    load = asyncio.create_task(self._load())
                    try:
                        await self._steps()
                        self._load_ends = True  # a publish that is under way would come behind what is compared
                        await load
                    finally:
                        await end_tasks([load])
                    records = [record async for record in client.consume(_STREAM, until="end")]
                    await self._until(lambda: beside.has_all(len(records)), "the service and the query have all")
                    self.outcome.wrong += await beside.wrong(records)
                    self.outcome.beside = beside.figures()
                    await beside.stop()
                found = {record.value for record in records}
                self.outcome.found = len(found)
            self.outcome.acknowledged = len(self._acked)
            self.outcome.lost = len(set(self._acked) - found)
            for name in NODES:
                await asyncio.to_thread(cluster.nodes[name].terminate)
            held = images(folders)
            self.outcome.level, self.outcome.index = held[0].feature_level, held[0].index
            self.outcome.digest = held[0].digest.hex()
            self._expect(self.outcome.level == NEWEST, f"the cluster is at level {self.outcome.level}")
            self._expect(bool(self.outcome.digest), "the image has no digest")
            self._expect(equal(held), "the controllers hold different images")
            self._expect(not self.outcome.lost, f"{self.outcome.lost} acknowledged records are lost")
        return self.outcome

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.outcome.wrong.append(what)

    async def _steps(self) -> None:
        if self._old.least < SUPPORTED_LEVELS.least:
            await self._new_is_refused()
        for number in range(self._rounds):
            await self._all_to("new", f"up {number + 1}")
            if number + 1 < self._rounds:
                await self._all_to("old", f"down {number + 1}")
        self._say(f"soak {self._soak_s:g} s")
        await asyncio.sleep(self._soak_s)
        await self._kill()
        await self._until(lambda: self._is_at(NEWEST), "finalize")
        self._say(f"finalized: level {NEWEST}")
        if self._old.most < NEWEST:
            await self._old_is_refused()
        await self._kill()
        await self._acks(50)

    # ---- load ------------------------------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        number, last = 0, time.monotonic()
        while not self._load_ends:
            value = b"%d" % number
            number += 1
            try:
                await self._client.publish(_STREAM, value)
            except LiftError:
                continue
            now = time.monotonic()
            self.outcome.longest_gap_s, last = max(self.outcome.longest_gap_s, now - last), now
            self._acked.append(value)

    async def _acks(self, count: int) -> None:
        wanted = len(self._acked) + count

        async def enough() -> bool:
            return len(self._acked) >= wanted

        await self._until(enough, f"{count} more acknowledgements")

    async def _until(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + _STEP_S
        while not await holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {_STEP_S:g} s")
            await asyncio.sleep(_POLL_S)

    # ---- steps -----------------------------------------------------------------------------------------------------------------
    async def _all_to(self, version: str, what: str) -> None:
        left = set(NODES)
        while left:
            leader = await self._leader()
            name = min(left - {leader}) if left - {leader} else leader
            left.discard(name)
            await self._change(name, version)
            self._say(
                f"{what}: {name} is {version}, {len(self._acked)} acknowledged, longest gap {self.outcome.longest_gap_s:.2f} s"
            )
            if left and "old" in self._cluster.version.values():
                await self._finalize_is_refused()
            if self._draw.random() < _KILL_SHARE:
                await self._kill()

    async def _change(self, name: str, version: str) -> None:
        await self._until(lambda: self._may_stop(name), f"{name} may stop")
        code = await asyncio.to_thread(self._cluster.nodes[name].terminate)
        self._expect(code == 0, f"{name} ended with {code} when it was asked to stop")
        self._cluster.install(name, version)
        await self._start(name)
        self.outcome.changes += 1

    async def _start(self, name: str) -> None:
        node = self._cluster.nodes[name]
        node.start()
        await asyncio.to_thread(node.wait_ready, _STEP_S)
        await self._until(lambda: self._synced(name), f"{name} is synced")
        await self._acks(20)

    async def _kill(self) -> None:
        name = self._draw.choice(NODES)
        await asyncio.to_thread(self._cluster.nodes[name].kill)
        self.outcome.kills += 1
        self._say(f"  kill -9 {name} ({self._cluster.version[name]})")
        await self._start(name)

    async def _leader(self) -> str:
        with contextlib.suppress(LiftError):
            return (await self._client.admin.describe_cluster()).metadata_leader
        return ""

    async def _may_stop(self, name: str) -> bool:
        try:
            state = await self._client.admin.describe_cluster(linearizable=True)
        except LiftError:
            return False
        voters = {member.node_id: member.connected for member in state.controllers if not member.learner}
        return not reasons_to_keep_running(state.image, name, voters)

    async def _synced(self, name: str) -> bool:
        try:
            return bool((await self._client.admin.node_health(name)).get("health", {}).get("synced"))
        except LiftError:
            return False

    # ---- levels ----------------------------------------------------------------------------------------------------------------
    async def _finalize_is_refused(self) -> None:
        try:
            said = await self._client.admin.set_feature_level(NEWEST + 1)
            self.outcome.wrong.append(f"finalized with {self._cluster.version}: {said}")
        except LiftError as error:
            self.outcome.refusals.append(str(error))

    async def _is_at(self, level: int) -> bool:
        """Ask for the level; whether it holds."""
        try:
            await self._client.admin.set_feature_level(level)
            return (await self._client.admin.describe_cluster(linearizable=True)).image.feature_level == level
        except LiftError as error:
            self.outcome.refusals.append(str(error))
            return False

    async def _new_is_refused(self) -> None:
        """Below the first level that the new version speaks a new node ends and says what to do; the old ones go on."""
        level, name = SUPPORTED_LEVELS.least - 1, NODES[-1]
        await self._until(lambda: self._is_at(level), f"level {level}")
        await self._until(lambda: self._may_stop(name), f"{name} may stop")
        await asyncio.to_thread(self._cluster.nodes[name].terminate)
        self.outcome.new_ended_with, said = await self._ends(name, "new")
        self._say(f"the new version on {name} ended with {self.outcome.new_ended_with} at level {level}: {said}")
        self._expect(
            self.outcome.new_ended_with == 78, f"the new version ended with {self.outcome.new_ended_with} at level {level}"
        )
        self._expect("to finalize a newer level first" in said, f"the new version says at level {level}: {said}")
        self._cluster.install(name, "old")
        await self._start(name)
        await self._until(lambda: self._is_at(SUPPORTED_LEVELS.least), f"level {SUPPORTED_LEVELS.least}")

    async def _ends(self, name: str, version: str) -> tuple[int, str]:
        """Start the version on a node; with what it ends, and what it says then."""
        self._cluster.install(name, version)
        node = self._cluster.nodes[name]
        node.start()
        await self._until(lambda: asyncio.to_thread(lambda: not node.running), f"the {version} version ends")
        return await asyncio.to_thread(node.kill), " | ".join(list(node.log)[-8:])

    async def _old_is_refused(self) -> None:
        name = next(name for name in NODES if name != "")
        await self._until(lambda: self._may_stop(name), f"{name} may stop")
        await asyncio.to_thread(self._cluster.nodes[name].terminate)
        self.outcome.old_ended_with, said = await self._ends(name, "old")
        self._say(f"the old version on {name} ended with {self.outcome.old_ended_with}: {said}")
        self._expect(self.outcome.old_ended_with != 0, f"the old version ran at level {NEWEST}")
        self._cluster.install(name, "new")
        await self._start(name)
