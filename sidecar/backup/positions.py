"""Positions of groups and cursors, said again of streams that were restored: the same offsets, of the new uid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from liftpy.client import Client
from liftpy.client.group_admin import reset_group, set_cursor
from liftpy.client.positions import Bounds
from liftpy.core.backup.manifest import CursorCopy, Manifest
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import LiftError, OutcomeUnknownError, UnavailableError

COORDINATOR_S = 60.0
"""So long a coordinator may not answer."""
_AGAIN_S = 0.2
_AT_ONCE = 16
"""Partitions that are asked for their bounds at the same time."""


async def set_cursors(client: Client, manifest: Manifest, uids: Mapping[str, str]) -> dict[str, str]:
    """Of the streams ``uids`` (name -> uid now): name of each group and cursor -> '' once it is set, else why not. A position that
    lies past the end, or before the begin, is set there. A group with members is not touched. Of a partition that gives no bounds no
    position is set, and those that have one there are said by name; their others are set."""
    was = {stream.uid: stream.name for stream in manifest.streams if stream.name in uids}
    wanted = {
        cursor.name: [(name, partition, at) for name, uid, partition, at in cursor.positions if was.get(uid) == name]
        for cursor in manifest.cursors
    }
    bounds = await _bounds(client, {(name, partition) for found in wanted.values() for name, partition, _ in found})
    said = {}
    for cursor in manifest.cursors:
        positions, without = {}, []
        for name, partition, at in wanted[cursor.name]:
            found = bounds[name, partition]
            if isinstance(found, LiftError):
                without.append(f"{name}/{partition} gives no bounds ({found})")
            elif found.uid == uids[name]:
                key = PartitionKey(name, found.uid, partition)
                positions[key] = max(found.log_start_offset, min(at, found.end_offset))
        if positions or without:
            refused = await _set(client, cursor, positions) if positions else ""
            said[cursor.name] = refused or "; ".join(without)
    return said


async def _bounds(client: Client, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Bounds | LiftError]:
    """Of each (stream, partition), or why there are none: each is asked once, however many groups read it."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str, partition: int) -> Bounds | LiftError:
        async with room:
            try:
                return await client.bounds(name, partition)
            except LiftError as error:
                return error

    ordered = sorted(wanted)
    return dict(zip(ordered, await asyncio.gather(*[ask(*one) for one in ordered]), strict=True))


async def _set(client: Client, cursor: CursorCopy, positions: dict[PartitionKey, int]) -> str:
    """The coordinators of a cluster in which nobody has had groups yet begin with the first question; to say it again changes
    nothing. What is done stays: no error ends what is set beside it."""
    give_up_s = time.monotonic() + COORDINATOR_S
    while True:
        try:
            await (set_cursor if cursor.is_cursor else reset_group)(client, cursor.name, positions)
            return ""
        except (UnavailableError, OutcomeUnknownError) as error:
            if time.monotonic() > give_up_s:
                return str(error)
            await asyncio.sleep(_AGAIN_S)
        except LiftError as error:
            return str(error)
