"""``python -m tests.system.groups --into [--rounds 30]``: members copy from stream to stream; they, leaders, coordinators are killed.

Three members of one group, each a process that runs ``group.into``, make a stream of three partitions from one of four, which grows all
the time. A round kills a member, which is replaced, or stops one for longer than its session and lets it go on; and, a moment before or
after, kills the node that leads a partition of the source or the target, or coordinates the group. Right is: the target holds what each
record of the source yields, once, in the order of its source partition.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from random import Random

from liftpy.client import Client, connect
from liftpy.core.groups.commands import partition_of as home_of
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

ROOT = Path(__file__).resolve().parents[3]
SOURCE, TARGET, GROUP = "work", "made", "makers"
SOURCES, TARGETS = 4, 3
MEMBERS = 3
SESSION_S = 3.0
BURST, EVERY_S = 20, 0.05
PATIENCE_S = 120.0
MEMBER_FAULTS = ("killed", "killed", "stopped")
NODE_FAULTS = ("leader of the target", "leader of the source", "coordinator", "")


def yields(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of none, one or two of each record, whose value is source partition and number."""
    number = int(value.partition(b".")[2])
    for each in range(number % 3):
        yield b"%d" % (number % 1009 + 5 * each), value + b".%d" % each


def difference(wanted: Sequence[bytes], held: Sequence[bytes]) -> str:
    """What is wrong with ``held``."""
    twice, missing, strange = len(held) - len(set(held)), len(set(wanted) - set(held)), len(set(held) - set(wanted))
    pairs = zip_longest(wanted, held, fillvalue=b"nothing")
    place, (right, found) = next((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1])
    again = len(wanted) - len(set(wanted))
    return (
        f"{len(held)} for {len(wanted)} ({again} of them twice in the source): {twice} twice, {missing} missing, {strange} of nowhere, "
        f"first {found!r} for {right!r} at {place}"
    )


