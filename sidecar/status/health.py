"""A node's health, as it is asked for: on the status port, over NATS, and by a supervisor.
``liftpy/core/observe/node_health.py`` says what it means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_health import Check, Signs, Synced, live, ready

ASKED = b'{"health": true}'
"""The payload of a question on ``<ns>.status.<node>``."""


class Health:
    """``signs`` is called for each look; ``replicas``: those here, without learners, and whether each is in sync;
    ``elsewhere``: why those in other processes of the node are not, '' where they are; ``unknown_streams``: directories here of
    streams that the cluster does not know, which make no node unhealthy."""

    def __init__(
        self,
        signs: Callable[[], Signs],
        replicas: Callable[[], Iterable[tuple[PartitionKey, bool]]],
        elsewhere: Callable[[], str] = lambda: "",
        unknown_streams: Callable[[], list[str]] = list,
    ) -> None:
        self._signs = signs
        self._replicas = replicas
        self._elsewhere = elsewhere
        self._unknown_streams = unknown_streams
        self._synced = Synced()

    def live(self) -> list[Check]:
        """Whether the process should go on."""
        return live(self._signs())

    def ready(self) -> list[Check]:
        """Whether it takes part in the cluster."""
        return ready(self._signs())

    def synced(self) -> list[Check]:
        """The same, and whether all that it holds has caught up since the start."""
        signs = self._signs()
        own = self._synced.look(self._replicas(), opened=signs.opened)
        return [*ready(signs), own if not own.ok else Check("synced", self._elsewhere())]

    def report(self) -> dict[str, Any]:
        """All of it, for machines."""
        found = {"live": self.live(), "ready": self.ready(), "synced": self.synced()[-1:]}
        says = {name: all(check.ok for check in checks) for name, checks in found.items()}
        says["synced"] = says["synced"] and says["ready"]
        checks = {check.name: check.why for rows in found.values() for check in rows}
        return {"health": says, "checks": checks, "unknown_streams": self._unknown_streams()}


class LastHeard:
    """When the metadata group was heard last."""

    def __init__(self) -> None:
        self._at: float | None = None

    def now(self) -> None:
        """It was."""
        self._at = time.monotonic()

    @property
    def age_s(self) -> float | None:
        """Since then; None: never."""
        return None if self._at is None else time.monotonic() - self._at
