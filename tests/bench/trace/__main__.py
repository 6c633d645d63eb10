"""``python -m tests.bench.trace [--nodes N] [--rounds N] [--seconds S] [--short]``: what traces cost, off and on, as ratios.

off / bare: a client that is not traced, and the same code with the places taken out where traces could begin (what is left out is cut
from the source). A node that is not traced has no such places: its replicas and executors are the plain ones.
on / off: every message bears a context that its sender records, in both. On, the client is traced and so are the nodes, whose setting
is switched while they run; spans go to a collector that throws them away. The two come in turns, in the order a b b a; shown are the
medians of the pairs' quotients, and the quarter and three quarters of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from liftpy.client import Client, ProducerOptions, PublishOptions, connect
from liftpy.client.consumer import Consumer
from liftpy.client.lane import Lane
from liftpy.client.spans import DROPPED
from liftpy.trace.budget import SPANS_PER_S
from liftpy.trace.context import TraceContext, traceparent
from sidecar.dev.cluster import DevCluster

WINDOW = 256
STEADY_PER_S = 300
VALUE = b"x" * 200
READ_RECORDS = 100_000
CUTS: tuple[tuple[Any, str, str, str], ...] = (
    (
        Lane,
        "add",
        "        if self.begun is not None:\n            headers = self.begun(gathered.ticket, headers)\n",
        "",
    ),
    (
        Lane,
        "add_many",
        "        if not first and self.begun is not None:\n            gathered.headers[0] = self.begun(gathered.ticket, ())\n"
        "            gathered.has_headers = bool(gathered.headers[0])\n",
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
async def publish(client: Client, seconds: float, headers: list[Any] | None) -> dict[str, float]:
    """At peak: records a second, p99 of acks in ms, the client's processor time for a record."""
    took: list[float] = []
    options = PublishOptions(window=WINDOW)
    async with await client.publisher("traced", options=options) as publisher:
        ends, began_cpu, began = time.monotonic() + seconds, time.process_time(), time.perf_counter()
        while time.monotonic() < ends:
            for _ in range(64):
                sent = time.perf_counter()
                coming = await publisher.send(VALUE, headers=headers)
                coming.add_done_callback(lambda _, sent=sent: took.append(time.perf_counter() - sent))
        await publisher.flush()
    lasted = time.perf_counter() - began
    cpu_us = (time.process_time() - began_cpu) / len(took) * 1e6
    return {"publish": len(took) / lasted, "ack p99 at peak": _p99_ms(took), "client cpu": 1 / cpu_us}


async def steady(client: Client, seconds: float, headers: list[Any] | None) -> dict[str, float]:
    """At a rate that the machine bears: p99 of acks in ms."""
    took: list[float] = []
    async with await client.publisher("traced") as publisher:
        began = time.monotonic()
        for number in range(max(round(seconds * STEADY_PER_S), 20)):
            await asyncio.sleep(max(0.0, began + number / STEADY_PER_S - time.monotonic()))
            sent = time.perf_counter()
            coming = await publisher.send(VALUE, headers=headers)
            coming.add_done_callback(lambda _, sent=sent: took.append(time.perf_counter() - sent))
        await publisher.flush()
    return {"ack p99 at a steady rate": _p99_ms(took)}


async def produce(client: Client, seconds: float, headers: list[Any] | None) -> dict[str, float]:
    """Records a second in batches. ``headers``: of each tenth record, which then goes by itself."""
    count, values = 0, [VALUE] * 1000
    async with client.producer("traced", options=ProducerOptions(begin="anew")) as producer:
        ends, began = time.monotonic() + seconds, time.perf_counter()
        while time.monotonic() < ends:
            if headers is None:
                await producer.send_many(values)
            else:
                for number in range(1000):
                    await producer.send(VALUE, headers=headers if number % 10 == 0 else None)
            count += len(values)
        await producer.flush()
    return {"producer": count / (time.perf_counter() - began)}


async def read(client: Client, records: int) -> dict[str, float]:
    """Records a second, by slices."""
    count, began = 0, time.perf_counter()
    async for piece in client.consume("traced", until="end").batches():
        count += piece.record_count
        if count >= records:
            break
    return {"read": count / (time.perf_counter() - began)}


def _p99_ms(took: list[float]) -> float:
    return sorted(took)[min(round(len(took) * 0.99), len(took) - 1)] * 1000


async def all_of_it(client: Client, seconds: float, headers: list[Any] | None, records: int) -> dict[str, float]:
    """Each figure once."""
    figures = await publish(client, seconds, headers)
    figures |= await steady(client, seconds, headers)
    figures |= await produce(client, seconds, headers)
    return figures | await read(client, records)


# ---- in turns --------------------------------------------------------------------------------------------------------------
Turn = Callable[[], Any]


async def quotients(rounds: int, a: Turn, b: Turn) -> dict[str, list[float]]:
    """Of each figure the quotient b / a, by rounds."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        order = (a, b) if number % 2 == 0 else (b, a)
        by_turn = {turn: await turn() for turn in order}
        for name, value in by_turn[b].items():
            found.setdefault(name, []).append(value / by_turn[a][name])
    return found


def line(title: str, name: str, values: list[float]) -> str:
    """Of a figure, for people."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0], 0, values[0])
    return f"{title}: {name:26} {median(values):.3f}  ({low:.3f}..{high:.3f})"


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
    context = [("traceparent", traceparent(TraceContext(5, 6, 1)))]
    counting, collector, provider = Counting(), Collector(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(counting)
    on_s = 0.0
    async with connect(running.nats_url) as client, connect(running.nats_url, trace=provider) as traced:
        await client.create_stream("traced", "bench.traced")
        async with client.producer("traced") as producer:
            await producer.send_many([VALUE] * records)

        async def without() -> dict[str, float]:
            with bare():
                return await all_of_it(client, seconds, None, records)

        async def off() -> dict[str, float]:
            return await all_of_it(client, seconds, None, records)

        async def switched(text: str) -> None:
            running.change(text)
            for node in running.nodes:
                assert "error" not in await client.reload_settings(node)

        async def sampled_off() -> dict[str, float]:
            await switched("")
            return await all_of_it(client, seconds, context, records)

        async def sampled_on() -> dict[str, float]:
            nonlocal on_s
            await switched(f'trace = "otlp"\ntrace_endpoint = "{collector.url}"\n')
            began = time.monotonic()
            figures = await all_of_it(traced, seconds, context, records)
            on_s += time.monotonic() - began
            return figures

        await off()  # warm
        lines = [line("off / bare", *pair) for pair in (await quotients(rounds, without, off)).items()]
        lines += [line("on / off", *pair) for pair in (await quotients(rounds, sampled_off, sampled_on)).items()]
        assert counting.count <= 2 * SPANS_PER_S * (on_s + rounds), "more spans than the bound"
        dropped = traced.counters.get(DROPPED, 0)
        return [*lines, f"the client made {counting.count / on_s:.0f} spans a second, and left out {dropped / on_s:.0f}"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--short", action="store_true", help="see that it works")
    asked = parser.parse_args()
    rounds, seconds, records = (1, 0.05, 2000) if asked.short else (asked.rounds, asked.seconds, READ_RECORDS)
    with TemporaryDirectory(prefix="liftpy-trace-") as folder, Reading(asked.nodes, Path(folder) / "settings.toml") as running:
        for text in asyncio.run(measured(running, rounds, seconds, records)):
            print(text, flush=True)


if __name__ == "__main__":
    main()
