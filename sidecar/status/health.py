"""Health of a node for the status port, NATS and a supervisor. ``liftpy/core/observe/node_health.py`` has the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_health import Check, HealthInput, ReplicaSyncCheck, live, ready

ASKED = b'{"health": true}'
"""Payload of a health question on ``<ns>.status.<node>``."""


class Health:
    """Runs the health checks of a node.

    Args:
        signs: Returns the current state for the checks.
        replicas: Returns the replicas without learners, and whether each is in sync.
        elsewhere: Returns the reason why replicas in other processes of the node are not in sync. '': they are.
        unknown_streams: Returns the directories of streams that the cluster does not know. They do not make a node
            unhealthy.
    """

    def __init__(
        self,
        signs: Callable[[], HealthInput],
        replicas: Callable[[], Iterable[tuple[PartitionKey, bool]]],
        elsewhere: Callable[[], str] = lambda: "",
        unknown_streams: Callable[[], list[str]] = list,
    ) -> None:
        self._signs = signs
        self._replicas = replicas
        self._elsewhere = elsewhere
        self._unknown_streams = unknown_streams
        self._synced = ReplicaSyncCheck()

    def live(self) -> list[Check]:
        """Run the checks whether this process should keep running, and return their results."""
        return live(self._signs())

    def ready(self) -> list[Check]:
        """Run the checks whether the node takes part in the cluster, and return their results."""
        return ready(self._signs())

    def ready_checks(self) -> list[Check]:
        """Run the ready checks, and the check whether all replicas were in sync at least once since the start. Return their results."""
        signs = self._signs()
        own = self._synced.update(self._replicas(), opened=signs.opened)
        return [*ready(signs), own if not own.ok else Check("synced", self._elsewhere())]

    def report(self) -> dict[str, Any]:
        results = {"live": self.live(), "ready": self.ready(), "synced": self.ready_checks()[-1:]}
        says = {name: all(check.ok for check in checks) for name, checks in results.items()}
        says["synced"] = says["synced"] and says["ready"]
        checks = {check.name: check.why for rows in results.values() for check in rows}
        return {"health": says, "checks": checks, "unknown_streams": self._unknown_streams()}


class MetadataContact:
    """Time of the last contact of this node with the metadata group."""

    def __init__(self) -> None:
        self._at: float | None = None

    def now(self) -> None:
        self._at = time.monotonic()

    @property
    def age_s(self) -> float | None:
        return None if self._at is None else time.monotonic() - self._at
