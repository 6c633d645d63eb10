"""Run commands whose cluster is the state machine of the metadata group, without NATS."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from liftpy.client import Client
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from tests.unit.cli.conftest import Run
from tests.unit.metadata.cluster_driver import Driver


class Wire:
    """A transport whose other end is the state machine. ``described`` is called before each description of the cluster or a stream."""

    def __init__(self, driver: Driver, described: Callable[[], Any] | None = None) -> None:
        self.driver, self.described = driver, described
        self.counters: Counter[str] = Counter()

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        request = frames.decode(payload, pb.ControlRequest)
        if self.described is not None and request.WhichOneof("request") in ("describeCluster", "describeStream"):
            self.described()
        self.driver.now_ns += 1
        request.timeNs = self.driver.now_ns
        return frames.seal(self.driver.apply(request.SerializeToString()))


def client_of(driver: Driver, described: Callable[[], Any] | None = None) -> Client:
    return Client(Wire(driver, described), Subjects("liftpy"), owns_connection=False)  # type: ignore[arg-type]


class Commands:
    """Calls run a command. ``json`` returns what it prints with ``--json``."""

    def __init__(self, client: Client, modules: tuple[ModuleType, ...], monkeypatch: Any, capsys: Any) -> None:
        self._run = Run(capsys)
        for module in modules:
            monkeypatch.setattr(module, "with_client", lambda _target, work, **_: asyncio.run(work(client)))
        monkeypatch.setenv("COLUMNS", "160")

    def __call__(self, *words: str) -> tuple[int, str]:
        """Return the exit code and the output."""
        return self._run.joined(*words)

    def json(self, *words: str) -> Any:
        code, said = self(*words, "--json")
        assert code == 0, said
        return json.loads(said)
