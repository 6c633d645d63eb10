"""What members said, judged [G1-G5]: who was given what, when, and what was confirmed to them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """A part: offsets ``first`` to ``last``, both inclusive; ``at_ns``: monotonic. ``excused``: the process had just been stopped,
    between its look at the clock and this line."""

    at_ns: int
    member: str
    partition: int
    generation: int
    first: int
    last: int
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was confirmed: all below ``position``."""

    at_ns: int
    member: str
    partition: int
    position: int


def read(
    lines: Mapping[str, Iterable[dict[str, Any]]], resumed_ns: Mapping[str, Sequence[int]]
) -> tuple[list[Given], list[Committed]]:
    """What the members (name -> lines) said; ``resumed_ns``: when they were let go on. The first line after that may come late."""
    given: list[Given] = []
    committed: list[Committed] = []
    for member, said in lines.items():
        pending = sorted(resumed_ns.get(member, ()))
        for line in said:
            late = bool(pending) and line["t"] >= pending[0]
            if late:
                pending.pop(0)
            if line["do"] == "given":
                where = (line["partition"], line["generation"], line["first"], line["last"])
                given.append(Given(line["t"], member, *where, excused=late))
            elif line["do"] == "commits":
                committed += [Committed(line["t"], member, int(p), at) for p, at in line["positions"].items()]
    return sorted(given, key=lambda one: one.at_ns), sorted(committed, key=lambda one: one.at_ns)


def wrong(given: Sequence[Given], committed: Sequence[Committed], ends: Mapping[int, int]) -> list[str]:
    """What was not right; ``ends``: partition -> offset behind its last record, all of which must have been given to somebody."""
    found: list[str] = []
    for partition, end in sorted(ends.items()):
        parts = [one for one in given if one.partition == partition]
        commits = [one for one in committed if one.partition == partition]
        found += [f"partition {partition}: {text}" for text in _wrong(parts, commits, end)]
    return found


def _wrong(parts: Sequence[Given], commits: Sequence[Committed], end: int) -> list[str]:
    found: list[str] = []
    owners: dict[int, str] = {}
    after: dict[int, int] = {}
    newest, seen_end, confirmed, at_commit = 0, 0, 0, 0
    for part in parts:
        while at_commit < len(commits) and commits[at_commit].at_ns < part.at_ns:
            position = commits[at_commit].position
            confirmed, at_commit = max(confirmed, position), at_commit + 1
        who = f"{part.member} of generation {part.generation} is given {part.first}..{part.last}"
        if owners.setdefault(part.generation, part.member) != part.member:
            found.append(f"{who}: that generation was {owners[part.generation]}'s [G1]")
        if part.generation < newest and not part.excused:
            found.append(f"{who} after generation {newest} [G1]")
        if part.first < confirmed and part.generation >= newest and not part.excused:
            found.append(f"{who}: all below {confirmed} was committed [G5]")
        if part.first > seen_end:
            found.append(f"{who}: nobody was given {seen_end}..{part.first - 1} [G5]")
        if part.generation in after and part.first != after[part.generation]:
            found.append(f"{who}: its next was {after[part.generation]} [G5]")
        after[part.generation] = part.last + 1
        newest, seen_end = max(newest, part.generation), max(seen_end, part.last + 1)
    if seen_end < end:
        found.append(f"nobody was given {seen_end}..{end - 1} [G5]")
    return found


def fallen(positions: Iterable[Mapping[int, int]]) -> list[str]:
    """Of what was looked up one after the other, partition -> committed position: where one is lower than before [G3]."""
    highest: dict[int, int] = defaultdict(int)
    found: list[str] = []
    for looked in positions:
        for partition, at in looked.items():
            if at < highest[partition]:
                found.append(f"partition {partition}: the committed position fell from {highest[partition]} to {at} [G3]")
            highest[partition] = max(highest[partition], at)
    return found


def disturbed(before: Mapping[int, tuple[str, int]], after: Mapping[int, tuple[str, int]]) -> list[str]:
    """Partition -> (member, generation) around a change: what stayed with its member and was stopped all the same."""
    return [
        f"partition {partition} stayed with {member} and was stopped: generation {before[partition][1]}, then {generation}"
        for partition, (member, generation) in sorted(after.items())
        if partition in before and before[partition][0] == member and before[partition][1] != generation
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of ``values`` do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
