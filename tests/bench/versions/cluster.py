"""Run a cluster of the liftpy of this interpreter until a line comes from standard input: ``cluster.py FLUSH_MS DELAY_MS RELAY``.

A flush takes at least FLUSH_MS milliseconds. With DELAY_MS, the script RELAY (``sidecar/bench/delay_relay.py``) delays each direction
between the NATS server and its clients. 0 stands for the disk and the loopback as they are.

The other version runs this file as a script, so it uses only what all versions have. It prints one line of JSON when the stream
``bench`` is ready.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster

try:
    from sidecar.dev.nats_server import NatsServer
except ImportError:  # 6ef61ecd has it in another module
    from sidecar.dev.embedded import NatsServer  # type: ignore[import-untyped,import-not-found,no-redef,unused-ignore]

SLOW_DISK = Path(__file__).with_name("slow_disk")


async def create_stream(url: str) -> None:
    """Create the stream ``bench`` with three replicas."""
    async with await connect(url) as client:
        await client.create_stream("bench", "bench")


def main(flush_ms: float, delay_ms: float, relay: str) -> None:
    """Start three nodes, create the stream, print the port and the process ids, and wait."""
    settings = {"PYTHONPATH": str(SLOW_DISK), "BENCH_FLUSH_MS": str(flush_ms)} if flush_ms else {}
    with NatsServer() as server:
        words = [sys.executable, relay, str(delay_ms), "0", str(server.port)]
        relaying = subprocess.Popen(words, stdout=subprocess.PIPE, text=True) if delay_ms else None
        try:
            port = server.port
            if relaying is not None:
                assert relaying.stdout is not None
                (port,) = json.loads(relaying.stdout.readline())
            url = f"nats://127.0.0.1:{port}"
            with DevCluster(3, nats_url=url, settings=settings) as cluster:
                asyncio.run(create_stream(url))
                nodes = {name: node.pid for name, node in cluster.nodes.items()}
                print("ready " + json.dumps({"port": port, "nodes": nodes, "nats_server": server.pid}), flush=True)
                sys.stdin.readline()
        finally:
            if relaying is not None:
                relaying.kill()
                relaying.communicate()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
