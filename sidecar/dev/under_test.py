"""A real cluster for tests: ``DevCluster`` with faults that a test injects, each limited in time.

The pytest plugin ``liftpy.testing.plugin`` provides it as the fixture ``liftpy_cluster``. Every child process ends with
this process.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from liftpy.client import sync
from liftpy.errors import ConfigError
from sidecar.dev.cluster import DevCluster, DevNode, LineSink
from sidecar.dev.cluster_for_tests import WAIT_S, ClusterForTests


class ClusterUnderTest(ClusterForTests):
    """One nats-server and sidecars n1, n2... for tests, with faults.

    Use it as a context manager, or call ``start_all`` and ``stop``. Calls block. In an event loop, use ``await
    asyncio.to_thread(cluster.kill, "n1")``. ``settings``: environment settings of all nodes.
    """

    def __init__(self, nodes: int = 3, *, settings: Mapping[str, str] | None = None, on_line: LineSink | None = None) -> None:
        self._cluster = DevCluster(nodes, settings=settings, on_line=on_line)
        self._asking: sync.SyncClient | None = None

    @property
    def url(self) -> str:
        """NATS URL for clients."""
        return self._cluster.nats_url

    @property
    def namespace(self) -> str:
        """Namespace of the cluster."""
        return self._cluster.namespace

    @property
    def nodes(self) -> list[str]:
        """Ids of all nodes. They may be down."""
        return list(self._cluster.nodes)

    @property
    def running(self) -> list[str]:
        """Ids of the nodes whose process exists. They may be paused."""
        return [name for name, node in self._cluster.nodes.items() if node.running]

    @property
    def client(self) -> sync.SyncClient:
        """A synchronous client that the cluster uses for requests about its state. It exists until the cluster stops."""
        if self._asking is None:
            self._asking = sync.connect(self.url, self.namespace, name="liftpy-cluster-under-test")
        return self._asking

    def log(self, node: str) -> list[str]:
        """Return the last log lines of a node."""
        return list(self._node(node).log)

    def start_all(self) -> None:
        """Start all processes. Return when every node is registered.

        Raises UnavailableError, and ConfigError if there is no nats-server.
        """
        self._cluster.start(WAIT_S)

    def stop(self) -> None:
        """End all processes of the cluster. A second call has no effect."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()
        self._cluster.stop()

    def _node(self, node: str) -> DevNode:
        dev_node = self._cluster.nodes.get(node)
        if dev_node is None:
            raise self._unknown_node(node)
        return dev_node

    # ---- faults ------------------------------------------------------------------------------------------------------
    def kill(self, node: str) -> None:
        """End the process of a node, which may be paused, with SIGKILL."""
        self._node(node).kill()

    def start(self, node: str, timeout_s: float = WAIT_S) -> None:
        """Start a node that is down. Return when it is registered. Raises UnavailableError, and ConfigError if it is running."""
        dev_node = self._node(node)
        dev_node.start()
        dev_node.wait_ready(timeout_s)

    def pause(self, node: str) -> None:
        """Pause a node's processes (SIGSTOP). Its connections stay open."""
        self._must_run(node).send(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """Resume a paused node."""
        self._must_run(node).send(signal.SIGCONT)

    def _must_run(self, node: str) -> DevNode:
        dev_node = self._node(node)
        if not dev_node.running:
            raise ConfigError(f"Node {node} is not running. Start it first.")
        return dev_node

    def _leader_of(self, stream: str, partition: int) -> str:
        partitions = self.client.stream(stream).partitions
        if not 0 <= partition < len(partitions):
            raise ConfigError(
                f"Stream {stream} has no partition {partition}. It has {len(partitions)} partitions, numbered from 0."
            )
        return partitions[partition].leader

    def restart_nats(self) -> None:
        """Kill the nats-server and start it again on the same port. Return when it answers.

        Nodes and clients reconnect by themselves.
        """
        if self._cluster.nats is None:
            raise ConfigError("The cluster uses an external nats-server (nats=), so it cannot stop or start it.")
        self._cluster.nats.restart()

    def heal(self, timeout_s: float = WAIT_S) -> None:
        """Resume all paused nodes and start all stopped ones. Return when all nodes are live in the cluster.

        Raises UnavailableError after ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        down = [dev_node for dev_node in self._cluster.nodes.values() if not dev_node.running]
        for dev_node in self._cluster.nodes.values():
            if dev_node.running:
                dev_node.send(signal.SIGCONT)
        for dev_node in down:
            dev_node.start()
        for dev_node in down:
            dev_node.wait_ready(max(deadline - time.monotonic(), self.poll_s))

        def all_live() -> bool:
            return set(self.client.admin.describe_cluster().image.live_nodes()) >= set(self.nodes)

        self.wait_until(all_live, max(deadline - time.monotonic(), self.poll_s), "every node is live")

    def delete_streams(self, keep: set[str] | frozenset[str] = frozenset()) -> None:
        """Delete all streams except those in ``keep``."""

        def deleted() -> bool:
            for stream in self.client.admin.list_streams():
                if stream.name not in keep:
                    self.client.admin.delete_stream(stream.name, stream.uid)
            return True

        self.wait_until(deleted, what="streams are deleted")
