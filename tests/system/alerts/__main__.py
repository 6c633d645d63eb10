"""Kill, fill, slow down and cut off a node while a real Prometheus scrapes the cluster, and judge which alerts fire: see the package.

The shipped rules are taken as they are, but for their times, which are divided by ``--faster``: what waits for five minutes waits for
15 s by default. Needs Prometheus on the PATH (Debian's package ``prometheus``); the full disk is a small file system of its own in
memory, which takes root: without it that fault is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from liftpy.client import connect, sync
from liftpy.config import StreamConfig
from liftpy.errors import AlreadyExistsError, LiftError, UnavailableError
from sidecar.dev.cluster import DevCluster, DevNode
from sidecar.dev.nats_server import NatsServer, free_ports
from tests.examples.processes import start_service
from tests.system.alerts.service import POISON, SKEW
from tests.system.faults.relay import Relay
from tests.system.powercut.cut import ALL, FLUSH_SLOW, PowerCut, Rule

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {"LIFTPY_REPLICATION_SESSION_S": "3", "LIFTPY_LOG_LEVEL": "error"}
STRUCK = "n2"
SERVED = "n1"
"""Node next to which the service runs."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DISK_BYTES = 256 * 1024 * 1024
_LARGE_BYTES = 4 * 1024 * 1024 * 1024
"""Size of the file system of the other nodes. The disk of this machine may be nearly full."""
_SLOW_MS = 300
_CHECK_INTERVAL_S = 0.5
_PATIENCE_S = 120.0
_PUBLISH_EVERY_S = 0.01
NAMES = {
    "kill": ({"NodeDown", "UnderReplicated"}, {"FailoverSlow"}),
    "slow disk": ({"FlushSlow"}, {"AckSlow", "UnderReplicated", "IsrFlapping"}),
    "cut": ({"NatsLost", "UnderReplicated"}, {"BusFlapping", "NodeFenced"}),
    "disk full": ({"DiskFull"}, {"DiskFilling", "UnderReplicated"}),
    "too few nodes": ({"StreamWaits"}, set()),
    "group without a commit": ({"GroupStuck"}, set()),
    "service killed": ({"ServiceEnded"}, set()),
    "service blocked": ({"ServiceFailing"}, set()),
    "service differs": ({"ServiceDiverged"}, set()),
    "service diverged": ({"ServiceDiverged", "ServiceEnded"}, set()),
    "damaged segment": ({"DamagedSegments"}, {"NodeDown", "UnderReplicated"}),
    "data directory lost": ({"DataDirectoryLost"}, {"NodeDown", "UnderReplicated"}),
    "majority lost": (
        {"NoMetadataLeader", "NodeDown"},
        {"UnderReplicated", "UnderMinIsr", "AckSlow", "AckVerySlow", "FailoverSlow"},
    ),
}
"""Fault -> what has to fire; what may, because it is that fault's too."""


def faster(text: str, times: float) -> str:
    """Rules whose times are so many times shorter, whole seconds and at least one."""

    def shorter(found: re.Match[str]) -> str:
        seconds = max(1, round(int(found[2]) * _SECONDS[found[3]] / times)) if int(found[2]) else 0
        return f"{found[1]}{seconds}s"

    text = text.replace("group_lag_seconds:max[10m]) > 540", f"group_lag_seconds:max[10m]) > {540 / times:g}")
    text = text.replace("uptime_seconds < 600", f"uptime_seconds < {600 / times:g}")
    return re.sub(r"(\[|for: |interval: )(\d+)([smhd])\b", shorter, text)


