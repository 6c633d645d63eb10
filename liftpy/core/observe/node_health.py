"""Health checks of a node: *live* (keep running), *ready* (serves) and *synced* (has caught up). Pure.

*Live*: this process works. The check ignores everything outside of the process (NATS, other nodes, disk space, its role),
so that a supervisor never restarts a node because of others. *Ready*: the node takes part in the cluster, and has opened
its replicas. *Synced*: each replica of the node was in the ISR at least once since the start. A rolling restart waits for
this. It stays true, because a replica that lags later is no reason to stop an application.

Each check has a name, and a text that says why it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from liftpy.core.base.ids import PartitionKey


class Check(NamedTuple):
    """Result of one check. ``why``: reason of the failure, '' if the check passed."""

    name: str
    why: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthInput:
    """State of a node at one moment, as input of the checks."""

    failure: str = ""
    """Reason why the process stops unexpectedly. '': it does not stop."""
    longest_flush_s: float = 0.0
    """Time that the oldest running flush has taken so far, in seconds."""
    hung_flush_s: float = 30.0
    """Time after which a flush is considered hung, in seconds."""
    registered: bool = False
    nats: bool = False
    metadata_silence_s: float | None = None
    """Time since the last answer of the metadata group, in seconds. None: it has never answered."""
    session_s: float = 0.0
    """Time without heartbeats after which a node is fenced, in seconds."""
    opening: int = 0
    """Number of replicas on this node that are opening, or wait to be opened."""
    opened: bool = False
    """True if all partitions of the image at the start are open, or reported as failed."""
    stopped_for_space: int = 0
    """Number of replicas that are stopped because the disk is full."""


def live(state: HealthInput) -> list[Check]:
    """Check by the ``state`` of the node whether this process should keep running. Return the results."""
    hung = state.longest_flush_s >= state.hung_flush_s
    return [
        Check("tasks", state.failure),
        Check("flush", f"a flush has not ended for {state.longest_flush_s:.0f} s" if hung else ""),
    ]


def ready(state: HealthInput) -> list[Check]:
    """Check by the ``state`` of the node whether the node takes part in the cluster. Return the results."""
    silence_s = state.metadata_silence_s
    late = silence_s is None or silence_s > state.session_s
    silence = "it has never been heard" if silence_s is None else f"nothing heard for {silence_s:.1f} s"
    opening = f"{state.opening} are being opened" if state.opening else "they are not opened yet"
    return [
        Check("registered", "" if state.registered else "not registered with the metadata group yet"),
        Check("nats", "" if state.nats else "not connected"),
        Check("metadata", silence if late else ""),
        Check("partitions", "" if state.opened else opening),
        Check("space", f"a full disk has stopped {state.stopped_for_space}" if state.stopped_for_space else ""),
    ]


class ReplicaSyncCheck:
    """Check that every replica of this node has been in its ISR at least once since the start.

    After the check passes, it never fails again.
    """

    def __init__(self) -> None:
        self.done = False
        self._were: set[PartitionKey] = set()

    def update(self, replicas: Iterable[tuple[PartitionKey, bool]], *, opened: bool) -> Check:
        """Return the result of the check with the current state of the replicas.

        ``replicas``: (partition, is in sync) of each replica, without learners. ``opened``: True if these are all replicas
        of the node.
        """
        if self.done:
            return Check("synced")
        missing, count = [], 0
        for key, in_sync in replicas:
            count += 1
            if in_sync:
                self._were.add(key)
            elif key not in self._were:
                missing.append(key)
        if not opened:
            return Check("synced", "not all partitions are opened yet")
        if missing:
            return Check("synced", f"{len(missing)} of {count} have not caught up yet, {min(missing)} among them")
        self.done = True
        self._were.clear()
        return Check("synced")


def text_lines(checks: Iterable[Check]) -> str:
    """Return a text with one line for each check: its name, and why it fails."""
    return "".join(f"[{'+' if check.ok else '-'}] {check.name}{': ' + check.why if check.why else ''}\n" for check in checks)
