"""Benchmark cases. Each case yields rows: ``case`` is its name, ``figures`` has the measured values.

``per_s``: records per second. ``cpu_us``: CPU time of all processes per record. Latencies have names that end with ``_ms``.
``core``: CPU use while idle, in cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats

from liftpy.errors import UnavailableError
from sidecar.bench.systems import OURS, STREAM, System, process
from sidecar.dev.nats_server import NatsServer

_WARM_S = 1.0
PLAIN_EACH, PLAIN_WINDOW = 1000, 32_000
"""Number of publishes per requested ack, and maximum number of messages that may not be stored yet.

Without the limit, both systems would drop messages above their own limits.
"""
PEAK_WINDOW = 4000
_PRODUCER_PEER = "producer, {size_bytes} B"
_ANSWER_S = 0.1
_AGAIN_S = 0.005
_BEFORE_S, _AFTER_S, _OVER_S = 1.0, 2.0, 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
Figures = dict[str, Any]
"""Name of a figure -> its value. Names with the suffix ``_s``, ``_us`` or ``_ms`` are times, and ``per_s`` are rates."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of ``liftpy bench``.

    ``sizes``: message sizes, in bytes. ``windows``: numbers of messages in flight. ``loads``: publish rates of the latency case,
    as fractions of the highest rate that the system reached.
    """

    seconds: float = 3.0
    sizes: Sequence[int] = (100, 1000)
    windows: Sequence[int] = (1, 64, 4000)
    publishers: int = 1
    loads: Sequence[float] = (0.1, 0.5, 0.8)


Row = dict[str, object]
Case = Callable[[System, BenchOptions], Iterator[Row]]


def _row(case: str, figures: Figures) -> Row:
    return {"case": case, "figures": figures}


def _rate(runs: Sequence[Figures]) -> Figures:
    count = sum(run["acked"] for run in runs)
    figures = {"per_s": sum(run["acked"] / run["took_s"] for run in runs), "cpu_us": runs[0]["all_cpu_s"] / count * 1e6}
    figures["generator_cpu_us"] = sum(run["cpu_s"] for run in runs) / count * 1e6
    return figures | {name: value for name, value in runs[0].items() if name.endswith("_ms")}


def _publishers(system: System, options: BenchOptions, size_bytes: int, window: int, *, each: int = 1) -> Figures:
    """Run ``asked.publishers`` publishers at the same time, and return their total rate and CPU time per record.

    ``window``: number of messages in flight, over all publishers. ``each``: only every ``each``-th message requests an ack.
    """
    share = max(window // options.publishers, 1)
    commands = [system.publisher(number, options.seconds, size_bytes, share, each) for number in range(options.publishers)]
    return _rate(measured_together(commands, system.pids))


def publish_with_acks(system: System, options: BenchOptions) -> Iterator[Row]:
    """Publish with an ack for each message, for each message size and each number of messages in flight."""
    for size_bytes in options.sizes:
        for window in options.windows:
            yield _row(f"acked, {size_bytes} B, {window:,} in flight", _publishers(system, options, size_bytes, window))


def load_alone(options: BenchOptions) -> dict[int, Figures]:
    """Measure the publisher against a process that only sends acks, for each message size in bytes.

    The values show that the publisher is not the bottleneck of the other cases.
    """
    figures_by_size = {}
    with NatsServer() as server, _ready(process("load", "answer", server.port, STREAM)) as answering:
        for size_bytes in options.sizes:
            publishing = process("load", "publish", server.port, STREAM, options.seconds, size_bytes, PEAK_WINDOW)
            figures_by_size[size_bytes] = _rate([measure_process(publishing, [server.pid, answering.pid])])
    return figures_by_size


@contextmanager
def _ready(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process, wait until it prints ``go``, and kill it at the end of the block."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            if started.stdout.readline().strip() != "go":
                raise SystemExit(f"The process {' '.join(words[2:4])} did not start in time. Run the benchmark again.")
            yield started
        finally:
            started.kill()


def plain(system: System, options: BenchOptions) -> Iterator[Row]:
    """Publish without acks, except for each thousandth message. Its ack shows that all earlier ones are stored."""
    for size_bytes in options.sizes:
        figures = _publishers(system, options, size_bytes, PLAIN_WINDOW, each=PLAIN_EACH)
        yield _row(f"plain, {size_bytes} B", figures)


def producer(system: System, options: BenchOptions) -> Iterator[Row]:
    """Publish with liftpy's producer, JetStream's batches and Kafka's producer. Other systems use their fastest way with acks."""
    for size_bytes in options.sizes:
        case = _PRODUCER_PEER.format(size_bytes=size_bytes)
        if system.kind == OURS:
            words = process("client", "produce", system.ports[0], STREAM, options.seconds, size_bytes)
            yield _row(case, _rate([measure_process(words, system.pids)]))
        else:
            yield _row(case, _publishers(system, options, size_bytes, PEAK_WINDOW))


def consume(system: System, options: BenchOptions) -> Iterator[Row]:
    """Read the published messages from the first one on, with the Python client of each system."""
    for name, words in system.readers(options.seconds).items():
        yield _row(f"consume, {name}", _rate([measure_process(words, system.pids)]))


