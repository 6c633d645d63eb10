"""``python -m tests.bench.dashboards``: three nodes under load, a Prometheus (Debian's ``prometheus``) that scrapes them, and every
expression of ``deploy/grafana`` asked there. Prints those without data; exit code 1 where more have none than are expected to.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import free_ports

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
WITHOUT_TROUBLE = ("liftpy_publish_rejected_total", "liftpy_nats_errors_total", "liftpy_failover_duration_seconds")
"""Have no data, or NaN, as long as nothing goes wrong."""
LOAD_S = 30.0


async def load(cluster: DevCluster) -> None:
    """Publishes, reads, in a group too, and has the metadata group decide, for a while."""
    async with connect(cluster.nats_url, cluster.namespace) as client:
        await client.create_stream("orders", "shop.orders", partitions=3, replicas=3)
        ends = time.monotonic() + LOAD_S

        async def publish(partition: int) -> None:
            while time.monotonic() < ends:
                await client.publish("orders", b"x" * 100, partition=partition)
                await asyncio.sleep(0.005)

        async def read() -> None:
            async for _ in client.consume("orders", 0, start="earliest"):
                if time.monotonic() > ends:
                    return

        async def read_together() -> None:
            async with client.group("billing", ["orders"]) as group:
                async for _ in group.batches():
                    await group.commit()

        async def change() -> None:
            while time.monotonic() < ends:
                [found] = [one for one in (await client.stream("orders")).partitions if one.partition == 0]
                await client.admin.elect_leader("orders", 0, next(node for node in found.isr if node != found.leader))
                await asyncio.sleep(3.0)

        reading = [asyncio.ensure_future(read()), asyncio.ensure_future(read_together())]
        await asyncio.gather(*map(publish, range(3)), change())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def ask(port: int, text: str) -> list[Any]:
    """What Prometheus has for it, NaN left out."""
    query = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return [one for one in found if one["value"][1] != "NaN"]


def until_up(port: int, timeout_s: float = 30.0) -> None:
    """Until it has scraped all three nodes."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if len(ask(port, "up == 1")) == 3:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("Prometheus does not scrape the nodes")


def main() -> int:
    """All of it."""
    program = shutil.which("prometheus")
    if program is None:
        print("left out: no prometheus on the PATH (Debian's package prometheus has it)")
        return 2
    empty: list[str] = []
    asked = 0
    settings = {"LIFTPY_METRICS_STREAMS": "orders"}
    with tempfile.TemporaryDirectory(prefix="liftpy-prometheus-") as folder, DevCluster(3, settings=settings) as cluster:
        targets = [node.status_url.removeprefix("http://") for node in cluster.nodes.values()]
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "liftpy", "static_configs": [{"targets": targets}]}],
        }
        (Path(folder) / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        [port] = free_ports(1)
        words = [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with subprocess.Popen([program, *words, "--log.level=error"]) as running:
            try:
                until_up(port)
                asyncio.run(load(cluster))
                for path in sorted(FOLDER.glob("*.json")):
                    for panel in json.loads(path.read_text())["panels"]:
                        for target in panel["targets"]:
                            text = (
                                target["expr"]
                                .replace("$__rate_interval", "20s")
                                .replace("$node", ".*")
                                .replace("$stream", ".+")
                            )
                            asked += 1
                            if not ask(port, text):
                                empty.append(f"{path.stem}: {panel['title']}: {text}")
            finally:
                running.terminate()
    unexpected = [line for line in empty if not any(name in line for name in WITHOUT_TROUBLE)]
    print(f"{asked} expressions, {asked - len(empty)} with data; without: {len(empty)}, of which unexpected: {len(unexpected)}")
    print("\n".join(empty))
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
