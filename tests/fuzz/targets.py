"""Subjects for each row of the table of permissions, and the match of patterns."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from liftpy.core.wire.permissions import USES
from liftpy.core.wire.subjects import Subjects, data_subject

PRINCIPAL = "mallory"


@dataclass(frozen=True, slots=True)
class Place:
    """What the subjects are filled in with."""

    subjects: Subjects
    nodes: tuple[str, ...]
    stream: str
    data: str
    partitions: int


def targets(place: Place) -> dict[str, tuple[str, ...]]:
    """Builder of the table's row -> the subjects that it builds here. ``inbox`` without what follows the node's name."""
    found = {}
    for use in USES:
        if use.built_by:
            found[use.built_by] = tuple(dict.fromkeys(_built(use.built_by, place)))
    return found


def _built(name: str, place: Place) -> list[str]:
    if name == data_subject.__name__:
        return [data_subject(place.data, number) for number in range(place.partitions)]
    build = getattr(place.subjects, name)
    values: dict[str, tuple[str | int, ...]] = {
        "stream": (place.stream,),
        "partition": tuple(range(place.partitions)),
        "node_id": place.nodes,
        "service": ("bank",),
        "kind": ("elected", "no-such-kind"),
        "to": place.nodes,
        "sender": place.nodes,
    }
    ways: list[list[str | int]] = [[]]
    for parameter in inspect.signature(build).parameters:
        ways = [[*way, value] for way in ways for value in values[parameter]]
    found = [build(*way) for way in ways]
    return [*found, f"{found[0]}.{PRINCIPAL}"] if name == "control_admin" else found


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to ``pattern`` hears ``subject``."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for number, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > number
        if number >= len(tokens) or token not in ("*", tokens[number]):
            return False
    return len(tokens) == len(wanted)
