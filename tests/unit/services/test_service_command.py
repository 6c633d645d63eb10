"""Test what `liftpy service` loads, and what it rejects before it connects."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError, DataLossError, InvalidNameError, LiftError, NotFoundError, UnavailableError
from liftpy.service.settings import ServiceSettings
from sidecar.cli import main, service
from sidecar.runtime.settings import Target
from tests.each import each
from tests.examples.bank import Bank


@each(
    ("wrong", "error"),
    [
        ({"service": "a b"}, InvalidNameError),
        ({"stream": "../x"}, InvalidNameError),
        ({"node": ""}, InvalidNameError),
        ({"output_stream": "x.y"}, InvalidNameError),
        ({"output_stream": "in"}, ConfigError),
        ({"service": "groups"}, ConfigError),  # it would answer for the coordinators of groups
    ],
)
def test_service_settings_that_contradict_each_other_are_rejected(wrong: dict[str, Any], error: type[Exception]) -> None:
    right: dict[str, Any] = {"service": "bank", "stream": "in", "node": "n1", "data": Path("x")}
    ServiceSettings(**right)
    with pytest.raises(error):
        ServiceSettings(**{**right, **wrong})


def test_service_command_without_a_required_flag_fails_with_the_flag_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(["service", "tests.examples.bank:Bank", "--stream", "in", "--node", "n1"])
    assert left.value.code == 2
    assert "--data" in capsys.readouterr().err


# ---- several partitions ------------------------------------------------------------------------------------------------------


class Instances:
    """A replacement of ServiceHost. It records the instance of each partition until it is stopped or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: dict[int, asyncio.Future[None]] = {}
        self.closed = 0
        self.ended: list[tuple[int, str]] = []
        self.connections = 0

        self.refusals = 0
        """Number of attempts that find no NATS server."""

        async def connect(*_: object, **__: object) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise UnavailableError("connection refused")
            self.connections += 1
            return SimpleNamespace(close=self.close)

        monkeypatch.setattr(service, "open_connection", connect)
        monkeypatch.setattr(service, "_CONNECT_AGAIN_S", 0)
        monkeypatch.setattr(service, "Transport", lambda connection: connection)
        monkeypatch.setattr(service, "ServiceHost", self.host)

    async def close(self) -> None:
        self.closed += 1

    def host(self, factory: Any, settings: ServiceSettings, transport: Any, namespace: str) -> Any:
        done = self.running[settings.partition] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await done
                self.ended.append((settings.partition, "stopped"))
            except LiftError as error:
                self.ended.append((settings.partition, error.code))
                raise

        return SimpleNamespace(run=run, stop=lambda _: done.done() or done.set_result(None))

    def begin(self, partitions: tuple[int, ...] | None) -> asyncio.Task[None]:
        settings = ServiceSettings("bank", "in", "n1", Path("x"))
        return asyncio.create_task(service._run(lambda: Bank(), settings, partitions, Target()))

    async def until(self, partitions: set[int]) -> None:
        async with asyncio.timeout(60):
            while set(self.running) != partitions:
                await asyncio.sleep(0)


async def test_service_command_stops_all_instances_when_an_instance_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = Instances(monkeypatch)
    task = instances.begin((0, 2, 5))
    await instances.until({0, 2, 5})
    instances.running[2].set_exception(DataLossError("the log begins too late"))
    with pytest.raises(DataLossError, match="begins too late"):
        await task
    assert instances.ended[0] == (2, "DATA_LOSS")
    assert sorted(instances.ended[1:]) == [(0, "stopped"), (5, "stopped")], "with their snapshots"
    assert (instances.connections, instances.closed) == (3, 3), "each has its own"


async def test_service_command_stops_all_instances_on_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = Instances(monkeypatch)
    task = instances.begin((0, 1))
    await instances.until({0, 1})
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 60)
    assert sorted(instances.ended) == [(0, "stopped"), (1, "stopped")]


async def test_service_command_for_all_partitions_waits_until_the_stream_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = Instances(monkeypatch)
    told: list[Any] = [
        NotFoundError("No stream matches in. Check the names with `liftpy stream list`."),
        UnavailableError("no controller answers"),
        (),
        ("p0", "p1", "p2"),
    ]

    class Asked:
        def __init__(self, *_: Any, owns_connection: bool) -> None:
            assert not owns_connection

        async def stream(self, name: str) -> Any:
            found = told.pop(0)
            if isinstance(found, Exception):
                raise found
            return SimpleNamespace(partitions=found)

    monkeypatch.setattr(service, "Client", Asked)
    task = instances.begin(None)
    await instances.until({0, 1, 2})
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert (instances.connections, instances.closed) == (4, 4)


async def test_service_command_without_a_nats_server_logs_it_once_and_starts_when_the_server_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instances = Instances(monkeypatch)
    instances.refusals = 3
    task = instances.begin((0,))
    await instances.until({0})
    assert caplog.messages == ["NATS connection failed error=connection refused: retrying"]
    instances.running[0].set_result(None)
    await task
