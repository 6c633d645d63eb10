"""A member in a process of its own that copies from stream to stream until it is killed."""

from __future__ import annotations

import asyncio
import sys

from liftpy.client import GroupOptions, connect
from liftpy.core.wire.batch import Record
from tests.system.groups.into import yields


async def main(url: str, group_name: str, source: str, session_s: float, target: str) -> None:
    """What a user writes."""
    options = GroupOptions(session_s=session_s, auto_commit_s=0.5)
    async with connect(url) as client, client.group(group_name, [source], options=options) as group:
        await group.into(target, made)


def made(record: Record) -> list[tuple[bytes | None, bytes | None]]:
    """Of one record."""
    return list(yields(record.value or b""))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5]))
