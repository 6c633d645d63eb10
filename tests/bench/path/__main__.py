"""Show what one record costs on its way through the cluster: ``python -m tests.bench.path [--size BYTES] [--windows W,W]``.

Each window has a table with a line for the publisher, the NATS server, the leader and both followers: system calls, CPU, bytes
that CRCs cover, and bytes written to the disk, all per record. The line below says how busy CPU and disk were, and which of them
limits the rate. The last line is the rate of the disk alone, with the same writes and flushes of three logs. System calls and
CRCs are counted in runs of their own, because counting is slow. It needs strace. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from liftpy.client import connect
from liftpy.config import StreamConfig
from sidecar.bench.cases import all_cpu_s
from sidecar.dev.cluster import DevCluster

_STREAM = "bench"
_KINDS = {
    "receive": {"recvfrom", "recvmsg", "read"},
    "send": {"sendto", "sendmsg", "write", "writev"},
    "disk": {"pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "pread64", "preadv", "sync_file_range", "fallocate"},
    "wait": {"epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "futex", "nanosleep"},
}
_COUNT_CRCS = """
import atexit, os, crc32c
_total, _real = [0], crc32c.crc32c
def _counting(data, *more):
    _total[0] += memoryview(data).nbytes
    return _real(data, *more)
crc32c.crc32c = _counting
atexit.register(lambda: open(os.path.join({folder!r}, f"{{os.getpid()}}.crc"), "w").write(str(_total[0])))
"""


def _publisher(port: int, seconds: float, size_bytes: int, window: int) -> subprocess.Popen[str]:
    words = ["-m", "sidecar.bench.load", "publish", str(port), _STREAM, str(seconds), str(size_bytes), str(window)]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)


def _publish(port: int, seconds: float, size_bytes: int, window: int) -> dict[str, float]:
    run = _publisher(port, seconds, size_bytes, window)
    found: dict[str, float] = json.loads(run.communicate()[0].splitlines()[-1])
    return found


def _written_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split("\nwrite_bytes: ")[1].split()[0])


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^liftpy_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


class Cluster:
    """Three nodes with one stream, and the roles of their processes."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        assert cluster.nats is not None
        self.port, nats_pid = cluster.nats.port, cluster.nats.pid
        leader = asyncio.run(self._create())
        others = [name for name in cluster.nodes if name != leader]
        self.pids = {"NATS server": [nats_pid], "leader": [cluster.nodes[leader].pid]}
        self.pids["two followers"] = [cluster.nodes[name].pid for name in others]
        self.leader_url = cluster.nodes[leader].status_url
        self.urls = [node.status_url for node in cluster.nodes.values()]

    async def _create(self) -> str:
        async with await connect(self.cluster.nats_url) as client:
            await client.create_stream(_STREAM, _STREAM, config=StreamConfig(), replicas=3)
            await client.publish(_STREAM, b"first")
            return (await client.stream(_STREAM)).partitions[0].leader


@contextlib.contextmanager
def _cluster(settings: Mapping[str, str]) -> Iterator[Cluster]:
    with DevCluster(3, settings=settings) as cluster:
        yield Cluster(cluster)


def _count_calls(made: Cluster, seconds: float, size_bytes: int, window: int) -> tuple[dict[str, Counter[str]], int]:
    """Return the number of system calls of each role by kind, and the number of acknowledged records."""
    publisher = _publisher(made.port, seconds + 2, size_bytes, window)
    time.sleep(1.0)
    pids = {"publisher": [publisher.pid], **made.pids}
    tracers = {
        role: subprocess.Popen(
            ["strace", "-f", "-c", *(word for pid in of for word in ("-p", str(pid)))], stderr=subprocess.PIPE, text=True
        )
        for role, of in pids.items()
    }
    acked = json.loads(publisher.communicate()[0].splitlines()[-1])["acked"]
    found: dict[str, Counter[str]] = {}
    for role, tracer in tracers.items():
        tracer.send_signal(signal.SIGINT)
        found[role] = Counter()
        for line in tracer.communicate()[1].splitlines():
            parts = line.split()
            if len(parts) >= 5 and parts[3].isdigit() and parts[-1] != "total":
                kind = next((kind for kind, names in _KINDS.items() if parts[-1] in names), "other")
                found[role][kind] += int(parts[3])
    return found, acked