class ServiceFaults:
    """Replicated services next to nodes that stay well."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, node: str = SERVED, skew: int = 0) -> None:
        """Start the service if it does not run, and wait until it applies records. ``skew``: what makes its state differ."""
        if node in self._processes and self._processes[node].poll() is None:
            return
        (self._folder / f"{node}.log").unlink(missing_ok=True)
        self._processes[node] = start_service(
            "tests.system.alerts.service:Sum", stream="commands", node=node, data=self._folder, output="",
            snapshot_interval_records=10, nats_url=self._url, environment={SKEW: str(skew)}, more=["--dead-letter-stream", "dead"],
        )  # fmt: skip
        self.publish(b"1")
        deadline = time.monotonic() + _PATIENCE_S
        while "leader_epoch=" not in (self._folder / f"{node}.log").read_text() and time.monotonic() < deadline:
            time.sleep(_CHECK_INTERVAL_S)

    def publish(self, value: bytes) -> None:
        """Publish one command."""
        with sync.connect(self._url) as client:
            client.publish("commands", value)

    def diverge(self, *nodes: str) -> None:
        """Start an instance next to each node, the last one with another state, and publish until they have stored two snapshots."""
        for node in nodes:
            self.begin(node, skew=int(node == nodes[-1]))
        with sync.connect(self._url) as client:
            for _ in range(25):
                client.publish("commands", b"1")

    def kill(self) -> None:
        """End the process without a goodbye."""
        self._processes[SERVED].kill()
        self._processes[SERVED].wait(30)

    def stop(self) -> None:
        """Stop the services as an operator does."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        self._processes.clear()

    def again(self) -> None:
        """Start the services and stop them, so that the nodes forget their ends."""
        nodes = list(self._processes)
        self.stop()
        for node in nodes:  # an instance that has diverged must not offer its snapshots
            shutil.rmtree(self._folder / node, ignore_errors=True)
            self.begin(node)
        self.stop()


def leave_group(url: str) -> None:
    """Have a group commit a position and leave. The records that come later are its lag."""

    async def work() -> None:
        async with connect(url) as client, client.group("stuck", ["s"]) as members:
            await anext(members)
            await members.commit()

    asyncio.run(work())


def delete_group(url: str) -> None:
    """Delete the group."""

    async def work() -> None:
        async with connect(url) as client:
            await client.groups.delete("stuck")

    asyncio.run(work())


def is_well(node: DevNode) -> bool:
    """Whether a node is live, ready and synced."""
    try:
        for path in ("/livez", "/readyz", "/readyz?synced"):
            urllib.request.urlopen(node.status_url + path, timeout=2.0).close()
    except (OSError, ValueError):  # without an address it is not up yet
        return False
    return True


@contextlib.contextmanager
def load(url: str) -> Iterator[None]:
    """Publish to stream s until the block ends, also while nodes fail."""
    done = threading.Event()

    def publish() -> None:
        while not done.is_set():
            with contextlib.suppress(LiftError), sync.connect(url) as client:
                while not done.wait(_PUBLISH_EVERY_S):
                    with contextlib.suppress(LiftError):
                        client.publish("s", b"x" * 200, timeout_s=1.0)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10)


class Prometheus:
    """Scrapes the nodes of a cluster each second."""

    def __init__(self, folder: Path, times: float) -> None:
        self._folder = folder
        self._targets = folder / "targets.json"
        self._addresses: dict[str, str] = {}
        self.port = free_ports(1)[0]
        for name in ("rules.yml", "alerts.yml"):
            (folder / name).write_text(faster((ROOT / "deploy" / "prometheus" / name).read_text(), times))
        job = {"job_name": "liftpy", "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}]}
        whole = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yml"), str(folder / "alerts.yml")],
            "scrape_configs": [job],
        }
        (folder / "prometheus.yml").write_text(json.dumps(whole))
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self, cluster: DevCluster) -> None:
        """Scrape the nodes where they listen now, or listened last."""
        self._addresses |= {
            name: node.status_url.removeprefix("http://").rstrip("/") for name, node in cluster.nodes.items() if node.status_url
        }
        found = [{"targets": [address], "labels": {"instance": name}} for name, address in self._addresses.items()]
        fresh = self._targets.with_suffix(".tmp")
        fresh.write_text(json.dumps(found))
        fresh.replace(self._targets)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends."""
        command = [
            "prometheus", f"--config.file={self._folder / 'prometheus.yml'}", f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error",
        ]  # fmt: skip
        self._process = subprocess.Popen(command)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=30)

    def firing(self) -> set[str]:
        """Names of the alerts that fire now; empty while it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/alerts", timeout=5) as answer:
                alerts: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


