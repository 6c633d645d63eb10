"""A worker in a process of its own. It says what it does in lines of JSON in a file, each with the machine's monotonic time in ns:

given, before anything is done: asked (when it asked for them), partition, ranges (first and last offset, both inclusive, and how often
they were given); acked, once that is confirmed: partition, ranges; lost, of records whose wait was over; unsure; ends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from liftpy.client import QueueOptions, connect
from liftpy.client.queue import Job, LeaseLostError
from liftpy.errors import LiftError

IDLE_S = 3.0


def ranges(jobs: Iterable[Job]) -> list[tuple[int, int, int]]:
    """(first, last, deliveries) of neighbours that were given equally often."""
    found: list[tuple[int, int, int]] = []
    for job in jobs:
        offset = job.record.offset
        if found and found[-1][1] + 1 == offset and found[-1][2] == job.deliveries:
            found[-1] = found[-1][0], offset, job.deliveries
        else:
            found.append((offset, offset, job.deliveries))
    return found


async def main(url: str, stream: str, group: str, file: Path, batch: int, wait_s: float, seed: int) -> None:
    """Take, say so, acknowledge, say so, until it is killed; each batch in pieces, as an application would."""
    rng = Random(seed)
    with file.open("a", encoding="utf-8", buffering=1) as lines:

        def say(do: str, jobs: Iterable[Job] = (), **more: Any) -> None:
            for partition, some in groupby(jobs, lambda job: job.key.partition):
                more |= {"partition": partition, "ranges": ranges(some)}
            lines.write(json.dumps({"do": do, "t": time.monotonic_ns(), **more}) + "\n")

        options = QueueOptions(ack_wait_s=wait_s)
        async with connect(url) as client, client.queue(stream, group, options=options) as queue:
            say("begins")
            while True:
                asked = time.monotonic_ns()
                try:
                    jobs = await queue.take(batch, timeout_s=IDLE_S)
                except LiftError as error:
                    say("unsure", why=str(error))
                    continue
                if jobs:
                    say("given", jobs, asked=asked)
                while jobs:
                    count = rng.randint(1, len(jobs))
                    some, jobs = jobs[:count], jobs[count:]
                    try:
                        await queue.ack(some)
                    except LeaseLostError as error:
                        lost = {job.record.offset for job in error.jobs}
                        say("lost", error.jobs)
                        some = [job for job in some if job.record.offset not in lost]
                    except LiftError as error:  # nobody says whether it is committed: they come again, or not
                        say("unsure", why=str(error))
                        continue
                    if some:
                        say("acked", some)


def work(url: str, stream: str, group: str, file: Path, batch: int, wait_s: float, seed: int) -> None:
    """What the process does."""
    asyncio.run(main(url, stream, group, file, batch, wait_s, seed))
