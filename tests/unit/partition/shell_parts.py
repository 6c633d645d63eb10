"""What tests of the shell share: a partition key, and effects and events with every field filled."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.base.partition import Pause
from liftpy.core.replication import events
from liftpy.core.replication.effects import RejectReason
from liftpy.core.replication.events import RefusalReason
from sidecar.partition.executor import Tools
from sidecar.runtime.timers import Timer, Timers

KEY = PartitionKey("orders", "u1", 3)


def filled(kind: type[Any]) -> Any:
    """One of ``kind`` whose numbers and texts all differ."""
    number = iter(range(101, 200))

    def value(text: str) -> Any:
        for word, made in {
            "frozenset[str]": lambda: frozenset({f"n{next(number)}"}),
            "tuple[tuple[str, int]": lambda: ((f"n{next(number)}", next(number)),),
            "tuple[str": lambda: (f"n{next(number)}",), "AckPolicy": lambda: AckPolicy.LEADER,
            "RefusalReason": lambda: RefusalReason.DIVERGED, "Pause": lambda: Pause.UNTIL_PUBLISH,
            "RejectReason": lambda: RejectReason.BELOW_MIN_ISR, "Deadline": lambda: events.Deadline.LAG, "bool": lambda: True,
            "int": lambda: next(number), "str": lambda: f"n{next(number)}",
        }.items():  # fmt: skip
            if text.startswith(word):
                return made()
        raise AssertionError(text)

    return kind(**{field.name: value(str(field.type)) for field in dataclasses.fields(kind)})


class Clocked(Timers):
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[tuple[Timer, int]] = []

    def set(self, timer: Timer, at_ns: int) -> None:
        self.armed.append((timer, at_ns))

    def cancel(self, timer: Timer) -> None:
        self.armed = [entry for entry in self.armed if entry[0] is not timer]


def worker(**more: Any) -> Any:
    """What ``PartitionWorker``'s methods need of one."""
    told: list[Any] = []
    made = SimpleNamespace(
        key=KEY, told=told, feed=told.append, set_aside=("old",), leader="n1",
        _node=SimpleNamespace(counters=Counter(), instruments=Instruments(), settings=SimpleNamespace(node_id="n1"),
                              folder=SimpleNamespace(delete_partition=told.append),
                              promises=SimpleNamespace(forget=told.append)),
        flusher=SimpleNamespace(stalls=False, alone=lambda work: told.append("settled") or work()),
        executor=SimpleNamespace(storage_failed=False, log_failed=lambda error: told.append(error)),
    )  # fmt: skip
    made.__dict__.update(more)
    return made


PARTS = tuple(
    field.name
    for field in dataclasses.fields(Tools)
    if field.name not in {"key", "incarnation", "log", "counters", "feed", "high_watermark", "transfer_leadership", "leader"}
)
"""Names of what the executor hands effects to, beside the log."""
