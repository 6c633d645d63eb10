"""Run a cluster of the liftpy of this interpreter until a line comes from standard input.

The other version runs this file as a script, so it uses only what all versions have. It prints one line of JSON when the stream
``bench`` is ready.
"""

import asyncio
import json
import sys

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster


async def main() -> None:
    """Start three nodes, create the stream, print the port and the process ids, and wait."""
    with DevCluster(3) as cluster:
        assert cluster.nats is not None
        async with await connect(cluster.nats_url) as client:
            await client.create_stream("bench", "bench")
        nodes = {name: node.pid for name, node in cluster.nodes.items()}
        print("ready " + json.dumps({"port": cluster.nats.port, "nodes": nodes, "nats_server": cluster.nats.pid}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
