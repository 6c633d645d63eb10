"""The steps of the demo: publish and watch, read, compute through Spark, compare, and kill the leader."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client
from liftpy.errors import DataLossError, LiftError, UnavailableError
from sidecar.dev.cluster import DevCluster
from sidecar.dev.demo_flights import Delays, mean_delays
from sidecar.dev.demo_spark import RECORDS_FILE, RESULT_FILE
from sidecar.dev.nats_server import dies_with_parent
from sidecar.runtime.settings import child_environment
from sidecar.runtime.tasks import start_attended

STREAM = "flights"
SUBJECT = "demo.flights"
AHEAD_RECORDS = 40_000
"""Maximum number of records that the publisher may be ahead of the high watermark. The ingest queue has room for more."""
STALL_S = 60.0
SPARK_START_S = 120.0
SPARK_JOB_S = 180.0
_CHECK_INTERVAL_S = 0.1

Show = Callable[["Positions"], None]
MAX_RECORDS = 4000
_WINDOW = 64
_ANSWER_TIMEOUT_S = 1.0
_PATIENCE_S = 60.0
_PAUSE_S = 0.01
_STOP_TIMEOUT_S = 20.0
_ABANDON_TIMEOUT_S = 1.0
_LAST_OUTPUT_BYTES = 2000


@dataclass(slots=True)
class Positions:
    """Numbers of records that the demo shows.

    ``replicas``: number of records in the log of each node, by node id. ``leader``: node id of the leader.
    """

    sent: int = 0
    committed: int = 0
    leader: str = ""
    replicas: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Step:
    """One line in the result table of the demo. ``agrees``: True if the received records equal the sent ones."""

    name: str
    records: int
    size_bytes: int
    seconds: float
    agrees: bool = True
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        rate = {"records_per_s": round(self.records / self.seconds), "bytes_per_s": round(self.size_bytes / self.seconds)}
        return {**asdict(self), "seconds": round(self.seconds, 3), **(rate if self.records else {})}


async def publish_and_watch(client: Client, nats_url: str, flights: range, folder: Path, nodes: list[str], show: Show) -> float:
    """Publish the ``flights`` (numbers of lines) in another process, until every node has all of them.

    The publisher stays only a little ahead of the high watermark. ``show`` is called with the current numbers of records. Return
    the duration in seconds.
    """
    arguments = ["--nats", nats_url, "--subject", SUBJECT, "--first", str(flights.start), "--records", str(len(flights))]
    async with await LineProcess.start("sidecar.dev.demo_flights", arguments, folder) as publisher:
        return await _watch(client, publisher, flights, nodes, show)


async def _watch(client: Client, publisher: LineProcess, flights: range, nodes: list[str], show: Show) -> float:
    at, count = Positions(sent=flights.start), flights.stop
    counting = start_attended(_count_sent(publisher, at, flights.start))
    started = moved = time.monotonic()
    try:
        while not _complete(at, count):
            before = replace(at, replicas=dict(at.replicas))
            publisher.write_line(str(max(0, min(count, at.committed + AHEAD_RECORDS) - flights.start)))
            await _update_counts(client, nodes, at)
            show(at)
            if counting.done() and counting.exception() is not None:
                await counting
            if before != at:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise UnavailableError(
                    f"No progress for {STALL_S:g} s: {at}. The machine may be overloaded: run the demo again."
                )
            await asyncio.sleep(_CHECK_INTERVAL_S)
        return time.monotonic() - started
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)


def _complete(at: Positions, count: int) -> bool:
    if at.committed > count:
        raise DataLossError(
            f"{at.committed} records are committed, but {count} were sent. Another program publishes on {SUBJECT}: stop it."
        )
    return at.committed == count and bool(at.replicas) and all(offset == count for offset in at.replicas.values())


async def _count_sent(publisher: LineProcess, at: Positions, first: int) -> None:
    async for line in publisher.lines():
        at.sent = first + int(line)


async def _update_counts(client: Client, nodes: list[str], at: Positions) -> None:
    with contextlib.suppress(UnavailableError):
        bounds = await client.bounds(STREAM)
        at.committed, at.leader = bounds.high_watermark + 1, bounds.leader
    answers = await asyncio.gather(*(client.admin.node_status(node) for node in nodes), return_exceptions=True)
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, dict):
            at.replicas[node] = newest_offset_of(answer, STREAM, 0) + 1
        elif not isinstance(answer, LiftError):
            raise answer


def newest_offset_of(status: dict[str, Any], stream: str, partition: int) -> int:
    """Return the offset of the last record of a partition (inclusive) from the node's ``status``. -1: it has none."""
    for partition_status in status.get("partitions", []):
        if (partition_status["stream"], partition_status["partition"]) == (stream, partition):
            return int(partition_status["newest_offset"])
    return -1


