"""Load a machine and say what became of the cluster on it: see the package."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from liftpy.client import Client, connect
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

STREAM, PARTITIONS, PUBLISHERS = "loaded", 6, 4
MAX_ACK_GAP_S = 3.0
"""Of one publisher."""
_CHECK_INTERVAL_S = 0.5
_PAUSE_S = 0.02
"""Between two messages of a publisher."""
_READY_S = 60.0


@dataclass
class Outcome:
    """What a loaded machine has led to."""

    seconds: float = 0.0
    busy_loops: int = 0
    waited: float = 0.0
    """Share of the time in which a node could have run and had no core, of the one that waited most; 0.0: the system does not say."""
    acked: int = 0
    failed: list[str] = field(default_factory=list)
    longest_ack_gap_s: float = 0.0
    leaderships: set[tuple[int, str, int]] = field(default_factory=set)
    """(partition, leader, LeaderEpoch) that were seen."""
    isr_sizes: set[int] = field(default_factory=set)
    terms: set[int] = field(default_factory=set)
    incarnations: set[int] = field(default_factory=set)

    def wrong(self) -> list[str]:
        """What must not be, for people; empty: all is well."""
        checks = {
            f"{len(self.leaderships) - PARTITIONS} depositions: {sorted(self.leaderships)}": len(self.leaderships)
            != PARTITIONS,
            f"ISR sizes: {sorted(self.isr_sizes)}": self.isr_sizes != {3},
            f"the metadata group elected: terms {sorted(self.terms)}": len(self.terms) != 1,
            f"nodes have begun anew: {sorted(self.incarnations)}": len(self.incarnations) != 3,
            f"publishes failed: {self.failed[:3]}": self.failed,
            f"a publisher waited {self.longest_ack_gap_s} s for an acknowledgement": self.longest_ack_gap_s > MAX_ACK_GAP_S,
            "nothing was acknowledged": not self.acked,
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def text(self) -> str:
        """As JSON."""
        return json.dumps({k: sorted(v) if isinstance(v, set) else v for k, v in asdict(self).items()})


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute for nothing; they end with the block, or with this process."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def run(cluster: DevCluster, seconds: float, loops: int) -> Outcome:
    """A new stream of ``cluster``, publishers, busy loops; then what was seen meanwhile."""
    out = Outcome(busy_loops=loops)
    async with await connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, STREAM, partitions=PARTITIONS)
        await _until_whole(client, cluster)
        with busy_loops(loops):
            began, waited = time.monotonic(), _waited_s(cluster)
            until = began + seconds
            await asyncio.gather(
                _watch(client, cluster, out, until), *(_publish(client, out, until) for _ in range(PUBLISHERS))
            )
            out.seconds = round(time.monotonic() - began, 1)
            after = _waited_s(cluster)
            out.waited = round(max(after[name] - waited[name] for name in after) / out.seconds, 2)
    return out


async def _publish(client: Client, out: Outcome, until: float) -> None:
    last = time.monotonic()
    while time.monotonic() < until:
        try:
            await client.publish(STREAM, b"v" * 100, timeout_s=30.0)
        except LiftError as error:
            out.failed.append(str(error))
        else:
            out.acked += 1
        now = time.monotonic()
        out.longest_ack_gap_s = max(out.longest_ack_gap_s, round(now - last, 2))
        last = now
        await asyncio.sleep(_PAUSE_S)


async def _watch(client: Client, cluster: DevCluster, out: Outcome, until: float) -> None:
    """What the metadata group says, which has seen every change: LeaderEpochs grow with each leadership."""
    while time.monotonic() < until:
        with contextlib.suppress(LiftError):
            for partition in (await client.stream(STREAM)).partitions:
                out.leaderships.add((partition.partition, partition.leader, partition.leader_epoch))
                out.isr_sizes.add(len(partition.isr))
            found = await client.admin.describe_cluster()
            out.terms |= {controller.term for controller in found.controllers}
            out.incarnations |= {node.incarnation for node in found.image.nodes.values()}
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _until_whole(client: Client, cluster: DevCluster) -> None:
    deadline = time.monotonic() + _READY_S
    while not all(p.leader and len(p.isr) == len(cluster.nodes) for p in (await client.stream(STREAM)).partitions):
        assert time.monotonic() < deadline, "the stream is not led and followed by all"
        await asyncio.sleep(0.1)


def _waited_s(cluster: DevCluster) -> dict[str, float]:
    return {name: waited_s(node.pid) for name, node in cluster.nodes.items()}


def waited_s(pid: int) -> float:
    """How long a process has waited for a core since it began; 0.0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    """Parse, load, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--times", type=float, default=4.0, help="busy loops for each core")
    parser.add_argument("--verbose", action="store_true", help="print what the nodes log")
    given = parser.parse_args()
    show = (lambda node, line: print(f"{node} | {line}")) if given.verbose else None
    with DevCluster(3, on_line=show) as cluster:
        out = asyncio.run(run(cluster, given.minutes * 60, round(given.times * (os.cpu_count() or 1))))
    print(out.text())
    wrong = out.wrong()
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
