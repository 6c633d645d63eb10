"""Files that recovery set aside: kept until the replica holds the records again, so that damage never fills a disk for good.

A damaged segment becomes ``<name>.log.damaged-<n>``: evidence, and all that is left if no other replica has its records. The
segments behind it were right but can't be joined to the log any more: ``<name>.log.behind-<n>``. Both are what an operator could save
records from, as long as nobody else has them; whoever calls ``drop_set_aside`` knows that somebody has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from liftpy.log.segment import index_name, log_name
from liftpy.log.storage import Storage

DAMAGED_KEPT = 3
"""Damaged segments that ``drop_set_aside`` leaves as evidence, those of the highest offsets."""
DAMAGED, BEHIND = "damaged", "behind"
_NAME = re.compile(rf"\d+\.log\.({DAMAGED}|{BEHIND})-\d+")


def set_aside(storage: Storage, base_offset: int, why: str) -> None:
    """Rename the segment at ``base_offset``; its index goes. ``why``: DAMAGED or BEHIND."""
    storage.remove(index_name(base_offset))
    taken = set(storage.names())
    name = f"{log_name(base_offset)}.{why}"
    number = next(n for n in range(len(taken) + 1) if f"{name}-{n}" not in taken)
    storage.rename(log_name(base_offset), f"{name}-{number}")
    storage.sync_folder()


def names_set_aside(names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that ``set_aside`` gave, sorted."""
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def drop_set_aside(storage: Storage) -> tuple[str, ...]:
    """Remove what is not needed any more, but for the last ``DAMAGED_KEPT`` damaged segments; return the names removed."""
    names = names_set_aside(storage.names())
    damaged = [name for name in names if f".{DAMAGED}-" in name]
    removed = tuple(name for name in names if name not in damaged[-DAMAGED_KEPT:])
    for name in removed:
        storage.remove(name)
    if removed:
        storage.sync_folder()
    return removed
