"""``python -m tests.bench.trace [--nodes N] [--rounds N] [--seconds S] [--short]``: what traces cost, off and on, as ratios.

off / bare: a client that is not traced, and the same code with the places taken out where traces could begin (what is left out is cut
from the source). A node that is not traced has no such places: its replicas and executors are the plain ones.
on / off: every message bears a context that its sender records, in both. On, the client is traced and so are the nodes, whose setting
is switched while they run; spans go to a collector that throws them away. The two come in turns, in the order a b b a; shown are the
medians of the pairs' quotients, and between what the middle half of them lies. ``cpu``: of the client and the nodes for a record.
On a busy machine the quotients say nothing of half a percent. So the last line says what the place itself takes, the look whether
there is a trace to begin: once a batch; it is compared with what a record costs, as if each were a batch of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import textwrap
import threading
import time
import timeit
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from liftpy.client import Client, PublishOptions, connect
from liftpy.client.consumer import Consumer
from liftpy.client.partition_queue import PartitionQueue
from liftpy.client.traced import DROPPED
from liftpy.config import NS_PER_S
from liftpy.core.observe.trace_context import SPANS_PER_S, TraceContext, traceparent
from sidecar.dev.cluster import DevCluster

WINDOW = 256
STEADY_PER_S = 300
VALUE = b"x" * 200
READ_RECORDS = 50_000
LOOKS = 100_000
Headers = list[tuple[str, str | bytes]] | None
CUTS: tuple[tuple[Any, str, str, str], ...] = (
    (
        PartitionQueue,
        "add",
        "        if self.on_begin is not None:\n            headers = self.on_begin(filling.ticket, headers)\n",
        "",
    ),
    (
        PartitionQueue,
        "add_many",
        "        if not first and self.on_begin is not None:\n            filling.headers[0] = self.on_begin(filling.ticket, ())\n"
        "            filling.has_headers = bool(filling.headers[0])\n",
        "",
    ),
    (Consumer, "batches", "self._unfolding(whole)", "whole"),
    (Consumer, "records", "self._unfolding(unfold)", "unfold"),
)
"""(class, method, text, what it would be without traces)."""


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """The client without the places where traces could begin."""
    shipped = [(cls, name, getattr(cls, name)) for cls, name, _, _ in CUTS]
    try:
        for cls, name, text, instead in CUTS:
            source = textwrap.dedent(inspect.getsource(getattr(cls, name)))
            assert source.count(text) == 1, f"{name} is another: cut it anew"
            made: dict[str, Any] = {}
            exec(compile(source.replace(text, instead), name, "exec"), inspect.getmodule(cls).__dict__, made)
            setattr(cls, name, made[name])
        yield
    finally:
        for cls, name, function in shipped:
            setattr(cls, name, function)


class Collector:
    """Takes spans and throws them away."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True).start()


class Counting(SpanProcessor):
    """How many spans the client has made."""

    def __init__(self) -> None:
        self.count = 0

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        self.count += 1


# ---- what is measured ------------------------------------------------------------------------------------------------------
class Work:
    """A cluster under load. ``cpu``: the time of this thread and of the nodes, in s."""

    def __init__(self, running: DevCluster, seconds: float, records: int) -> None:
        self._pids = [node.pid for node in running.nodes.values()]
        self._seconds = seconds
        self._records = records

    def cpu_s(self) -> float:
        """So far."""
        spent = time.thread_time()
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    spent += int((task / "schedstat").read_text().split()[0]) / NS_PER_S
        return spent

    async def publish(self, client: Client, headers: Headers) -> dict[str, float]:
        """At peak, ``WINDOW`` in flight."""
        took: list[float] = []
        async with client.publisher("traced", options=PublishOptions(window=WINDOW)) as publisher:
            ends, began_cpu, began = time.monotonic() + self._seconds, self.cpu_s(), time.perf_counter()
            while time.monotonic() < ends:
                for _ in range(64):
                    sent = time.perf_counter()
                    coming = await publisher.send(VALUE, headers=headers)
                    coming.add_done_callback(lambda _, sent=sent: took.append(time.perf_counter() - sent))
            await publisher.flush()
            rate = len(took) / (time.perf_counter() - began)
            return {"rate": rate, "cpu": (self.cpu_s() - began_cpu) / len(took), "ack p99": _p99(took)}

    async def steady(self, client: Client, headers: Headers) -> dict[str, float]:
        """At a rate that the machine bears."""
        took: list[float] = []
        async with client.publisher("traced") as publisher:
            began = time.monotonic()
            for number in range(max(round(self._seconds * STEADY_PER_S), 20)):
                await asyncio.sleep(max(0.0, began + number / STEADY_PER_S - time.monotonic()))
                sent = time.perf_counter()
                coming = await publisher.send(VALUE, headers=headers)
                coming.add_done_callback(lambda _, sent=sent: took.append(time.perf_counter() - sent))
            await publisher.flush()
        return {"ack p99": _p99(took)}

    async def produce(self, client: Client, headers: Headers) -> dict[str, float]:
        """In batches; where messages bear headers, each tenth record by itself."""
        count, values = 0, [VALUE] * 1000
        async with client.producer("traced") as producer:
            ends, began_cpu, began = time.monotonic() + self._seconds, self.cpu_s(), time.perf_counter()
            while time.monotonic() < ends:
                await producer.send_many(values)
                count += len(values)
                for _ in range(100 if headers else 0):
                    await producer.send(VALUE, headers=headers)
                    count += 1
            await producer.flush()
            return {"rate": count / (time.perf_counter() - began), "cpu": (self.cpu_s() - began_cpu) / count}

    async def read(self, client: Client, headers: Headers) -> dict[str, float]:
        """By slices, from the beginning of the stream that has headers or of the one that has none."""
        count, began_cpu, began = 0, self.cpu_s(), time.perf_counter()
        async for piece in client.consume("traced" if headers is None else "bearing", until="end").batches():
            count += piece.record_count
            if count >= self._records:
                break
        return {"rate": count / (time.perf_counter() - began), "cpu": (self.cpu_s() - began_cpu) / count}

    async def fill(self, client: Client, headers: Headers) -> None:
        """What is read: each tenth record bears headers in one of them."""
        async with client.producer("traced") as plain, client.producer("bearing") as bearing:
            await plain.send_many([VALUE] * self._records)
            for number in range(self._records):
                await bearing.send(VALUE, headers=headers if number % 10 == 0 else None)


