"""Test the nats-server of ``liftpy dev`` with a scripted process that never listens."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import UnavailableError
from sidecar.dev import nats_server
from sidecar.dev.nats_server import NatsServer


class DeafProcess:
    """Stand in for a nats-server that never listens and ignores SIGTERM."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")
        self.code = -9

    def wait(self, timeout_s: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("x", timeout_s)
        return self.code


def test_nats_server_that_never_listens_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = DeafProcess()

    def spawn(*_: Any, **__: Any) -> DeafProcess:
        return process

    monkeypatch.setattr(nats_server, "spawn", spawn)
    monkeypatch.setattr(nats_server, "find_nats_server", lambda: Path("/bin/nats-server"))
    monkeypatch.setattr(nats_server, "_START_TIMEOUT_S", 0.02)
    with pytest.raises(UnavailableError, match="none"):
        NatsServer().start()
    assert process.calls == ["terminate", "kill"]
