"""Positions of groups and cursors, said again of streams that were restored: the same offsets, of the new uid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from liftpy.backup.manifest import CursorCopy, Manifest
from liftpy.client import Client
from liftpy.client.group import GroupRefusedError
from liftpy.client.group_admin import reset_group, set_cursor
from liftpy.errors import OutcomeUnknownError, UnavailableError
from liftpy.ids import PartitionKey

COORDINATOR_S = 60.0
"""So long a coordinator may not answer."""
_AGAIN_S = 0.2


async def set_cursors(client: Client, manifest: Manifest, uids: Mapping[str, str]) -> dict[str, str]:
    """Of the streams ``uids`` (name -> uid now): name of each group and cursor -> '' once it is set, else why not. A position that
    lies past the end, or before the begin, is set there. A group with members is not touched."""
    was = {stream.uid: stream.name for stream in manifest.streams if stream.name in uids}
    said = {}
    for cursor in manifest.cursors:
        positions = {}
        for name, uid, partition, at in cursor.positions:
            if was.get(uid) == name:
                bounds = await client.bounds(name, partition)
                if bounds.uid == uids[name]:
                    key = PartitionKey(name, bounds.uid, partition)
                    positions[key] = max(bounds.log_start_offset, min(at, bounds.end_offset))
        if positions:
            said[cursor.name] = await _set(client, cursor, positions)
    return said


async def _set(client: Client, cursor: CursorCopy, positions: dict[PartitionKey, int]) -> str:
    """The coordinators of a cluster in which nobody has had groups yet begin with the first question; to say it again changes
    nothing."""
    give_up_s = time.monotonic() + COORDINATOR_S
    while True:
        try:
            await (set_cursor if cursor.is_cursor else reset_group)(client, cursor.name, positions)
            return ""
        except GroupRefusedError as error:
            return str(error)
        except (UnavailableError, OutcomeUnknownError) as error:
            if time.monotonic() > give_up_s:
                return str(error)
            await asyncio.sleep(_AGAIN_S)
