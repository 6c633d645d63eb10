"""Assigns partitions to members: balanced, with as few moves as possible. Pure.

Of each stream every reader gets as many partitions as any other, or one more or less. What a member has, it keeps up to that
share. Who gets the one more: first whoever has it already, then whoever reads less in all; at last ones more go from those that
read more in all to those that read less by two and more, so that many streams of one partition are spread as well.

Worked example: 4 partitions, a reads all, b comes: a keeps 0 and 1, b gets 2 and 3. c comes: shares are 2, 1, 1: a keeps 0 and
1, b keeps 2, c gets 3. a goes: b keeps 2, c keeps 3, 0 goes to b and 1 to c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Place = tuple[str, int]
"""(stream, partition)"""
_MAX_PASSES = 8


def assign(counts: Mapping[str, int], readers: Mapping[str, Sequence[str]], held: Mapping[Place, str]) -> dict[Place, str]:
    """(stream, partition) -> member, for all partitions of all streams that have readers.

    ``counts``: partitions of each stream. ``readers``: of each stream, in an order that is the same everywhere (of their joining).
    ``held``: what was assigned before, also to members that are gone.
    """
    load: dict[str, int] = {}
    shares: dict[str, dict[str, int]] = {}
    have: dict[str, dict[str, list[int]]] = {}
    for stream in sorted(readers):
        if not readers[stream]:
            continue
        have[stream] = _held(stream, counts[stream], readers[stream], held)
        floor, extra = divmod(counts[stream], len(readers[stream]))
        shares[stream] = _shares(readers[stream], have[stream], load, floor, extra)
        for name, count in shares[stream].items():
            load[name] = load.get(name, 0) + count
    _even_out(counts, shares, load)
    target: dict[Place, str] = {}
    for stream, share in shares.items():
        kept = {name: have[stream].get(name, [])[: share[name]] for name in readers[stream] if share[name]}
        taken = {partition for partitions in kept.values() for partition in partitions}
        free = iter([partition for partition in range(counts[stream]) if partition not in taken])
        for name, partitions in kept.items():
            mine = partitions + [next(free) for _ in range(share[name] - len(partitions))]
            target.update({(stream, partition): name for partition in mine})
    return target


def _shares(
    readers: Sequence[str], have: Mapping[str, Sequence[int]], load: Mapping[str, int], floor: int, extra: int
) -> dict[str, int]:
    """Return how many partitions of one stream each reader gets. Readers that get one more come first."""
    if not extra:
        return dict.fromkeys(readers, floor)
    richer = [name for name in readers if name in have and len(have[name]) > floor]
    rest = sorted(readers, key=lambda name: load.get(name, 0)) if load else list(readers)
    if richer:
        has_more = set(richer)
        rest = [name for name in rest if name in has_more] + [name for name in rest if name not in has_more]
    shares = dict.fromkeys(rest, floor)
    shares.update(dict.fromkeys(rest[:extra], floor + 1))
    return shares


def _held(stream: str, count: int, readers: Sequence[str], held: Mapping[Place, str]) -> dict[str, list[int]]:
    """Partitions that each reader had before; a reader without any is left out."""
    have: dict[str, list[int]] = {}
    names = set(readers)
    for partition in range(count):
        holder = held.get((stream, partition))
        if holder in names:
            have.setdefault(holder, []).append(partition)
    return have


def _even_out(counts: Mapping[str, int], shares: dict[str, dict[str, int]], load: dict[str, int]) -> None:
    """Move extra partitions to readers of the same stream whose load is lower by at least two."""
    for _ in range(_MAX_PASSES):
        moved = False
        for stream, share in shares.items():
            floor, extra = divmod(counts[stream], len(share))
            if not extra or not _is_uneven(share, load, floor):
                continue
            rich = sorted((name for name in share if share[name] > floor), key=lambda name: -load[name])
            poor = sorted((name for name in share if share[name] == floor), key=lambda name: load[name])
            for giver, taker in zip(rich, poor, strict=False):
                if load[giver] < load[taker] + 2:
                    break
                share[giver], share[taker] = share[giver] - 1, share[taker] + 1
                load[giver], load[taker] = load[giver] - 1, load[taker] + 1
                moved = True
        if not moved:
            return


def _is_uneven(share: Mapping[str, int], load: Mapping[str, int], floor: int) -> bool:
    """Whether a reader with one partition more has a load that is greater by two and more than that of a reader without."""
    most = max(load[name] for name, count in share.items() if count > floor)
    return most >= 2 + min(load[name] for name, count in share.items() if count == floor)
