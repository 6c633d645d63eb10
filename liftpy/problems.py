"""What is wrong with a partition, in a word, and how urgent that is: lists of partitions begin with the worst. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from liftpy.config import StreamConfig
from liftpy.partition import PartitionState, PartitionStatus, Pause

PROBLEMS = ("damaged", "offline", "electing", "under min.isr", "under-replicated", "moving", "paused", "")
"""Most urgent first; the last one: nothing is wrong."""
FINE = len(PROBLEMS) - 1
MOST_ROWS = 500
"""In one answer, and on one page."""
Place = tuple[int, str, int]
"""(urgency, stream, partition): by these lists are in order."""
FIRST: Place = (-1, "", -1)
"""Before all others."""


def urgency(state: PartitionState | None, config: StreamConfig, *, failed: bool = False) -> int:
    """Index in ``PROBLEMS``. ``failed``: the log here can't be used; ``state`` None: nothing else is known of it."""
    if failed:
        return 0
    if state is None:
        return FINE
    if state.status is not PartitionStatus.ONLINE:
        return 1 if state.status is PartitionStatus.OFFLINE else 2
    members = len(state.isr)
    if members < state.min_isr(config):
        return 3
    if members < len(state.replicas):
        return 4
    if state.target or state.joining:
        return 5
    return FINE if state.pause is Pause.NOT_PAUSED else 6


def why_offline(stream: str, partition: int, status: str, isr: Iterable[str], incomplete: Container[str]) -> str:
    """Return why a partition waits for an operator, and for what command; '': it does not.

    Its last in-sync replicas came back without all that they had acknowledged [C10].
    """
    lacking = [node for node in isr if node in incomplete]
    if status != PartitionStatus.OFFLINE.name or not lacking:
        return ""
    return (
        f"{stream}/{partition} waits for an operator: {', '.join(lacking)} may have lost acknowledged records. "
        f"If they can't be put back: liftpy partition elect {stream} {partition} --node {lacking[0]} --unclean"
    )


def partitions_question(stream: str = "", after: Place = FIRST, limit: int = MOST_ROWS) -> dict[str, Any]:
    """What a node is asked for its partitions, or those of ``stream``, behind ``after``."""
    return {"partitions": {"stream": stream, "after": list(after), "limit": limit}}


def streams_question(after: tuple[int, str] = (-1, ""), limit: int = MOST_ROWS) -> dict[str, Any]:
    """What a node is asked for the cluster's streams behind ``after``, an (urgency, name)."""
    return {"streams": {"after": list(after), "limit": limit}}


def place_of(said: object) -> Place:
    """As it is asked for; raises ValueError."""
    match said:
        case [int(rank), str(stream), int(partition)] if -1 <= rank <= FINE and -1 <= partition < 1 << 31:
            return rank, stream, partition
    raise ValueError("after: [urgency, stream, partition]")


def limit_of(said: object) -> int:
    """How many are asked for; raises ValueError."""
    if type(said) is int and 1 <= said <= MOST_ROWS:
        return said
    raise ValueError(f"limit: 1 to {MOST_ROWS}")
