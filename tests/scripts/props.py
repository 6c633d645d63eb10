"""What a stage is furnished with: a publisher that remembers every answer, and messages that are held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.replication import events as ev
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, LeaderNotice
from tests.simulation.replica.clients import SimPublisher
from tests.simulation.replica.clock import MS
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.messages import (
    Ack,
    AckFrame,
    FetchFrame,
    FetchResponse,
    Publish,
    QuietQuestion,
    ReadAnswer,
    ReadFrame,
)

KINDS: dict[type, str] = {
    Publish: "publish", AckFrame: "ack", FetchFrame: "fetch", FetchResponse: "data", FetchRefusal: "refusal",
    EpochQuery: "epoch query", EpochAnswer: "epoch answer", LeaderNotice: "notice", ev.NotificationReceived: "wake",
    ReadFrame: "read", ReadAnswer: "read answer", QuietQuestion: "quiet question", frozenset: "quiet answer",
}  # fmt: skip
"""What ``hold`` calls a message of the data path. On the metadata path it is the request's field name in ``ControlRequest``
(``changeIsr``, ``reportLeader``, ``registerNode``...), or that with " answer" behind it, or ``heartbeat``, ``heartbeat answer``,
``image``."""


class Sent:
    """One publish, and what its publisher knows of it."""

    def __init__(self, number: int, ids: tuple[int, ...]) -> None:
        self.number = number
        self.ids = ids
        """Of its messages; the checkers and ``Stage.ids`` know them by these."""
        self.ack: Ack | None = None
        self.timed_out = False

    @property
    def acked(self) -> bool:
        """A positive ack came."""
        return self.ack is not None and not self.ack.reason

    @property
    def outcome(self) -> str:
        """'acked', the reason of a negative ack, 'no responders', 'timed out', or 'waiting'."""
        if self.ack is not None:
            return self.ack.reason or "acked"
        return "timed out" if self.timed_out else "waiting"


class Author(SimPublisher):
    """A publisher that speaks when the script says so, and remembers every answer."""

    plain_every = 0

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name, MS, cluster.key)
        self.stopped = True
        self.sent: dict[int, Sent] = {}

    def send(self, policy: AckPolicy = AckPolicy.ALL, records: int = 1) -> Sent:
        """Publish ``records`` messages as one batch."""
        first = len(self.cluster.publishes) + 1
        number = self.publish(policy, records)
        self.sent[number] = Sent(number, tuple(range(first, first + records)))
        return self.sent[number]

    def _done(self, number: int, ack: Ack | None) -> None:
        super()._done(number, ack)
        self.sent[number].ack, self.sent[number].timed_out = ack, ack is None


@dataclass
class Held:
    """Messages that a script keeps from their receivers (``Stage.hold``); in order."""

    kinds: frozenset[str]
    sender: str
    receiver: str
    at_most: int | None
    """How many are kept; None: all."""
    open: bool = True
    """Whether more are kept."""
    kept: list[Callable[[], None]] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    """The data path's messages; on the metadata path the names of what was kept."""

    @property
    def count(self) -> int:
        """How many were kept so far."""
        return len(self.messages)

    def takes(self, kind: str, sender: str, receiver: str) -> bool:
        """Whether this message is to be kept."""
        full = self.at_most is not None and self.count >= self.at_most
        return (
            self.open and not full and kind in self.kinds
            and self.sender in ("", sender) and self.receiver in ("", receiver)
        )  # fmt: skip

    def release(self) -> None:
        """Let everything in now, and keep nothing more. What was for a process that is gone is lost."""
        self.open = False
        kept, self.kept = self.kept, []
        for arrive in kept:
            arrive()

    def drop(self) -> None:
        """Lose what was kept, and keep nothing more."""
        self.open = False
        self.kept.clear()