def _p99(took: list[float]) -> float:
    return sorted(took)[min(round(len(took) * 0.99), len(took) - 1)]


def look_s() -> float:
    """What it takes to see that nothing is traced: the least of ten measurements, less what the loop takes."""

    class Untraced:
        begun = None

        def __init__(self) -> None:
            self.on_begin = None

    def least(statement: str) -> float:
        return min(timeit.repeat(statement, number=LOOKS, repeat=10, globals={"lane": Untraced()})) / LOOKS

    return max(least("if lane.begun is not None: pass") - least("pass"), 0.0)


# ---- in turns --------------------------------------------------------------------------------------------------------------
Turn = Callable[[str], Awaitable[dict[str, float]]]
KINDS = ("publish", "steady", "produce", "read")


async def quotients(title: str, rounds: int, a: Turn, b: Turn) -> list[str]:
    """A line for each figure: b / a."""
    lines = []
    for kind in KINDS:
        each: dict[str, list[tuple[float, float]]] = {}
        for number in range(rounds):
            first, second = (a, b) if number % 2 == 0 else (b, a)
            one, two = await first(kind), await second(kind)
            of_a, of_b = (one, two) if first is a else (two, one)
            for name in of_a:
                each.setdefault(name, []).append((of_a[name], of_b[name]))
        lines += [f"{title}: {kind:8} {name:8} {_quotient(pairs)}" for name, pairs in each.items()]
    return lines


def _quotient(pairs: list[tuple[float, float]]) -> str:
    """The median of the quotients, and between what half of them lie."""
    by_pair = sorted(b / a for a, b in pairs)
    low, _, high = quantiles(by_pair, n=4) if len(by_pair) > 1 else (by_pair[0], 0, by_pair[0])
    return f"{median(by_pair):.3f}  ({low:.3f}..{high:.3f})"


class Reading(DevCluster):
    """Nodes that read the ``file`` of their settings again."""

    def __init__(self, nodes: int, file: Path) -> None:
        super().__init__(nodes)
        self.file = file
        self.change("")

    def change(self, text: str) -> None:
        """What the file says."""
        self.file.write_text(text)

    def _command(self, name: str, controllers: list[str]) -> list[str]:
        return [*super()._command(name, controllers), "--config", str(self.file)]


async def measured(running: Reading, rounds: int, seconds: float, records: int) -> list[str]:
    """The lines."""
    context: Headers = [("traceparent", traceparent(TraceContext(5, 6, 1)))]
    counting, collector, provider = Counting(), Collector(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(counting)
    work, on_s = Work(running, seconds, records), 0.0
    record_cpu_s: list[float] = []
    async with connect(running.nats_url) as client, connect(running.nats_url, trace=provider) as traced:
        for name in ("traced", "bearing"):
            await client.create_stream(name, f"bench.{name}")
        await work.fill(client, context)

        async def without(kind: str) -> dict[str, float]:
            with bare():
                return await off(kind)

        async def off(kind: str) -> dict[str, float]:
            figures = dict(await getattr(work, kind)(client, None))
            if kind == "publish":
                record_cpu_s.append(figures["cpu"])
            return figures

        async def switched(text: str) -> None:
            running.change(text)
            for node in running.nodes:
                assert "error" not in await client.admin.reload_settings(node)

        async def sampled_off(kind: str) -> dict[str, float]:
            await switched("")
            return dict(await getattr(work, kind)(client, context))

        async def sampled_on(kind: str) -> dict[str, float]:
            nonlocal on_s
            await switched(f'trace = "otlp"\ntrace_endpoint = "{collector.url}"\n')
            began = time.monotonic()
            figures = dict(await getattr(work, kind)(traced, context))
            on_s += time.monotonic() - began
            return figures

        lines = await quotients("off / bare", rounds, without, off)
        lines += await quotients("on / off", rounds, sampled_off, sampled_on)
        assert counting.count <= 2 * SPANS_PER_S * (on_s + len(KINDS) * rounds), "more spans than the bound"
        dropped = traced.counters.get(DROPPED, 0)
        took_s, of_s = look_s(), median(record_cpu_s)
        lines.append(
            f"off: a look takes {1e9 * took_s:.0f} ns, {took_s / of_s:.3%} of what a published record costs ({1e6 * of_s:.1f} us)"
        )
        return [*lines, f"the client made {counting.count / on_s:.0f} spans a second, and left out {dropped / on_s:.0f}"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--short", action="store_true", help="see that it works")
    asked = parser.parse_args()
    rounds, seconds, records = (1, 0.02, 2000) if asked.short else (asked.rounds, asked.seconds, READ_RECORDS)
    with TemporaryDirectory(prefix="liftpy-trace-") as folder, Reading(asked.nodes, Path(folder) / "settings.toml") as running:
        for text in asyncio.run(measured(running, rounds, seconds, records)):
            print(text, flush=True)


if __name__ == "__main__":
    main()
