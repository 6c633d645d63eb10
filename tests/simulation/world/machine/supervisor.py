"""A supervisor such as systemd: nodes report to it what they do. Their reports have to be true."""

from __future__ import annotations

import re
import socket
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.scheduler import Process

WATCHDOG_S = 2.0
_OPENING = re.compile(r"STATUS=opening partitions, (\d+) left")


class _Socket:
    """Socket of a node to its supervisor."""

    def __enter__(self) -> _Socket:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def sendto(self, data: bytes, _: str) -> None:
        """Receive one report of the process that runs."""
        scheduler = scheduling.active
        assert scheduler is not None
        process = scheduler.process
        assert process is not None
        for word in data.decode().split("\n"):
            process.reports[word.partition("=")[0]] = scheduler.passed_s
            scheduler.trace("supervisor", process.name, word)
            if opening := _OPENING.match(word):
                partitions = process.program.partitions
                if partitions is None or partitions.opening_count != int(opening[1]):
                    scheduler.violated(f"{process.name} tells its supervisor: {word}")


def adapt(supervisor: Any, node: Any) -> None:
    """Give the modules of the node a supervisor."""
    sockets = SimpleNamespace(socket=lambda *_: _Socket(), AF_UNIX=0, SOCK_DGRAM=0, SOCK_NONBLOCK=0)
    setattr(supervisor, "socket", SimpleNamespace(**vars(socket) | vars(sockets)))  # noqa: B010
    setattr(node, "supervisor_of", lambda: ("supervisor", WATCHDOG_S))  # noqa: B010


def wrong_reports(process: Process) -> str:
    """Return what a process in a quiet cluster has not reported, '' if its supervisor is satisfied."""
    now_s = process.scheduler.passed_s
    if "READY" not in process.reports:
        return "it has not reported that it is ready"
    if now_s - process.reports.get("WATCHDOG", 0.0) > WATCHDOG_S:
        return "its watchdog has ended"
    return ""