async def read_back(client: Client, lines: list[bytes]) -> Step:
    """Read all committed records through the client, and compare them with ``lines``."""
    started = time.monotonic()
    values: list[Any] = []
    async for piece in client.consume(STREAM, start="earliest", until="end").batches():
        values.extend(piece.values())
    seconds = time.monotonic() - started
    note = first_difference(lines, values)
    return Step("read back by the client", len(values), sum(map(len, values)), seconds, not note, note)


async def compute_by_spark(job: LineProcess, folder: Path, lines: list[bytes]) -> tuple[list[Step], Delays]:
    """Run the Spark job. Compare its records with ``lines``, and its table with a table that this process computes.

    Return the two result lines, and the table of Spark.
    """
    job.write_line("go")
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
    """Return the values in the order of their offsets. Raises DataLossError unless the offsets are 0, 1, 2 and so on."""
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
    """Return a text about the first difference of two lists of records. '': they are equal."""
    if sent == got:
        return ""
    for offset, (wanted, received_value) in enumerate(zip(sent, got, strict=False)):
        if wanted != received_value:
            return f"offset {offset}: {bytes(received_value)!r} where {wanted!r} was sent"
    return f"{len(got)} records came back, {len(sent)} were sent"


# ---- failover --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failover:
    """Result of the failover step of the demo.

    ``killed``: node that led before. ``leader``: node that leads now. ``acknowledged``: number of acks. ``next_ack_s``: time from
    the kill to the next ack. ``seconds``: total time.
    """

    killed: str
    leader: str
    acknowledged: int
    next_ack_s: float
    seconds: float


async def lose_the_leader(
    cluster: DevCluster, client: Client, stream: str, subject: str, lines: list[bytes], first: int
) -> Failover:
    """Publish ``lines`` with acks from offset ``first`` on, and kill the leader half-way. No record is lost.

    The publisher uses only nats-py. It requests that each flight is stored at its offset (``Nats-Expected-Last-Sequence``). So
    a flight whose ack was lost is not stored again. At the end, every flight is stored once at its offset. Return when all
    nodes are in sync again.
    """
    began = time.monotonic()
    killed = (await client.stream(stream)).partitions[0].leader
    connection = await nats.connect(cluster.nats_url, name="demo-acknowledged", max_reconnect_attempts=-1)
    try:
        half, end = len(lines) // 2, first + len(lines)
        position = await _publish(connection, client, stream, subject, lines, first, first, first + half)
        await asyncio.to_thread(cluster.nodes[killed].kill)
        struck = time.monotonic()
        position = await _publish(connection, client, stream, subject, lines, first, position, position + 1)
        next_ack_s = time.monotonic() - struck
        await _publish(connection, client, stream, subject, lines, first, position, end)
    finally:
        await connection.close()
    leader = (await client.stream(stream)).partitions[0].leader
    cluster.nodes[killed].start()
    await asyncio.to_thread(cluster.nodes[killed].wait_ready)
    await _until_in_sync(client, stream)
    return Failover(killed, leader, len(lines), next_ack_s, time.monotonic() - began)


async def _publish(
    connection: NatsConnection, client: Client, stream: str, subject: str, lines: list[bytes], first: int, start: int, end: int
) -> int:
    """Publish the lines for the offsets ``start`` to ``end`` (exclusive) with acks, several at once. Return the next offset."""
    position, moved = start, time.monotonic()
    while position < end:
        window = range(position, min(position + _WINDOW, end))
        answers = await asyncio.gather(*(_ask(connection, subject, lines[i - first], i) for i in window))
        stored = next((number for number, answer in enumerate(answers) if not answer), len(answers))
        if stored < len(answers):
            await asyncio.sleep(_PAUSE_S)
            stored = max(stored, min(await _count_committed(client, stream), end) - position)
        if stored:
            position, moved = position + stored, time.monotonic()
        elif time.monotonic() - moved > _PATIENCE_S:
            raise UnavailableError(
                f"Offset {position} of {stream} was not acknowledged within {_PATIENCE_S:g} s. The machine may be "
                "overloaded: run the demo again."
            )
    return position