class Copiers:
    """The cluster, what feeds the source, and the members' processes."""

    def __init__(self, rng: Random, log: Callable[[str, str], None] | None) -> None:
        self.rng = rng
        self.cluster = DevCluster(3, on_line=log)
        self.client: Client
        self.members: list[subprocess.Popen[str]] = []
        self.ended: list[int] = []
        """Exit codes of members that nobody had killed."""
        self._feeding: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start everything."""
        await asyncio.to_thread(self.cluster.start)
        self.client = await connect(self.cluster.nats_url)
        await self.client.create_stream(SOURCE, "data.work", partitions=SOURCES)
        await self.client.create_stream(TARGET, "data.made", partitions=TARGETS)
        self._feeding = asyncio.create_task(self._feed())
        self.members = [self._member() for _ in range(MEMBERS)]

    async def close(self) -> None:
        """End everything."""
        await self.stop_feeding()
        for member in self.members:
            member.kill()
            member.wait()
        if hasattr(self, "client"):
            await self.client.close()
        await asyncio.to_thread(self.cluster.stop)

    def _member(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.system.groups.copier",
            self.cluster.nats_url,
            GROUP,
            SOURCE,
            str(SESSION_S),
            TARGET,
        ]
        return subprocess.Popen(command, cwd=ROOT, text=True)

    async def _feed(self) -> None:
        number = 0
        while True:
            some = range(number, number + BURST)
            sent = (self.client.publish(SOURCE, b"%d.%d" % (n % SOURCES, n), partition=n % SOURCES, timeout_s=20) for n in some)
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(answer, BaseException) and not isinstance(answer, LiftError):
                    raise answer
            number += BURST
            await asyncio.sleep(EVERY_S)

    async def stop_feeding(self) -> None:
        """No more records."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)

    # ---- a round -----------------------------------------------------------------------------------------------------------
    async def strike(self, number: int) -> str:
        """What happens, in words; all is up again afterwards."""
        of_member = MEMBER_FAULTS[number % len(MEMBER_FAULTS)]
        of_node = NODE_FAULTS[number % len(NODE_FAULTS)]
        node = await self._node(of_node) if of_node else ""

        async def member() -> None:
            await asyncio.sleep(self.rng.random() * 0.4)
            await (self._kill_member() if of_member == "killed" else self._stop_member())

        async def kill_node() -> None:
            await asyncio.sleep(self.rng.random() * 0.4)
            if node:
                await asyncio.to_thread(self.cluster.nodes[node].kill)

        await asyncio.gather(member(), kill_node())
        if node:
            await asyncio.sleep(self.rng.random())
            self.cluster.nodes[node].start()
            await asyncio.to_thread(self.cluster.nodes[node].wait_ready, PATIENCE_S)
        return f"a member {of_member}" + (f", {of_node} killed ({node})" if node else "")

    async def _node(self, of_node: str) -> str:
        if of_node == "coordinator":
            stream, number = await self.client.stream(GROUPS_STREAM), -1
            number = home_of(GROUP, len(stream.partitions))
        else:
            stream = await self.client.stream(TARGET if of_node.endswith("target") else SOURCE)
            number = self.rng.randrange(len(stream.partitions))
        return stream.partitions[number].leader

    async def _kill_member(self) -> None:
        place = self.rng.randrange(MEMBERS)
        self.members[place].kill()
        await asyncio.to_thread(self.members[place].wait)
        self.members[place] = self._member()

    async def _stop_member(self) -> None:
        """For so long that others get its partitions; what it had in hand it sends when it goes on."""
        one = self.rng.choice(self.members)
        one.send_signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_S + 3.0)
        one.send_signal(signal.SIGCONT)

    # ---- what is waited for, and judged -----------------------------------------------------------------------------------
    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for it. A member that has ended by itself is a violation."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for member in self.members:
                if member.poll() is not None:
                    raise AssertionError(f"a member has ended with {member.returncode}")
            try:
                if await condition():
                    return
            except LiftError:
                pass
            await asyncio.sleep(0.1)
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")

    async def ends(self, stream: str, partitions: int) -> list[int]:
        """HW + 1 of each partition."""
        return [(await self.client.bounds(stream, number)).high_watermark + 1 for number in range(partitions)]

    async def grown(self, before: list[int]) -> None:
        """Each source partition is committed further than ``before``, and all replicas are in sync."""

        async def condition() -> bool:
            found = {key.partition: at for key, at in (await self.client.groups.describe(GROUP)).positions.items()}
            streams = [await self.client.stream(name) for name in (SOURCE, TARGET, GROUPS_STREAM)]
            whole = all(part.leader and len(part.isr) == 3 for stream in streams for part in stream.partitions)
            return whole and all(found.get(number, 0) > at for number, at in enumerate(before))

        await self.until(condition, f"all of {SOURCE} goes on behind {before}")

    async def _copied(self, ends: Sequence[int]) -> bool:
        found = {key.partition: at for key, at in (await self.client.groups.describe(GROUP)).positions.items()}
        return all(found.get(number, 0) >= end for number, end in enumerate(ends))

    async def judge(self) -> tuple[int, str]:
        """How many records the target is to hold, and what is wrong with it, '' for nothing; once all is copied."""
        while True:  # what was sent when the feeding was stopped may come yet
            ends = await self.ends(SOURCE, SOURCES)
            wanted: list[list[list[bytes]]] = [[[] for _ in range(SOURCES)] for _ in range(TARGETS)]
            for source in range(SOURCES):
                async for record in self.client.consume(SOURCE, source, until="end"):
                    for key, value in yields(record.value or b""):
                        wanted[partition_of(key, TARGETS)][source].append(value)
            await self.until(partial(self._copied, ends), "all is copied")
            if ends == await self.ends(SOURCE, SOURCES):
                break
        wrong = []
        for target in range(TARGETS):
            held: list[list[bytes]] = [[] for _ in range(SOURCES)]
            async for record in self.client.consume(TARGET, target, until="end"):
                value = record.value or b""
                held[int(value.partition(b".")[0])].append(value)
            for source, values in enumerate(held):
                if values != wanted[target][source]:
                    wrong.append(f"{TARGET}/{target} from {SOURCE}/{source}: {difference(wanted[target][source], values)}")
        return sum(len(values) for sources in wanted for values in sources), "; ".join(wrong)


async def run(rounds: int, seed: int, log: Path | None) -> int:
    """All rounds on one cluster; the exit code."""
    lines = log.open("a", encoding="utf-8") if log else None
    ground = Copiers(Random(seed), lambda node, line: print(node, line, file=lines, flush=True) if lines else None)
    began = time.monotonic()
    try:
        await ground.open()
        await ground.grown([0] * SOURCES)
        for number in range(rounds):
            said = await ground.strike(number)
            ends = await ground.ends(SOURCE, SOURCES)
            await ground.grown(ends)
            print(f"{number + 1:3} {said}: {ends}", flush=True)
        await ground.stop_feeding()
        count, wrong = await ground.judge()
    except AssertionError as violation:
        wrong, count = str(violation), 0
    finally:
        await ground.close()
    if wrong:
        print(f"VIOLATION with seed {seed}: {wrong}")
        return 1
    print(f"{rounds} rounds with seed {seed} in {time.monotonic() - began:.0f} s: {count} records, each once, in order")
    return 0