class Rounds:
    """``wrong``: what did not go as it must, for people."""

    def __init__(self, cluster: DevCluster, prometheus: Prometheus, only: Container[str] = NAMES) -> None:
        self._cluster = cluster
        self._only = only
        self._prometheus = prometheus
        self.wrong: list[str] = []

    def quiet(self, what: str) -> None:
        """Wait until all nodes are well and nothing fires."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while not all(map(is_well, self._cluster.nodes.values())) or self._prometheus.firing():
            if time.monotonic() > give_up_at:
                self.wrong.append(f"{what}: not quiet again, {sorted(self._prometheus.firing())} fire")
                return
            time.sleep(_CHECK_INTERVAL_S)

    def strike(self, fault: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """Have it happen until all that has to fire does; then put it right."""
        if fault not in self._only:
            return
        must, may = NAMES[fault]
        seen: dict[str, float] = {}
        began = time.monotonic()
        begin()
        while not must <= seen.keys() and time.monotonic() - began < _PATIENCE_S:
            self._prometheus.follow(self._cluster)  # a node that has restarted listens on another port
            for name in self._prometheus.firing() - seen.keys():
                seen[name] = time.monotonic() - began
            time.sleep(_CHECK_INTERVAL_S)
        end()
        self._prometheus.follow(self._cluster)
        self.quiet(fault)
        missing, others = must - seen.keys(), seen.keys() - must - may
        self.wrong += [f"{fault}: {name} did not fire" for name in sorted(missing)]
        self.wrong += [f"{fault}: {name} fired" for name in sorted(others)]
        told = ", ".join(f"{name} after {after:.0f} s" for name, after in seen.items())
        print(f"{fault}: {told or 'nothing fired'}", flush=True)


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int = DISK_BYTES) -> Iterator[bool]:
    """A file system of its own at ``folder``. The value is False if it could not be made."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    made = not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def damage(cluster: DevCluster, url: str, node: str) -> None:
    """Flip a bit of an old segment of stream d, and have the node read it."""
    with sync.connect(url) as client:
        with contextlib.suppress(AlreadyExistsError):
            client.create_stream("d", "dd", replicas=3, config=StreamConfig(segment_bytes=4096, dedup_window_s=0))
        for number in range(40):
            client.publish("d", b"%d" % number + b"x" * 500)
    cluster.nodes[node].kill()
    path = min((cluster.data / node).glob("**/streams/d-*/0/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    start(cluster, node)

    def has_found_it() -> bool:
        return any((cluster.data / node).glob("**/streams/d-*/0/*.damaged-*"))

    with sync.connect(url) as client:
        while client.stream("d").partitions[0].leader != node and not has_found_it():
            with contextlib.suppress(LiftError):
                client.admin.elect_leader("d", 0, node)
            time.sleep(_CHECK_INTERVAL_S)

    async def read() -> None:
        async with connect(url) as client:
            async for _ in client.read_range("d", 0, 0, 40):
                pass

    if not has_found_it():
        with contextlib.suppress(LiftError, TimeoutError):
            asyncio.run(asyncio.wait_for(read(), 10.0))


def lose_directory(cluster: DevCluster, node: str) -> None:
    """Kill a node, and start it with an empty data directory."""
    cluster.nodes[node].kill()
    for path in (cluster.data / node).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    start(cluster, node)


def start(cluster: DevCluster, *names: str) -> None:
    """Start nodes, and wait until they are ready."""
    for name in names:
        cluster.nodes[name].start()
    for name in names:
        cluster.nodes[name].wait_ready()


@contextlib.contextmanager
def relay_to(port: int) -> Iterator[tuple[Relay, asyncio.AbstractEventLoop]]:
    """On a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = Relay(port)
    asyncio.run_coroutine_threadsafe(relay.start(), loop).result(10)
    try:
        yield relay, loop
    finally:
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def _strike_applications(rounds: Rounds, url: str, folder: Path) -> None:
    """Strike streams, groups and services."""

    def wait_for_nodes() -> None:
        with contextlib.suppress(UnavailableError), sync.connect(url) as client:  # the stream waits
            client.create_stream("wide", "wide", replicas=5)

    def forget_stream() -> None:
        with sync.connect(url) as client:
            client.admin.delete_stream("wide")

    rounds.strike("too few nodes", wait_for_nodes, forget_stream)
    rounds.strike("group without a commit", lambda: leave_group(url), lambda: delete_group(url))
    (folder / "services").mkdir()
    services = ServiceFaults(folder / "services", url)
    with sync.connect(url) as client:
        client.create_stream("commands", "commands", replicas=4)
        client.create_stream(
            "dead", "dead", replicas=3, config=StreamConfig(read_only=True)
        )  # blocks a service at a bad record
    services.begin()
    rounds.strike("service killed", services.kill, services.again)
    rounds.strike("service differs", lambda: services.diverge(SERVED, "n4"), services.again)
    rounds.strike("service diverged", lambda: services.diverge(SERVED, "n3", "n4"), services.again)
    services.begin()
    rounds.strike("service blocked", lambda: services.publish(POISON), services.stop)


def run(times: float, only: Container[str] = NAMES) -> list[str]:
    """Run the faults, and return what went wrong."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="liftpy-alerts-")))
        stack.enter_context(small_disk(folder, _LARGE_BYTES))
        (folder / "prometheus").mkdir()
        server = stack.enter_context(NatsServer())
        relay, loop = stack.enter_context(relay_to(int(server.url.rpartition(":")[2])))
        has_disk = stack.enter_context(small_disk(folder / "data" / STRUCK))
        power = PowerCut(folder / "data", folder / "shadow")
        cluster = stack.enter_context(
            DevCluster(
                4,
                data=folder / "data",
                nats_url=server.url,
                settings={**SETTINGS, **power.environment},
                node_nats_urls={STRUCK: relay.url},
            )
        )
        with sync.connect(server.url) as client:
            client.create_stream("s", "ev", replicas=3)
            leader = client.stream("s").partitions[0].leader
            if leader == STRUCK:
                client.admin.elect_leader("s", 0, next(n for n in client.stream("s").partitions[0].isr if n != STRUCK))
        prometheus = Prometheus(folder / "prometheus", times)
        prometheus.follow(cluster)
        stack.enter_context(prometheus.running())
        stack.enter_context(load(server.url))
        rounds = Rounds(cluster, prometheus, only)
        rounds.quiet("at the start")
        node, ballast = cluster.nodes[STRUCK], folder / "data" / STRUCK / "ballast"

        def do(work: Any) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(10)

        def fill() -> None:
            free = shutil.disk_usage(ballast.parent).free
            with ballast.open("wb") as file:
                for _ in range(max(0, free - DISK_BYTES // 50) // 65_536):
                    file.write(bytes(65_536))

        rounds.strike("kill", node.kill, lambda: start(cluster, STRUCK))
        slow = Rule(FLUSH_SLOW, f"{STRUCK}/streams/*.log", ALL, value=_SLOW_MS)
        rounds.strike("slow disk", lambda: power.fail(slow), power.heal)
        rounds.strike("cut", lambda: do(relay.cut(silent=False)), lambda: do(relay.heal()))
        rounds.strike("damaged segment", lambda: damage(cluster, server.url, STRUCK), lambda: None)
        rounds.strike("data directory lost", lambda: lose_directory(cluster, STRUCK), lambda: None)
        majority = [STRUCK, "n3"]
        rounds.strike(
            "majority lost", lambda: [cluster.nodes[one].kill() for one in majority], lambda: start(cluster, *majority)
        )
        _strike_applications(rounds, server.url, folder)
        if has_disk:
            rounds.strike("disk full", fill, ballast.unlink)
        else:
            print("disk full: left out, no file system of its own can be made here")
        return rounds.wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faster", type=float, default=20.0, help="by what the rules' times are divided")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"faults to run: {', '.join(NAMES)}. Default: all")
    options = parser.parse_args()
    if unknown := set(options.faults) - NAMES.keys():
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    if shutil.which("prometheus") is None:
        print("there is no prometheus on the PATH: Debian's package prometheus has it")
        return 2
    wrong = run(options.faster, options.faults or NAMES)
    print("\n".join(wrong) or "right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