async def _ask(connection: NatsConnection, subject: str, line: bytes, offset: int) -> bool:
    try:
        answer = await connection.request(
            subject, line, timeout=_ANSWER_TIMEOUT_S, headers={"Nats-Expected-Last-Sequence": str(offset)}
        )
    except (nats.errors.Error, TimeoutError):
        return False
    return bool(json.loads(answer.data).get("seq") == offset + 1)


async def _count_committed(client: Client, stream: str) -> int:
    try:
        return (await client.bounds(stream)).high_watermark + 1
    except UnavailableError:
        return 0


async def _until_in_sync(client: Client, stream: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        partition = (await client.stream(stream)).partitions[0]
        if set(partition.isr) == set(partition.replicas):
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"The ISR is {', '.join(partition.isr)} after {_PATIENCE_S:g} s. `liftpy status` shows which replica is behind."
            )
        await asyncio.sleep(_PAUSE_S * 5)


# ---- helper processes ------------------------------------------------------------------------------------------------


def _import_path() -> str:
    """Return the import path for a child process. Spark searches directories, and ignores the hooks of an editable install."""
    source = importlib.util.find_spec("pyspark_liftpy")
    folders = [*sys.path, str(Path(source.origin).parent) if source is not None and source.origin else ""]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


class LineProcess:
    """A Python module that runs as a process. ``write_line`` writes a line to it. ``lines`` yields its output.

    It ends with all processes that it has started. Its standard error goes to ``<folder>/<name>.log``. If it fails, the error
    contains the end of this file.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, module: str, arguments: list[str], folder: Path) -> LineProcess:
        """Start ``python -m module arguments`` in ``folder``, in its own process group."""
        log = folder / f"{module.rpartition('.')[2]}.log"
        environment = {**child_environment(), "PYTHONPATH": _import_path(), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *dies_with_parent([sys.executable, "-m", module, *arguments], signal.SIGKILL),
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        return cls(module.rpartition(".")[2], process, log)

    def write_line(self, line: str) -> None:
        """Write one line to the standard input of the process. The call has no effect if the process has ended."""
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():  # asyncio logs a warning for each further line
            return
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(line.encode() + b"\n")

    async def lines(self) -> AsyncIterator[str]:
        """Yield the output lines of the process until it ends. Raises LiftError with its last log lines if it failed."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()
        if await self._process.wait() != 0:
            raise LiftError(f"The {self.name} process of the demo failed: {self.read_last_output()}")

    async def expect(self, wanted: str, timeout_s: float) -> None:
        """Read output until the line ``wanted``. Raises UnavailableError after ``timeout_s`` seconds, and LiftError at its end."""
        try:
            async with asyncio.timeout(timeout_s):
                async for line in self.lines():
                    if line == wanted:
                        return
        except TimeoutError:
            raise UnavailableError(
                f"The {self.name} process of the demo did not print {wanted!r} within {timeout_s:g} s. The machine "
                "may be overloaded: run the demo again."
            ) from None
        raise LiftError(f"The {self.name} process of the demo ended before it printed {wanted!r}: {self.read_last_output()}")

    def read_last_output(self) -> str:
        return self._log.read_bytes()[-_LAST_OUTPUT_BYTES:].decode(errors="replace").strip() or "it said nothing"

    async def __aenter__(self) -> LineProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.end(_STOP_TIMEOUT_S if kind is None else _ABANDON_TIMEOUT_S)

    async def end(self, timeout_s: float) -> None:
        """Close the standard input of the process and wait for its end.

        Its process group is killed if it does not end within ``timeout_s`` seconds, or if it leaves processes behind.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            await self._read_to_the_end()

    async def _read_to_the_end(self) -> None:
        """Read the output of the process to its end, because asyncio closes the pipe only then.

        An open pipe would cause a warning when the event loop closes.
        """
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABANDON_TIMEOUT_S):
                while await self._process.stdout.read(_LAST_OUTPUT_BYTES):
                    pass
