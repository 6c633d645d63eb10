"""The cluster, the members' processes and what they have said: what is struck, and where it is found that all is well."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from liftpy.client import Client, connect
from liftpy.client.group_admin import GroupDescription
from liftpy.core.groups.commands import partition_of
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.groups import judge

ROOT = Path(__file__).resolve().parents[3]
STREAM, GROUP = "work", "crew"
PARTITIONS = 6
SESSION_S = 6.0
EVERY_S = 0.02
"""Between two records, of all partitions."""
PATIENCE_S = 90.0


class ViolationError(AssertionError):
    """What must hold does not."""


class Member:
    """One process. ``lines``: what it has said so far."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.resumed_ns: list[int] = []
        command = [sys.executable, "-m", "tests.system.groups.process", url, GROUP, STREAM, str(SESSION_S)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # one that was killed may have said half of its last word
                self.lines.append(json.loads(line))

    def join(self) -> None:
        """What a new process waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("join\n")
        self.process.stdin.flush()

    def said(self, do: str, since_ns: int = 0) -> list[dict[str, Any]]:
        """Lines of that kind, from a monotonic time on."""
        return [line for line in list(self.lines) if line["do"] == do and line["t"] >= since_ns]

    def send(self, number: signal.Signals) -> None:
        """A signal; the moment of SIGCONT is kept."""
        if number is signal.SIGCONT:
            self.resumed_ns.append(time.monotonic_ns())
        self.process.send_signal(number)


class Ground:
    """``open``, then strike and ``settle``, then ``close``. ``rebalanced_s``: one figure for each member that came or left."""

    def __init__(self, rng: Random, url_log: Callable[[str, str], None] | None = None) -> None:
        self.rng = rng
        self.cluster = DevCluster(3, on_line=url_log)
        self.client: Client
        self.members: dict[str, Member] = {}
        self.live: list[str] = []
        self.looked: list[dict[int, int]] = []
        self.rebalanced_s: list[float] = []
        self.stayed_late_s: list[float] = []
        self.taken_over_s: list[float] = []
        self.coordinator_away_s: list[float] = []
        self._feeding: asyncio.Task[None] | None = None

    async def open(self, members: int = 2) -> None:
        """Nodes, the stream, records that keep coming, the first members."""
        await asyncio.to_thread(self.cluster.start)
        self.client = await connect(self.cluster.nats_url)
        await self.client.create_stream(STREAM, "data.work", partitions=PARTITIONS)
        self._feeding = asyncio.create_task(self._feed())
        for _ in range(members):
            self.members[await self.start()].join()
        await self.settle()

    async def close(self) -> None:
        """End everything."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        if hasattr(self, "client"):
            await self.client.close()
        await asyncio.to_thread(self.cluster.stop)

    async def _feed(self) -> None:
        number = 0
        while True:
            try:
                await self.client.publish(STREAM, b"%d" % number, partition=number % PARTITIONS, timeout_s=10)
            except LiftError:  # stored or not: the log says what there is
                continue
            number += 1
            await asyncio.sleep(EVERY_S)

    # ---- members -----------------------------------------------------------------------------------------------------------
    async def start(self) -> str:
        """One more, which is ready to join; its name."""
        name = f"m{len(self.members) + 1}"
        member = self.members[name] = Member(name, self.cluster.nats_url)
        self.live.append(name)

        async def ready() -> bool:
            return bool(member.said("ready"))

        await self.until(ready, f"{name} is ready")
        return name

    def generations(self) -> dict[int, tuple[str, int]]:
        """Partition -> (member, generation) of the part that was given last."""
        newest: dict[int, tuple[int, str, int]] = {}
        for name, member in self.members.items():
            for line in member.said("given"):
                newest[line["partition"]] = max(
                    newest.get(line["partition"], (0, "", 0)), (line["t"], name, line["generation"])
                )
        return {partition: (name, generation) for partition, (_, name, generation) in newest.items()}

    # ---- what is asked of the cluster ----------------------------------------------------------------------------------------
    async def described(self) -> GroupDescription:
        """The group, and its positions among those looked at."""
        found = await self.client.groups.describe(GROUP)
        self.looked.append({key.partition: at for key, at in found.positions.items()})
        return found

    async def coordinator(self) -> str:
        """The node whose coordinator has the group."""
        stream = await self.client.stream(GROUPS_STREAM)
        return stream.partitions[partition_of(GROUP, len(stream.partitions))].leader

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> float:
        """Wait for it; return how long that took, in s."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            try:
                if await condition():
                    return time.monotonic() - began
            except LiftError:
                pass
            for name in self.live:
                if self.members[name].process.poll() not in (None, 0):
                    raise ViolationError(f"{name} has ended with {self.members[name].process.poll()}")
            await asyncio.sleep(0.05)
        raise ViolationError(f"not within {timeout_s:g} s: {what}")

    async def settle(self, *, feeding: bool = True) -> None:
        """All partitions are shared by the live members alone, evenly, and all that was there is given and committed; while records
        come, each owner has been given some, so that what ``generations`` shows is of now."""

        async def shared() -> bool:
            found = await self.described()
            owned = [len(member.owned) for member in found.members]
            return (
                found.summary.settled
                and len(found.members) == len(self.live)
                and sum(owned) == PARTITIONS
                and max(owned) - min(owned) <= 1
            )

        await self.until(shared, f"{len(self.live)} members share {PARTITIONS} partitions")
        ends = [await self.client.bounds(STREAM, number) for number in range(PARTITIONS)]

        async def read() -> bool:
            positions = {key.partition: at for key, at in (await self.described()).positions.items()}
            return all(positions.get(number, 0) >= bounds.high_watermark + 1 for number, bounds in enumerate(ends))

        shared_ns = time.monotonic_ns()
        await self.until(read, "all records are given and committed")

        async def given() -> bool:
            lines = [line for member in self.members.values() for line in member.said("given", shared_ns)]
            return not feeding or len({line["partition"] for line in lines}) == PARTITIONS

        await self.until(given, "each partition goes on")

    async def stop_feeding(self) -> None:
        """No more records; all that there are are given and committed."""
        assert self._feeding is not None
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        await self.settle(feeding=False)

    # ---- what is judged ------------------------------------------------------------------------------------------------------
    def moved_s(self, since_ns: int) -> float:
        """From then to the last partition that somebody got, in s."""
        times = [line["t"] for name in self.members for line in self.members[name].said("gained", since_ns)]
        return (max(times) - since_ns) / 1e9 if times else 0.0

    def late_s(self, since_ns: int, partitions: Iterable[int]) -> float:
        """How late a record of them was given at most, from then on, in s."""
        chosen = frozenset(partitions)
        lines = [line for member in self.members.values() for line in member.said("given", since_ns)]
        return max((line["late_s"] for line in lines if line["partition"] in chosen), default=0.0)

    async def judge(self, *, at_the_end: bool = False) -> int:
        """Raise ViolationError for what members or the coordinator did wrong; return how many records there are. All of them are given
        only ``at_the_end``."""
        ends = {number: (await self.client.bounds(STREAM, number)).high_watermark + 1 for number in range(PARTITIONS)}
        lines = {name: list(member.lines) for name, member in self.members.items()}
        given, committed = judge.read(lines, {name: member.resumed_ns for name, member in self.members.items()})
        found = judge.wrong(given, committed, ends if at_the_end else dict.fromkeys(ends, 0)) + judge.fallen(self.looked)
        if found:
            raise ViolationError("; ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else ""))
        return sum(ends.values())
