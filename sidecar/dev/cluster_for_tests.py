"""``ClusterForTests``: what tests do with a cluster, whose nodes are processes or run in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeVar

from liftpy.client.arguments import check_wait
from liftpy.errors import ConfigError, LiftError, UnavailableError

_T = TypeVar("_T")
WAIT_S = 60.0
"""Default time limit of every wait, in seconds."""


class ClusterForTests(ABC):
    """A cluster of nodes n1, n2... with faults that a test injects. Use it with ``with``."""

    poll_s = 0.05
    """Interval of the checks of ``wait_until``, in seconds."""

    @abstractmethod
    def start_all(self) -> None:
        """Start all nodes. ``with`` calls it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all nodes. A second call does nothing."""

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    @abstractmethod
    def nodes(self) -> list[str]:
        """Ids of all nodes, also of stopped ones."""

    @property
    @abstractmethod
    def running(self) -> list[str]:
        """Ids of the running nodes."""

    def _unknown_node(self, node: str) -> ConfigError:
        known = ", ".join(self.nodes) or "none, the cluster is not running"
        return ConfigError(f"Node {node!r} does not exist in this cluster. Nodes: {known}.")

    @abstractmethod
    def kill(self, node: str) -> None:
        """Kill a node. Its data stays for the next start.

        Args:
            node: Id of the node.
        """

    @abstractmethod
    def _leader_of(self, stream: str, partition: int) -> str:
        """Return the leader of a partition, '' for none. Raises ConfigError if there is no such partition."""

    def leader(self, stream: str, partition: int = 0, *, other_than: str = "", timeout_s: float = WAIT_S) -> str:
        """Wait until a running node leads a partition and return its id.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
            other_than: Wait for another leader than this node. Default '': any.
            timeout_s: Time to wait, in seconds.

        Raises:
            UnavailableError: No leader in time.
            ConfigError: No such stream or partition.
        """

        def running_leader() -> str:
            leader = self._leader_of(stream, partition)
            return leader if leader != other_than and leader in self.running else ""

        return self.wait_until(running_leader, timeout_s, f"{stream}/{partition} is led")

    def kill_leader(self, stream: str, partition: int = 0) -> str:
        """Kill the leader of a partition and return its id. ``leader(..., other_than=ID)`` waits for the next leader.

        Args:
            stream: Name of the stream.
            partition: Number of the partition. Default 0.
        """
        node = self.leader(stream, partition)
        self.kill(node)
        return node

    def wait_until(self, condition: Callable[[], _T], timeout_s: float = WAIT_S, what: str = "the condition") -> _T:
        """Call ``condition`` until it returns a true value, and return that value.

        Errors of liftpy, except ConfigError, count as false.

        Args:
            condition: The function.
            timeout_s: Time to wait, in seconds. At or below 0: call ``condition`` once. Default 60.
            what: Name of the condition in the error text. Default ``the condition``.

        Raises:
            UnavailableError: The condition was not true in time.

        Example:
            cluster.wait_until(lambda: len(cluster.running) == 3)
        """
        check_wait("timeout_s", timeout_s)
        deadline = time.monotonic() + timeout_s
        last: object = None
        while True:
            try:
                result = condition()
                if result:
                    return result
                last = result
            except ConfigError:
                raise
            except LiftError as error:
                last = error
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"{what}: the condition was not true within {timeout_s:g} s. Last value: {last!r}. Running nodes: "
                    f"{self.running}. Check the node logs, or increase timeout_s."
                )
            time.sleep(self.poll_s)