def latency(system: System, options: BenchOptions) -> Iterator[Row]:
    """Measure the time until the ack, and until a reader has the record, at fractions of the highest rate of the system."""
    for size_bytes in options.sizes:
        peak = _publishers(system, options, size_bytes, PEAK_WINDOW)["per_s"]
        for load in options.loads:
            yield _row(f"latency, {size_bytes} B, {load:.0%} of its peak", _at_rate(system, options, size_bytes, peak * load))


def _at_rate(system: System, options: BenchOptions, size_bytes: int, rate: float) -> Figures:
    with _ready(process("client", "arrivals", system.ports[-1], STREAM, system.kind)) as reader:
        writing = process("load", "open-loop", system.ports[0], STREAM, options.seconds, size_bytes, rate)
        run = measure_process(writing, [*system.pids, reader.pid])
        output, _ = reader.communicate("end\n")
    arrived = json.loads(output)
    figures = _rate([run]) | {name: value for name, value in arrived.items() if name.endswith("_ms")}
    return figures | {"kept": run["acked"] / run["took_s"] / rate}


def idle(system: System, options: BenchOptions) -> Iterator[Row]:
    """Measure the CPU use of all processes while nothing is published or read, in cores."""
    time.sleep(_WARM_S)
    before, began = all_cpu_s(system.pids), time.monotonic()
    time.sleep(options.seconds)
    yield _row("idle", {"core": (all_cpu_s(system.pids) - before) / (time.monotonic() - began)})


def failover(system: System, options: BenchOptions) -> Iterator[Row]:
    """Measure the longest time between two acks around a kill -9 of the leader, with one message in flight.

    No other case can follow, because the leader is not restarted.
    """
    try:
        gap_s = asyncio.run(_gap(system))
    except UnavailableError:
        return
    yield _row("fail-over", {"gap_ms": gap_s * 1000})


async def _gap(system: System) -> float:
    killing = asyncio.get_running_loop().run_in_executor
    connections = {
        port: await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=_quiet) for port in system.ports
    }
    port, longest, last = system.ports[0], 0.0, time.monotonic()
    kill: asyncio.Future[int] | None = None
    kill_at, ends_at, deadline = last + _BEFORE_S, 0.0, last + _OVER_S
    while not ends_at or time.monotonic() < ends_at:
        if kill is None and time.monotonic() >= kill_at:
            kill = killing(None, system.kill_leader)
        if kill is not None and kill.done() and port != kill.result():
            port = kill.result()
        if not await system.ask(connections[port], b"x" * 100, _ANSWER_S):
            await asyncio.sleep(_AGAIN_S)
        else:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if kill is not None and kill.done() and not ends_at:
                ends_at = now + _AFTER_S
        if time.monotonic() > deadline:
            raise SystemExit(f"No ack within {_OVER_S:.0f} s after the leader was killed. Run the benchmark again.")
    for connection in connections.values():
        if not connection.is_closed:
            await connection.close()
    return longest


async def _quiet(_: Exception) -> None:
    """Ignore an error of the NATS connection, because the case kills the server on purpose."""


CASES: dict[str, Case] = {
    "idle": idle,
    "acked": publish_with_acks,
    "plain": plain,
    "producer": producer,
    "consume": consume,
    "latency": latency,
    "failover": failover,
}
"""Name -> case, in the order of the run. ``idle`` comes first: after a load, nodes check the stored data. ``failover`` comes last."""


def warm(system: System) -> None:
    """Warm up the processes of ``system`` with publishes, which also stores messages for the readers."""
    _publishers(system, BenchOptions(seconds=_WARM_S), 100, PEAK_WINDOW)


# ---- processes -------------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Return the CPU time (user and system) that the process ``pid`` has used since its start, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def all_cpu_s(pids: Iterable[int]) -> float:
    """Return the total CPU time of the processes ``pids`` since their starts, in seconds. Ended processes are left out."""
    total = 0.0
    for pid in pids:
        try:
            total += cpu_s(pid)
        except FileNotFoundError:
            continue
    return total


def measure_process(words: Sequence[str], pids: Sequence[int]) -> Figures:
    """Run the command ``words``, and return the JSON of its last output line as a dict.

    ``all_cpu_s`` is added: the CPU time of this process and of ``pids`` after the line ``go``, in seconds.
    """
    (figures,) = measured_together([words], pids)
    return figures


def measured_together(commands: Sequence[Sequence[str]], pids: Sequence[int]) -> list[Figures]:
    """Run several commands at the same time, and return the JSON of the last output line of each.

    ``all_cpu_s`` is added to the first result: the CPU time of the commands and of the processes ``pids``, in seconds.
    """
    before = all_cpu_s(pids)
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for words in commands]
    figures: list[Figures] = []
    try:
        for words, one in zip(commands, processes, strict=True):
            assert one.stdout is not None
            last = ""
            for last in one.stdout:
                if last.strip() == "go":
                    before = all_cpu_s(pids)
            if one.wait():
                raise SystemExit(f"The command {' '.join(words[:3])} failed with exit code {one.returncode}.")
            figures.append(json.loads(last))
    finally:
        for one in processes:
            if one.poll() is None:
                one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()
    figures[0]["all_cpu_s"] = sum(run["cpu_s"] for run in figures) + all_cpu_s(pids) - before
    return figures
