"""What applications do to a second stream while it gets partitions and these move: the client's publishers and consumers, and a Spark
job in a process of its own. None of them may lose a record, see one twice, or see an error."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from liftpy.client import Client
from liftpy.errors import OutcomeUnknownError
from liftpy.nats.cancellation import end_tasks

_PAUSE_S = 0.05
_LINE_BYTES = 64 << 20


class Others:
    """``begin`` with the partitions that there are; ``follow`` for each that is added; ``check`` at the end, and ``close``."""

    def __init__(self, client: Client, stream: str, pace_s: float) -> None:
        self._client = client
        self._stream = stream
        self._pace_s = pace_s
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._ends = False
        self._told: list[dict[int, bytes]] = []
        """Of each partition: offset -> value, as its publisher was told."""
        self._read: list[list[bytes | None]] = []
        """Of each partition: the values, as its consumer got them."""
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-moving-spark-"))
        self._spark: Process | None = None
        self.batches: list[int] = []
        """Records of each batch read."""
        self.unknown = 0
        """Publishes that had no answer: where a leader is killed that has just taken one, nobody knows what has become of it."""
        self.wrong: list[str] = []

    def follow(self, partition: int) -> None:
        """Publish to it, and read it."""
        assert partition == len(self._told)
        self._told.append({})
        self._read.append([])
        self._publishers.append(asyncio.create_task(self._publish(partition), name=f"publish to {partition}"))
        self._consumers.append(asyncio.create_task(self._consume(partition), name=f"read {partition}"))

    async def start_spark(self, nats_url: str) -> None:
        """The job; returns when its query runs."""
        words = (sys.executable, "-m", "tests.system.moving.spark_reader", nats_url, self._stream, str(self._folder))
        log = (self._folder / "log").open("wb")
        self._spark = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=log, limit=_LINE_BYTES)
        await self._said("ready")

    async def batch(self) -> None:
        """Read all of it in a Spark batch: no less than the time before, nothing twice."""
        if self._spark is None:
            return
        least = sum(map(len, self._told))
        count, distinct = json.loads(await self._ask("batch"))
        if not count == distinct >= least:
            self.wrong.append(f"a Spark batch has {count} records, {distinct} different ones, and {least} were acknowledged")
        self.batches.append(count)

    async def check(self, timeout_s: float) -> None:
        """End all of it, and compare."""
        self._ends = True
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*self._publishers)
            held = [
                [record.value async for record in self._client.consume(self._stream, number, start="earliest", until="end")]
                for number in range(len(self._told))
            ]
            for number, values in enumerate(held):
                while len(self._read[number]) < len(values) and not self._consumers[number].done():
                    await asyncio.sleep(_PAUSE_S)
                if self._consumers[number].done():
                    await self._consumers[number]
                self._compare(number, values)
            if self._spark is not None:
                await self.batch()
                self._compare_spark(json.loads(await self._ask("end")), held)
                await self._spark.wait()

    def _compare(self, number: int, held: list[bytes | None]) -> None:
        told = self._told[number]
        lost = [offset for offset, value in told.items() if offset >= len(held) or held[offset] != value]
        if lost or not told:
            self.wrong.append(f"{len(lost)} of {len(told)} publishes to {self._stream}/{number} are not where they were told")
        if self._read[number] != held:
            self.wrong.append(f"the consumer did not read what {self._stream}/{number} holds")

    def _compare_spark(self, rows: list[tuple[int, int, str]], held: list[list[bytes | None]]) -> None:
        wanted = [
            [number, offset, (value or b"").decode()]
            for number, values in enumerate(held)
            for offset, value in enumerate(values)
        ]
        if sorted(rows) != wanted:
            found = {(partition, offset) for partition, offset, _ in rows}
            self.wrong.append(
                f"the Spark query wrote {len(rows)} records, {len(found)} different ones, of {len(wanted)} that there are"
            )

    async def close(self) -> None:
        """Stop all of it."""
        await end_tasks([*self._publishers, *self._consumers])
        if self._spark is not None and self._spark.returncode is None:
            self._spark.kill()
            await self._spark.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _publish(self, partition: int) -> None:
        async with self._client.publisher(self._stream, partition) as publisher:
            for number in itertools.count():
                if self._ends:
                    return
                value = b"told %d" % number
                try:
                    ack = await publisher.publish(value)
                except OutcomeUnknownError:  # its leader died with it; the next one is another message
                    self.unknown += 1
                    continue
                self._told[partition][ack.offset] = value
                await asyncio.sleep(self._pace_s)

    async def _consume(self, partition: int) -> None:
        async for record in self._client.consume(self._stream, partition, start="earliest"):
            assert record.offset == len(self._read[partition]), f"offset {record.offset} after {len(self._read[partition]) - 1}"
            self._read[partition].append(record.value)

    async def _ask(self, what: str) -> str:
        assert self._spark is not None
        assert self._spark.stdin is not None
        self._spark.stdin.write(what.encode() + b"\n")
        return await self._said()

    async def _said(self, wanted: str = "") -> str:
        """The next line of the job, or of many the one that is wanted; fails with its last words where it has ended."""
        process: Any = self._spark
        while line := (await process.stdout.readline()).decode():
            if not wanted or line.strip() == wanted:
                return line
        raise AssertionError("the Spark job has ended: " + (self._folder / "log").read_text(errors="replace")[-3000:])
