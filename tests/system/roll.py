"""``python -m tests.system.roll [--rolls 3] [--overlay dev]``: the manifests' own pods, as processes here, rolled as Kubernetes does.

The command, the environment and the probes are those that ``kubectl kustomize`` makes of ``deploy/k8s``; of them only the addresses,
the folder and the NATS server are this machine's. A roll is what a StatefulSet's controller does: from the last ordinal to the first
SIGTERM, the wait for the end (killed after the grace period), a new process, and on once its readiness probe has been well for
``minReadySeconds``. Liveness is asked all the time, as often as the manifest says: a failure would be a restart, and is wrong here.

Acknowledged load runs on every partition meanwhile. Right is: nothing acknowledged is lost, and no partition was without an
acknowledgement for ``MAX_GAP_S``. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from liftpy.client import Client, connect
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.cluster import DevNode
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ROOT / "deploy" / "k8s" / "overlays"
STREAM, PARTITIONS = "rolled", 3
MAX_GAP_S = 0.5
_WARM_ACKS = 50
_PACE_S = 0.01
"""Between two publishes of a partition: gaps are looked for, not throughput."""
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Outcome:
    """What came of it; right if ``wrong`` is empty. ``gaps_s``: the longest between two acknowledgements of a partition, by roll."""

    acknowledged: int = 0
    lost: int = 0
    gaps_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pods:
    """Of a StatefulSet: what each pod is, and how it is rolled."""

    names: tuple[str, ...]
    args: tuple[str, ...]
    environment: dict[str, str]
    """Of all; ``$(POD_IP)`` is still to be put in."""
    probes: dict[str, dict[str, Any]]
    grace_s: float
    settled_s: float


def pods_of(overlay: str) -> Pods:
    """As ``kubectl`` builds them. Raises CalledProcessError, FileNotFoundError."""
    command = ["kubectl", "kustomize", str(OVERLAYS / overlay)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    documents = [document for document in yaml.safe_load_all(text) if document]
    (found,) = [document for document in documents if document["kind"] == "StatefulSet"]
    spec = found["spec"]["template"]["spec"]
    (node,) = [c for c in [*spec["containers"], *spec.get("initContainers", [])] if c["name"] == "liftpy"]
    wanted = node["envFrom"][0]["configMapRef"]["name"]
    (config,) = [one for one in documents if one["kind"] == "ConfigMap" and one["metadata"]["name"] == wanted]
    environment = {**config["data"], **{one["name"]: one["value"] for one in node["env"] if "value" in one}}
    return Pods(
        names=tuple(f"{found['metadata']['name']}-{ordinal}" for ordinal in range(3)),
        args=tuple(node["args"]),
        environment=environment,
        probes={kind: node[f"{kind}Probe"] for kind in ("readiness", "liveness")},
        grace_s=spec["terminationGracePeriodSeconds"],
        settled_s=found["spec"].get("minReadySeconds", 0),
    )


def probed(address: str, path: str, timeout_s: float) -> bool:
    """As kubelet does."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 400
    except OSError:
        return False
    finally:
        connection.close()


