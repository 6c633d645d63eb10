"""What is frozen. Each part is a function that returns names and their values, as texts.

A value is a short digest where nobody reads it (traces, bytes), and the whole text where a person wants to see the difference (help,
metrics).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click

from tests.freeze.recorded_names import with_recorded_names

REPLICA_EVENTS = 600
Values = dict[str, str]


def digest(data: str | bytes) -> str:
    """Return 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


# simulators


def _replica_seed(seed: int) -> str:
    from tests.simulation.replica.run import run_seed

    outcome = run_seed(seed, REPLICA_EVENTS, trace=True)
    assert outcome.trace is not None
    return digest(with_recorded_names("\n".join([*outcome.trace.lines, outcome.violation or ""])))


def _raft_seed(seed: int) -> str:
    logging.disable(logging.CRITICAL)
    from tests.simulation.raft.group_simulation import Run

    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="liftpy-freeze-", dir=base))
    run = Run(seed, folder)
    try:
        run.execute()
        end = ""
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)
    return digest(repr((sorted(run.ghost.entries.items()), sorted(run.seen.items()), sorted(run.acked.items()), run.now, end)))


def _group_seed(kind: str, seed: int) -> str:
    from tests.simulation.group.__main__ import HISTORIES

    try:
        return digest(repr(sorted(HISTORIES[kind](seed).items())))
    except Exception as error:
        return digest(f"{type(error).__name__}: {error}")


def _seeds(run: Callable[[int], str], count: int, jobs: int) -> Values:
    if jobs < 2 or count < 4:
        return {f"{seed:04}": run(seed) for seed in range(1, count + 1)}
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(run, range(1, count + 1), chunksize=4)
        return {f"{seed:04}": value for seed, value in enumerate(found, 1)}


# bytes


def _anonymous(meaning: object) -> str:
    """Return the repr of a decoded value without class names and without module names: those may change."""
    return re.sub(r"\b[A-Za-z_][\w.]*\(", "(", re.sub(r" at 0x[0-9a-f]+", "", repr(meaning)))


def wire_bytes() -> Values:
    """Return a digest of the bytes, the meaning and the encoding of every sample of every decoder, and of seeded histories.

    The samples are those of the fuzzer: frames, requests, records and files.
    """
    from tests.freeze.histories import message_histories
    from tests.fuzz.decoder import RNG
    from tests.fuzz.registry import all_decoders

    RNG.seed(7)
    values: Values = {}
    for decoder in all_decoders():
        if decoder.name == "raft journal":  # its sample names the number of the journal within the process
            continue
        for number, sample in enumerate(decoder.samples):
            try:
                meaning = decoder.call(bytes(sample))
            except decoder.errors as error:
                values[f"{decoder.name} {number}"] = f"{digest(bytes(sample))} rejected {type(error).__name__}"
                continue
            again = digest(bytes(decoder.again(meaning))) if decoder.again is not None else "-"
            values[f"{decoder.name} {number}"] = f"{digest(bytes(sample))} {again}"
    return values | message_histories()


def protobuf_fields() -> Values:
    """Return number, type, label and bounds of every field of every message, and the values of every enumeration."""
    from liftpy.core.wire import _pb

    values: Values = {}

    def walk(messages: Iterable[Any]) -> Iterator[Any]:
        for message in messages:
            yield message
            yield from walk(message.nested_types)

    for path in sorted(Path(str(_pb.__file__)).parent.glob("*_pb2.py")):
        module = importlib.import_module(f"{_pb.__name__}.{path.stem}")
        for message in walk(module.DESCRIPTOR.message_types_by_name.values()):
            for field in message.fields:
                kind = (
                    field.message_type.full_name if field.message_type else field.enum_type.full_name if field.enum_type else ""
                )
                repeated = "repeated" if field.is_repeated else "optional" if field.has_presence else "plain"
                values[f"{message.full_name}.{field.name}"] = f"{field.number} type {field.type} {repeated} {kind}".strip()
                if field.has_options:
                    values[f"{message.full_name}.{field.name} bounds"] = " ".join(str(field.GetOptions()).split())
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            values |= {f"{enum.full_name}.{value.name}": str(value.number) for value in enum.values}
    return values


def replayed_entries() -> Values:
    """Return the differences between the recorded images of the metadata log and those of this code: none."""
    from tests.replay.corpus import FOLDER, differences

    levels = sorted(int(path.stem.removeprefix("level-")) for path in FOLDER.glob("level-*.digests"))
    return {f"level {level}": "\n".join(differences(level)) or "as recorded" for level in levels}


