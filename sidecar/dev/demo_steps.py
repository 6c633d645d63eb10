"""The demo's steps: publish and watch, read back through the client, read back and compute through Spark, compare."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from liftpy.client import Client
from liftpy.errors import DataLossError, LiftError, UnavailableError
from sidecar.dev.demo_flights import Delays, mean_delays
from sidecar.dev.demo_processes import LineProcess
from sidecar.dev.demo_spark import RECORDS_FILE, RESULT_FILE
from sidecar.runtime.tasks import attended

STREAM = "flights"
SUBJECT = "demo.flights"
AHEAD_RECORDS = 40_000
"""How far the publisher may be ahead of the HW: well inside the bounds of the sidecar's ingest queue."""
STALL_S = 60.0
SPARK_START_S = 120.0
SPARK_JOB_S = 180.0
_LOOK_S = 0.1

Show = Callable[["Positions"], None]


@dataclass(slots=True)
class Positions:
    """Numbers of records. ``replicas``: node id -> records in its log. ``leader``: node id."""

    sent: int = 0
    committed: int = 0
    leader: str = ""
    replicas: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Step:
    """One line of the result. ``agrees``: the received records equal the sent ones."""

    name: str
    records: int
    size_bytes: int
    seconds: float
    agrees: bool = True
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the step with records and bytes per second."""
        rate = {"records_per_s": round(self.records / self.seconds), "bytes_per_s": round(self.size_bytes / self.seconds)}
        return {**asdict(self), "seconds": round(self.seconds, 3), **(rate if self.records else {})}


async def publish_and_watch(client: Client, nats_url: str, flights: range, folder: Path, nodes: list[str], show: Show) -> float:
    """Let the publisher send ``flights`` at the pace of the HW, until every replica holds all up to there; seconds it took."""
    arguments = ["--nats", nats_url, "--subject", SUBJECT, "--first", str(flights.start), "--records", str(len(flights))]
    async with await LineProcess.start("sidecar.dev.demo_publisher", arguments, folder) as publisher:
        return await _watch(client, publisher, flights, nodes, show)


async def _watch(client: Client, publisher: LineProcess, flights: range, nodes: list[str], show: Show) -> float:
    """Give the publisher its pace and look, until all are committed and everywhere; seconds that it took."""
    at, count = Positions(sent=flights.start), flights.stop
    counting = attended(_count_sent(publisher, at, flights.start))
    started = moved = time.monotonic()
    try:
        while not _complete(at, count):
            before = replace(at, replicas=dict(at.replicas))
            publisher.say(str(max(0, min(count, at.committed + AHEAD_RECORDS) - flights.start)))
            await _look(client, nodes, at)
            show(at)
            if counting.done() and counting.exception() is not None:
                await counting
            if before != at:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise UnavailableError(
                    f"No progress for {STALL_S:g} s: {at}. The machine may be overloaded: run the demo again."
                )
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - started
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)


def _complete(at: Positions, count: int) -> bool:
    if at.committed > count:
        raise DataLossError(
            f"{at.committed} records are committed, but {count} were sent. Another program publishes on {SUBJECT}: stop it."
        )
    return at.committed == count and bool(at.replicas) and all(held == count for held in at.replicas.values())


async def _count_sent(publisher: LineProcess, at: Positions, first: int) -> None:
    async for line in publisher.lines():
        at.sent = first + int(line)


async def _look(client: Client, nodes: list[str], at: Positions) -> None:
    """Ask leader and replicas for their positions. Those without an answer keep the last one."""
    with contextlib.suppress(UnavailableError):
        bounds = await client.bounds(STREAM)
        at.committed, at.leader = bounds.high_watermark + 1, bounds.leader
    answers = await asyncio.gather(*(client.node_status(node) for node in nodes), return_exceptions=True)
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, dict):
            at.replicas[node] = newest_offset_of(answer, STREAM, 0) + 1
        elif not isinstance(answer, LiftError):
            raise answer


def newest_offset_of(status: dict[str, Any], stream: str, partition: int) -> int:
    """Offset of the last record of a partition on a node, inclusive, from the node's status; -1 when it has none."""
    for found in status.get("partitions", []):
        if (found["stream"], found["partition"]) == (stream, partition):
            return int(found["newest_offset"])
    return -1


async def read_back(client: Client, lines: list[bytes]) -> Step:
    """Read all that is committed through the client and compare it with ``lines``, record by record."""
    started = time.monotonic()
    values: list[Any] = []
    async for piece in client.consume(STREAM, start="earliest", until="end").batches():
        values.extend(piece.values())
    seconds = time.monotonic() - started
    note = first_difference(lines, values)
    return Step("read back by the client", len(values), sum(map(len, values)), seconds, not note, note)


async def compute_by_spark(job: LineProcess, folder: Path, lines: list[bytes]) -> tuple[list[Step], Delays]:
    """Let the Spark job run; compare the records that it read with ``lines``, and its table with one computed here."""
    job.say("go")
    await job.expect("done", SPARK_JOB_S)
    result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    values = await asyncio.to_thread(_values_by_offset, folder / RECORDS_FILE)
    note = first_difference(lines, values)
    delays = {carrier: (count, total) for carrier, (count, total) in result["delays"].items()}
    same = delays == mean_delays(lines)
    size_bytes = sum(map(len, lines))
    read = Step("read back by Spark", len(values), size_bytes, result["read_s"], not note, note)
    table = Step("mean delay per carrier by Spark (first query)", len(lines), size_bytes, result["compute_s"], same)
    table.note = "" if same else "the table computed here differs"
    return [read, table], delays


def _values_by_offset(file: Path) -> list[bytes]:
    """The values in the order of their offsets, which must be 0, 1, 2... without a gap."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_file(source).read_all().sort_by("offset")
    offsets = table.column("offset").to_numpy()
    if len(offsets) and (offsets[0] != 0 or offsets[-1] != len(offsets) - 1 or (offsets[1:] != offsets[:-1] + 1).any()):
        raise DataLossError(
            "The offsets that Spark read are not 0, 1, 2 and so on: a record is missing or occurs twice. Please report it."
        )
    values: list[bytes] = table.column("value").to_pylist()
    return values


def first_difference(sent: list[bytes], got: list[Any]) -> str:
    """Return the first difference of two record lists in words, '' if they are equal."""
    if sent == got:
        return ""
    for offset, (wanted, found) in enumerate(zip(sent, got, strict=False)):
        if wanted != found:
            return f"offset {offset}: {bytes(found)!r} where {wanted!r} was sent"
    return f"{len(got)} records came back, {len(sent)} were sent"
