"""Replicated services beside the nodes that are struck: their state must be a replay of the log, their outputs each there once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.core.wire.batch import split_batches
from liftpy.service import Identity, Outbox, ServiceMachine
from tests.examples.chain import Chain
from tests.examples.processes import snapshot_path, start_service

SERVICE = "chain"
SNAPSHOT_EVERY = 100
_STORED_WITHIN_S = 10.0


@dataclass(slots=True)
class ServicesVerdict:
    """What was found. ``problems``: must be empty."""

    position: int = 0
    """Of the snapshot that was compared, on every node."""
    outputs: int = 0
    problems: list[str] = field(default_factory=list)


class Services:
    """One process beside each node, over ``stream``, with its outputs in ``output``. ``urls``: node -> its NATS server."""

    def __init__(self, stream: str, output: str, data: Path, urls: Mapping[str, str]) -> None:
        self._stream = stream
        self._output = output
        self._data = data
        self._urls = urls
        data.mkdir(exist_ok=True)
        self._processes: dict[str, subprocess.Popen[Any]] = {}

    def start(self, nodes: Iterable[str]) -> None:
        """Start those that do not run; they register by themselves."""
        for node in nodes:
            process = self._processes.get(node)
            if node in self._urls and (process is None or process.poll() is not None):
                self._processes[node] = start_service(
                    "tests.examples.chain:Chain",
                    stream=self._stream,
                    node=node,
                    data=self._data,
                    output=self._output,
                    snapshot_interval_records=SNAPSHOT_EVERY,
                    nats_url=self._urls[node],
                )

    def kill(self, nodes: Iterable[str]) -> None:
        """kill -9 of those beside ``nodes``."""
        killed = [self._processes[node] for node in nodes if node in self._processes]
        for process in killed:
            process.kill()
        for process in killed:
            process.wait(10)

    def stop(self) -> None:
        """Kill all."""
        self.kill(self._urls)

    def ended(self) -> list[str]:
        """Nodes beside which the service has ended, with its last words."""
        return [
            f"{node}: {(self._data / f'{node}.log').read_text()[-500:]}"
            for node, process in self._processes.items()
            if process.poll() is not None
        ]

    def check(self, uid: str, log: bytes, written: Iterable[bytes | None]) -> ServicesVerdict:
        """Compare every node's newest snapshot with a replay of ``log`` (all segments), and the outputs with what it emits."""
        verdict = ServicesVerdict()
        machine, last = replay(self._stream, uid, log)
        verdict.position, expected = last
        for node in self._urls:
            path = snapshot_path(self._data, node, SERVICE, self._stream, uid, verdict.position)
            if verdict.position and not _exists_in_time(path):
                verdict.problems.append(f"the service beside {node} has no snapshot at {verdict.position}")
            elif verdict.position and path.read_bytes() != expected:
                verdict.problems.append(f"the service beside {node} differs from a replay of the log at {verdict.position}")
        assert machine.outbox is not None
        wanted = [output.value for output in machine.outbox.read(0, machine.outbox.output_count)]
        found = list(written)
        verdict.outputs = len(found)
        if found != wanted:
            same = next((n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), "their ends")
            verdict.problems.append(f"{len(found)} outputs instead of {len(wanted)}; they differ at {same}")
        return verdict


def _exists_in_time(path: Path) -> bool:
    """A snapshot is stored beside the work."""
    deadline = time.monotonic() + _STORED_WITHIN_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def replay(stream: str, uid: str, log: bytes) -> tuple[ServiceMachine, tuple[int, bytes]]:
    """The machine after all of ``log``, and (position, bytes) of its last snapshot."""
    machine = ServiceMachine(
        Chain(),
        Identity(SERVICE, stream, uid, 0),
        snapshot_interval_records=SNAPSHOT_EVERY,
        outbox=Outbox(f"{uid}/0", max_records=1_000_000),
    )
    machine.start(None)
    last = (0, b"")
    for batch in split_batches(memoryview(log)):
        for snapshot in machine.apply(list(batch.records())).snapshots:
            last = (snapshot.position, snapshot.encode())
    return machine, last
