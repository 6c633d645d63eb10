"""A member in a process of its own. It says what it does in lines of JSON, each with the machine's monotonic time in ns:

ready, then it waits for a line; joins; gained and gone, with partitions; given, before a part is worked on: partition, generation,
first and last offset, and how late its first record is, by the wall clock; commits, once that is confirmed: the next offset by partition;
refused; unsure; leaves; left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from liftpy.client import GroupOptions, GroupRefusedError, connect
from liftpy.client.group import Group
from liftpy.errors import LiftError
from liftpy.ids import PartitionKey


def say(do: str, **more: Any) -> None:
    """One line, at once."""
    print(json.dumps({"do": do, "t": time.monotonic_ns(), **more}), flush=True)


def moved(do: str, keys: Sequence[PartitionKey]) -> None:
    """Of a hook."""
    say(do, partitions=[key.partition for key in keys])


async def work(group: Group) -> None:
    """Each part is committed by itself."""
    async for part in group:
        number, last = part.key.partition, part.slice.last_offset
        late_s = time.time() - part.slice.timestamps_ns()[0].item() / 1e9
        first = part.slice.offsets()[0].item()
        say("given", partition=number, generation=part.generation, first=first, last=last, late_s=late_s)
        try:
            await group.commit()
        except GroupRefusedError as error:
            say("refused", why=str(error))
        except LiftError as error:  # nobody says whether it is committed: it is said again with the next one
            say("unsure", why=str(error))
        else:
            say("commits", positions={number: last + 1})


async def main(url: str, group_name: str, stream: str, session_s: float) -> None:
    """Until SIGTERM."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    options = GroupOptions(session_s=session_s, auto_commit_s=3600)
    async with connect(url) as client:
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        say("joins")
        group = await client.group(
            group_name, [stream], options=options,
            on_assigned=lambda keys: moved("gained", keys), on_revoked=lambda keys: moved("gone", keys),
        )  # fmt: skip
        working = asyncio.create_task(work(group))
        waiting = asyncio.create_task(ending.wait())
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        say("leaves")
        await group.close()
        say("left")
        if working.done():
            working.result()
        working.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