# command line


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command of the command line with its path."""
    from sidecar.cli.main import liftpy

    def walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                if below is not None:
                    yield from walk((*path, name), below)

    yield from walk(("liftpy",), liftpy)


def command_help() -> Values:
    """Return the help text of every command."""
    values: Values = {}
    for path, command in commands():
        with click.Context(command, info_name=" ".join(path), terminal_width=100, max_content_width=100) as context:
            values[" ".join(path)] = command.get_help(context)
    return values


def _normal(text: str) -> str:
    """Replace what differs between two runs: identifiers, times, ports, durations."""
    text = re.sub(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>", text)
    text = re.sub(r"\b1[0-9]{18}\b", "<ns>", text)
    text = re.sub(r"\b1[0-9]{12}\b", "<ms>", text)
    text = re.sub(r"\b[0-9]{6}-[0-9a-f]{8,16}\b", "<uid>", text)
    text = re.sub(r"\b[0-9a-f]{16,32}\b", "<id>", text)
    text = re.sub(r"\bnats://[\w.:]+", "<nats>", text)
    text = re.sub(r"\b[\w-]{16}(?=\.\d+\b)", "<message>", text)
    text = re.sub(r'"seconds": [\d.]+', '"seconds": <number>', text)
    return re.sub(r"\b\d+(?:\.\d+)? (ms|s)\b", r"<number> \1", text)


# figures


def metric_texts() -> Values:
    """Return kind and help text of every metric that a node or its partitions may show."""
    from sidecar.status import metric_names

    values: Values = {}
    for table, rows in vars(metric_names).items():
        if table.isupper() and isinstance(rows, dict):
            values |= {f"{table}.{name}": repr(row) for name, row in rows.items()}
        elif table in ("INCIDENTS", "ERRORS"):
            values |= {f"{table}.{label}": "label" for label in rows}
    return values


# the page, and the client's cases, on a real cluster


PAGE_VIEWS = ("cluster", "node/n1", "stream/orders", "groups", "services", "events", "history", "timeline", "live")


def _shape(value: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each place of a JSON document: its path, and the type of its value. The entries of a list count as one."""
    if isinstance(value, dict):
        for name, entry in value.items():
            name = re.sub(r"^(n\d+|\d+)$", "*", name)
            yield from _shape(entry, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield f"{path}: list"
        for entry in value:
            yield from _shape(entry, f"{path}[]")
    elif isinstance(value, str | bool):
        yield f"{path}: {type(value).__name__}"
    else:
        yield f"{path}: number or null"  # a rate is null until the node has looked twice


def page_shapes() -> Values:
    """Return the paths and types of the JSON of each view of the page, for three nodes and one stream with records."""
    import urllib.request

    from liftpy.client import sync
    from sidecar.dev.cluster import DevCluster

    with DevCluster(3) as cluster, sync.connect(cluster.nats_url, cluster.namespace) as client:
        client.create_stream("orders", "shop.orders", partitions=2)
        for key in (b"a", b"b", b"c"):
            client.publish("orders", b"value", key=key)

        def read(view: str) -> Any:
            address = f"{cluster.nodes['n1'].status_url}/api/{view}{'' if view == 'live' else '.json'}"
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.readline().decode() if view == "live" else answer.read().decode()
            return json.loads(text.removeprefix("data: "))

        found: dict[str, set[str]] = {view: set() for view in PAGE_VIEWS}
        with urllib.request.urlopen(f"{cluster.nodes['n1'].status_url}/api/live", timeout=30) as live:
            for _ in range(8):  # some entries are there only after the node has looked again
                while not live.readline().startswith(b"data: "):
                    pass
                for view in PAGE_VIEWS:
                    found[view].update(_shape(read(view)))
        return {view: "\n".join(sorted(lines)) for view, lines in found.items()}


def client_cases() -> Values:
    """Return the result of each of the client's conformance cases, on a cluster in memory and on real nodes."""
    import asyncio

    import nats

    from liftpy.client import connect, sync
    from liftpy.testing.memory import memory_cluster
    from sidecar.dev.cluster import DevCluster
    from tests.conformance.client_cases import CASES, Place
    from tests.conformance.group_cases import GROUP_CASES
    from tests.conformance.queue_cases import QUEUE_CASES
    from tests.conformance.quota_cases import QUOTA_CASES

    values: Values = {}

    async def run(kind: str, nc: Any, open_client: Callable[[], Any], open_sync: Callable[[], Any]) -> None:
        async with open_client() as client:
            for body in [*CASES, *GROUP_CASES, *QUEUE_CASES, *QUOTA_CASES]:
                place = Place(client, nc, f"same-{body.__name__.replace('_', '-')[:40]}", open_client, open_sync)
                try:
                    await asyncio.wait_for(body(place), 60)
                    result = "passed"
                except Exception as error:
                    result = _normal(repr(error))
                values[f"{kind} {body.__name__}"] = result

    async def on_nodes(url: str, namespace: str) -> None:
        nc = await nats.connect(url)
        await run("nodes", nc, lambda: connect(url, namespace), lambda: sync.connect(url, namespace))
        await nc.close()

    async def in_memory() -> None:
        async with memory_cluster() as cluster, cluster.nats() as nc:
            await run("memory", nc, cluster.client, cluster.sync_client)

    asyncio.run(in_memory())
    with DevCluster(3) as nodes:
        asyncio.run(on_nodes(nodes.nats_url, nodes.namespace))
    return values


PARTS: dict[str, Callable[[int, int], Values]] = {
    "wire": lambda seeds, jobs: wire_bytes(),
    "protobuf": lambda seeds, jobs: protobuf_fields(),
    "replay": lambda seeds, jobs: replayed_entries(),
    "help": lambda seeds, jobs: command_help(),
    "metrics": lambda seeds, jobs: metric_texts(),
    "page": lambda seeds, jobs: page_shapes(),
    "client": lambda seeds, jobs: client_cases(),
    "replica": lambda seeds, jobs: _seeds(_replica_seed, 10 * seeds, jobs),
    "raft": lambda seeds, jobs: _seeds(_raft_seed, seeds, jobs),
    "members": lambda seeds, jobs: _seeds(partial(_group_seed, "members"), seeds, jobs),
    "queues": lambda seeds, jobs: _seeds(partial(_group_seed, "queues"), seeds, jobs),
    "ordered": lambda seeds, jobs: _seeds(partial(_group_seed, "ordered"), seeds, jobs),
}
"""Name of a part to the function that makes it, from the number of seeds (ten times as many for the replica) and of processes."""