def _count_crcs(size_bytes: int, window: int, seconds: float) -> tuple[dict[str, float], int]:
    """Return the bytes that CRCs covered in each role, and the number of acknowledged records."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_COUNT_CRCS.format(folder=folder))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            with _cluster({}) as made:
                acked = int(_publish(made.port, seconds, size_bytes, window)["acked"])
                pids = made.pids
        finally:
            os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
        totals = {int(path.stem): int(path.read_text()) for path in Path(folder).glob("*.crc")}
    return {role: sum(totals.get(pid, 0) for pid in of) for role, of in pids.items()}, acked


_DISK = """
import os, sys, time
path, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
data, done, end = os.urandom(size), 0, time.monotonic() + seconds
file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
while time.monotonic() < end:
    os.write(file, data); os.fdatasync(file); done += 1
print(done)
"""


def disk_alone(batch_bytes: int, seconds: float) -> float:
    """Return how many batches per second three processes write and flush, each to a log of its own: the slowest one."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", _DISK, f"{folder}/{number}", str(batch_bytes), str(seconds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(3)
        ]
        return min(int(run.communicate()[0]) for run in runs) / seconds


def measure(size_bytes: int, window: int, seconds: float) -> list[str]:
    """Return the lines for one window, in Markdown."""
    with _cluster({}) as made:
        _publish(made.port, seconds / 2, size_bytes, window)
        pids = [pid for of in made.pids.values() for pid in of]
        cpu = {pid: all_cpu_s([pid]) for pid in pids}
        written = {pid: _written_bytes(pid) for pid in pids}
        flushes = [(_metric(url, "log_flushes_total"), _metric(url, "log_flush_duration_seconds_sum")) for url in made.urls]
        began = time.monotonic()
        run = _publish(made.port, seconds, size_bytes, window)
        took_s, acked = time.monotonic() - began, int(run["acked"])
        after = [(_metric(url, "log_flushes_total"), _metric(url, "log_flush_duration_seconds_sum")) for url in made.urls]
        cpu_us = {role: sum(all_cpu_s([pid]) - cpu[pid] for pid in of) / acked * 1e6 for role, of in made.pids.items()}
        disk = {role: sum(_written_bytes(pid) - written[pid] for pid in of) / acked for role, of in made.pids.items()}
        cpu_us["publisher"] = run.get("cpu_s", 0.0) / acked * 1e6
        calls, counted = _count_calls(made, seconds, size_bytes, window)
    crcs, with_crcs = _count_crcs(size_bytes, window, seconds)
    rate = acked / run["took_s"]
    count = min(now[0] - before[0] for now, before in zip(after, flushes, strict=True))
    flush_share = max(now[1] - before[1] for now, before in zip(after, flushes, strict=True)) / took_s
    cpu_share = sum(cpu_us.values()) * rate / 1e6 / (os.cpu_count() or 1)
    batch = acked / max(count, 1)
    alone = disk_alone(round(batch * (size_bytes + 40)), min(seconds, 2.0))
    bound = "CPU" if cpu_share > 0.85 else "disk" if flush_share > 0.85 else "waiting"
    lines = [
        f"{size_bytes} bytes, {window} in flight: {rate:,.0f}/s",
        "",
        "| process | CPU, us | receive | send | disk | wait | other | CRC, bytes | to the disk, bytes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for role in ("publisher", *made.pids):
        kinds = " | ".join(f"{calls[role][kind] / max(counted, 1):.3f}" for kind in (*_KINDS, "other"))
        crc = crcs.get(role, 0) / with_crcs
        lines.append(f"| {role} | {cpu_us[role]:.1f} | {kinds} | {crc:,.0f} | {disk.get(role, 0):,.0f} |")
    lines += [
        "",
        f"CPU {cpu_share:.0%} of all cores, flushes {flush_share:.0%} of the time of the busiest log, {batch:.0f} records per flush: "
        f"the bound is {bound}. The disk alone: {alone * batch:,.0f} records/s.",
    ]
    return lines


def main() -> None:
    """Parse the options, and print a table for each window."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.path", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a record (default: %(default)s)")
    parser.add_argument("--windows", default="1,64,4000", help="messages in flight (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run (default: %(default)s)")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("This command needs strace. Install it with the package manager of the system.")
    for window in options.windows.split(","):
        print("\n".join(measure(options.size, int(window), options.seconds)) + "\n", flush=True)


if __name__ == "__main__":
    main()