class Roll:
    """``settled_s``: in the place of the manifest's ``minReadySeconds``, None: as it says. ``max_gap_s``: between two acks."""

    def __init__(self, pods: Pods, nats_url: str, folder: Path, settled_s: float | None, max_gap_s: float = MAX_GAP_S) -> None:
        self._max_gap_s = max_gap_s
        self._pods = pods
        self._settled_s = pods.settled_s if settled_s is None else settled_s
        self._addresses: dict[str, str] = {}
        self._nodes: dict[str, DevNode] = {}
        self._acked: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._longest_s = 0.0
        self._stopped: set[str] = set()
        """Pods that are asked to end, or do not run yet: nobody asks whether they live."""
        self.outcome = Outcome()
        for number, name in enumerate(pods.names):
            own = {"LIFTPY_NODE_ID": name, "LIFTPY_NATS": nats_url, "LIFTPY_DATA": str(folder / name), "PYTHONPATH": str(ROOT)}
            address = f"127.0.0.{11 + number}"
            made = {key: value.replace("$(POD_IP)", address) for key, value in pods.environment.items()}
            made.pop("LIFTPY_CREDS_FILE", None)  # the server here lets everybody in
            self._addresses[name] = made["LIFTPY_PROBE_LISTEN"]
            command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", *pods.args, "--json"]
            self._nodes[name] = DevNode(name, command, {**child_environment(), **made, **own}, None)

    async def go(self, nats_url: str, rolls: int) -> Outcome:
        """Start all pods side by side, then roll."""
        self._stopped = set(self._pods.names)
        for node in self._nodes.values():
            node.start()
        alive: list[asyncio.Task[None]] = []
        try:
            for name in self._pods.names:
                await self._ready(name)
                alive.append(asyncio.create_task(self._watch(name)))
            async with await connect(nats_url) as client:
                await client.create_stream(STREAM, "data.rolled", partitions=PARTITIONS, replicas=3)
                load = [asyncio.create_task(self._publish(client, number)) for number in range(PARTITIONS)]
                try:
                    await self._until(lambda: all(len(acked) >= _WARM_ACKS for acked in self._acked), "the load runs")
                    for _ in range(rolls):
                        await self._roll()
                finally:
                    await end_tasks(load)
                await self._judge(client)
        finally:
            await end_tasks(alive)
            for node in self._nodes.values():
                await asyncio.to_thread(node.terminate)
        return self.outcome

    async def _roll(self) -> None:
        self._longest_s, began = 0.0, time.monotonic()
        for name in reversed(self._pods.names):
            node = self._nodes[name]
            self._stopped.add(name)
            code = await asyncio.to_thread(node.terminate, self._pods.grace_s)
            if code != 0:
                self.outcome.wrong.append(f"{name} ended with {code}")
            node.start()
            await self._ready(name)
            await asyncio.sleep(self._settled_s)
        before = [len(acked) for acked in self._acked]
        enough = lambda: all(len(acked) > count for acked, count in zip(self._acked, before, strict=True))  # noqa: E731
        await self._until(enough, "every partition acknowledges")
        self.outcome.took_s.append(time.monotonic() - began)
        self.outcome.gaps_s.append(self._longest_s)

    async def _ready(self, name: str) -> None:
        probe = self._pods.probes["readiness"]
        ask = partial(probed, self._addresses[name], probe["httpGet"]["path"], probe.get("timeoutSeconds", 1))
        end = time.monotonic() + _PATIENCE_S
        while not await asyncio.to_thread(ask):
            assert time.monotonic() < end, f"{name} does not get ready: {list(self._nodes[name].log)[-5:]}"
            assert self._nodes[name].running, f"{name} has ended: {list(self._nodes[name].log)[-5:]}"
            await asyncio.sleep(probe["periodSeconds"])
        self._stopped.discard(name)

    async def _watch(self, name: str) -> None:
        probe = self._pods.probes["liveness"]
        while True:
            await asyncio.sleep(probe["periodSeconds"])
            alive = await asyncio.to_thread(probed, self._addresses[name], probe["httpGet"]["path"], probe["timeoutSeconds"])
            if not alive and name not in self._stopped:
                self.outcome.wrong.append(f"{name} seemed dead")

    async def _publish(self, client: Client, partition: int) -> None:
        acked, last = self._acked[partition], time.monotonic()
        while True:
            value = b"%d" % len(acked)
            with contextlib.suppress(LiftError):
                await client.publish(STREAM, value, partition=partition)
                acked.append(value)
                now = time.monotonic()
                self._longest_s, last = max(self._longest_s, now - last), now
            await asyncio.sleep(_PACE_S)

    async def _until(self, holds: Any, what: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {_PATIENCE_S:g} s"
            await asyncio.sleep(0.02)

    async def _judge(self, client: Client) -> None:
        for partition, acked in enumerate(self._acked):
            found = {record.value async for record in client.consume(STREAM, partition, until="end")}
            self.outcome.lost += len(set(acked) - found)
            self.outcome.acknowledged += len(acked)
        if self.outcome.lost:
            self.outcome.wrong.append(f"{self.outcome.lost} acknowledged records are lost")
        if max(self.outcome.gaps_s) > self._max_gap_s:
            self.outcome.wrong.append(f"no acknowledgement for {max(self.outcome.gaps_s):.2f} s")


def roll(overlay: str, rolls: int, settled_s: float | None = None, max_gap_s: float = MAX_GAP_S) -> Outcome:
    """A cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="liftpy-roll-") as folder, NatsServer() as server:
        return asyncio.run(Roll(pods_of(overlay), server.url, Path(folder), settled_s, max_gap_s).go(server.url, rolls))


def main() -> int:
    """Parse, roll, judge."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m tests.system.roll", description=__doc__)
    parser.add_argument("--rolls", type=int, default=3)
    parser.add_argument("--overlay", default="dev", choices=sorted(path.name for path in OVERLAYS.iterdir()))
    given = parser.parse_args()
    outcome = roll(given.overlay, given.rolls)
    gaps, took = (", ".join(f"{value:.2f}" for value in values) for values in (outcome.gaps_s, outcome.took_s))
    print(
        f"{outcome.acknowledged} acknowledged, {outcome.lost} lost; longest gap of a partition's acks by roll: {gaps} s; took {took} s"
    )
    print("\n".join(outcome.wrong) or "nothing is wrong")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
