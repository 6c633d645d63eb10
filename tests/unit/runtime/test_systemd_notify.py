"""Test notifications to systemd: start timeout, ready, watchdog, reload and stop."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from liftpy.core.observe.node_health import Check
from sidecar.runtime import supervisor as module
from sidecar.runtime.settings import supervisor_of
from sidecar.runtime.supervisor import Supervisor

WELL = [Check("tasks")]


class There:
    """Provide the other end of the notification socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.heard: list[str] = []

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition(self.heard):
                try:
                    self.heard.append(self.socket.recv(4096).decode())
                except BlockingIOError:
                    await asyncio.sleep(0.001)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    monkeypatch.setattr(module, "_CHECK_INTERVAL_S", 0.002)
    made = There(Path("notify"))
    yield made
    made.socket.close()


async def test_systemd_start_timeout_is_extended_during_a_long_start_until_ready(there: There) -> None:
    recovered, ready, live = 1, [Check("partitions", "they are not opened yet")], WELL
    telling = Supervisor("notify", watchdog_s=0.03)
    telling.start(lambda: live, lambda: ready, lambda: f"recovering log {recovered} of 3")
    for recovered in (1, 2, 3):
        wanted = f"STATUS=recovering log {recovered} of 3\nEXTEND_TIMEOUT_USEC=30000000"
        await there.until(lambda heard, wanted=wanted: wanted in heard)
    stands_still = there.heard.count("WATCHDOG=1") + 3
    await there.until(lambda heard: heard.count("WATCHDOG=1") >= stands_still)
    assert [text for text in there.heard if "EXTEND" in text] == [
        f"STATUS=recovering log {number} of 3\nEXTEND_TIMEOUT_USEC=30000000" for number in (1, 2, 3)
    ], "a start that stands still gets no more time"
    assert not any("READY" in text for text in there.heard)
    ready = WELL
    await there.until(lambda heard: "READY=1\nSTATUS=ready" in heard)
    after = len(there.heard)
    await there.until(lambda heard: heard[after:].count("WATCHDOG=1") >= 2)
    live = [Check("flush", "it hangs")]
    telling.stopping()
    await there.until(lambda heard: heard[-1] == "STOPPING=1\nSTATUS=stopping")
    assert sum("READY" in text for text in there.heard) == 1


async def test_systemd_watchdog_gets_no_ping_from_an_unhealthy_node(there: There) -> None:
    telling = Supervisor("notify", watchdog_s=0.006)
    telling.start(lambda: [Check("flush", "it hangs")], lambda: WELL, str)
    await there.until(lambda heard: any("READY" in text for text in heard))
    await asyncio.sleep(0.05)
    telling.stopping()
    await there.until(lambda heard: heard[-1].startswith("STOPPING"))
    assert "WATCHDOG=1" not in there.heard


async def test_systemd_notify_without_socket_sends_nothing_and_a_missing_socket_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nobody = Supervisor("")
    nobody.start(list, list, str)
    nobody.stopping()
    assert not caplog.records
    Supervisor("/nowhere/at/all").notify("READY=1")
    assert "supervisor not notified state=READY=1" in caplog.text


def test_systemd_watchdog_of_another_process_gets_no_ping() -> None:
    own = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "15000000"}
    assert supervisor_of(own) == ("@x", 15.0)
    assert supervisor_of({**own, "WATCHDOG_PID": str(os.getpid())}) == ("@x", 15.0)
    assert supervisor_of({**own, "WATCHDOG_PID": "1"}) == ("@x", 0.0)
    assert supervisor_of({}) == ("", 0.0)


async def test_systemd_reload_notification_contains_its_start_time(there: There) -> None:
    """systemd, with Type=notify-reload, waits for READY=1 of a time behind that."""
    telling, before_us = Supervisor("notify"), time.monotonic_ns() // 1000
    telling.start(lambda: WELL, lambda: WELL, str)
    await there.until(lambda heard: len(heard) == 1)
    telling.reloading()
    telling.reloaded()
    await there.until(lambda heard: len(heard) == 3)
    telling.stopping()
    first, began = there.heard[1].split("\nMONOTONIC_USEC=")
    assert (first, there.heard[2]) == ("RELOADING=1", "READY=1\nSTATUS=ready")
    assert before_us <= int(began) <= time.monotonic_ns() // 1000


async def test_systemd_reload_of_a_node_that_starts_or_stops_does_not_report_it_as_ready(there: There) -> None:
    ready, telling = [Check("partitions", "they are not opened yet")], Supervisor("notify")
    telling.start(lambda: WELL, lambda: ready, str)
    await there.until(lambda heard: len(heard) == 1)
    telling.reloading()
    telling.reloaded()
    ready = WELL
    await there.until(lambda heard: len(heard) == 2)
    telling.reloading()
    telling.stopping()
    telling.reloaded()
    telling.notify("END=1")
    await there.until(lambda heard: heard[-1] == "END=1")
    assert [text.splitlines()[0] for text in there.heard] == [
        "STATUS=partitions: they are not opened yet", "READY=1", "RELOADING=1", "STOPPING=1", "END=1",
    ]  # fmt: skip


async def test_systemd_notify_supports_abstract_sockets_and_ignores_a_full_socket(
    there: There, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"liftpy-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0{name}")
        abstract.settimeout(10)
        Supervisor(f"@{name}").notify("READY=1")
        assert abstract.recv(100) == b"READY=1"
    telling = Supervisor("notify")

    def more_than_he_takes() -> None:
        while "supervisor not notified state=STATUS=x" not in caplog.text:
            telling.notify("STATUS=x")

    full = threading.Thread(target=more_than_he_takes, daemon=True)
    full.start()
    await asyncio.to_thread(full.join, 10)
    assert not full.is_alive(), "a supervisor that stands still holds no node up"


async def test_systemd_notify_after_the_stopping_message_sends_nothing(there: There) -> None:
    telling = Supervisor("notify", watchdog_s=0.003)
    earlier = asyncio.all_tasks()
    telling.start(lambda: WELL, lambda: WELL, str)
    await there.until(lambda heard: "WATCHDOG=1" in heard)
    telling.stopping()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == earlier
