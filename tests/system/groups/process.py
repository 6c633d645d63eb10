"""A member in a process of its own. It says what it does in lines of JSON, each with the machine's monotonic time in ns:

ready, then it waits for a line; joins; gained and gone, with partitions; given, before a part is worked on: partition, generation,
first and last offset, and how late its first record is, by the wall clock; commits, once that is confirmed: next offsets by partition;
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

from liftpy.client import GroupOptions, GroupRejectedError, connect
from liftpy.client.group import Group
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import LiftError

COMMIT_S = 0.2


def say(do: str, **more: Any) -> None:
    """One line, at once."""
    print(json.dumps({"do": do, "t": time.monotonic_ns(), **more}), flush=True)


class Work:
    """What the member has been given of what it owns: partition -> next offset."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}

    def moved(self, do: str, keys: Sequence[PartitionKey]) -> None:
        """Of a hook."""
        say(do, partitions=[key.partition for key in keys])
        for key in keys:
            self.given.pop(key.partition, None)

    async def read(self, group: Group) -> None:
        """Parts, for ever."""
        async for part in group.batches():
            late_s = time.time() - part.slice.timestamps_ns()[0].item() / 1e9
            number, first, last = part.key.partition, part.slice.offsets()[0].item(), part.slice.last_offset
            say("given", partition=number, generation=part.generation, first=first, last=last, late_s=late_s)
            self.given[number] = last + 1

    async def commit(self, group: Group) -> None:
        """All that was given, now and then."""
        told: dict[int, int] = {}
        while True:
            await asyncio.sleep(COMMIT_S)
            positions = dict(self.given)
            if positions == told:
                continue
            try:
                await group.commit()
            except GroupRejectedError as error:
                say("refused", why=str(error))
            except LiftError as error:  # nobody says whether it is committed: it is said again
                say("unsure", why=str(error))
            else:
                told = positions
                say("commits", positions=positions)


async def main(url: str, group_name: str, stream: str, session_s: float) -> None:
    """Until SIGTERM."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    options, work = GroupOptions(session_s=session_s, auto_commit_s=3600), Work()
    async with connect(url) as client:
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        say("joins")
        group = await client.group(
            group_name, [stream], options=options,
            on_assigned=lambda keys: work.moved("gained", keys), on_revoked=lambda keys: work.moved("gone", keys),
        )  # fmt: skip
        tasks = [asyncio.create_task(each) for each in (work.read(group), work.commit(group), ending.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        say("leaves")
        await group.close()
        say("left")
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
