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
"""Time to wait for a coordinator, in seconds."""
_AGAIN_S = 0.2
_AT_ONCE = 16
"""Partitions that are asked for their bounds at the same time."""


async def set_cursors(client: Client, manifest: Manifest, uids: Mapping[str, str]) -> dict[str, str]:
    """Set the positions of groups and cursors for restored streams (``uids``: name -> new uid).

    Return group or cursor -> '' or why it failed.
    """
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
    """Return the bounds or the error of each (stream, partition). Each is requested once."""
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
    """Set the positions of one group or cursor. Return '' or why it failed. It may be repeated safely."""
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
