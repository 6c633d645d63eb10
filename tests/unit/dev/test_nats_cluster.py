"""Test a NATS cluster whose chosen ports are taken before the servers listen."""

from __future__ import annotations

from typing import ClassVar

import pytest

from liftpy.errors import UnavailableError
from sidecar.bench import systems


class _Server:
    """Raise the remaining errors at each start."""

    fail: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []

    def __init__(self, config: str) -> None:
        self._config = config

    def start(self) -> None:
        if self.fail:
            raise UnavailableError(self.fail.pop())

    def stop(self) -> None:
        self.stopped.append(self._config)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "NatsServer", _Server)
    _Server.fail.clear()
    _Server.stopped.clear()


def test_nats_cluster_chooses_new_ports_when_a_port_is_taken() -> None:
    _Server.fail.extend(["listen tcp 127.0.0.1:4: bind: address already in use"] * 3)
    with systems.NatsCluster(3) as cluster:
        assert len(cluster.servers) == 3
    assert len(_Server.stopped) == 3


@pytest.mark.parametrize(("said", "times"), [("none", 1), ("address already in use", 4)])
def test_nats_cluster_start_raises_after_repeated_port_errors_or_another_error(said: str, times: int) -> None:
    _Server.fail.extend([said] * times)
    with pytest.raises(UnavailableError, match=said), systems.NatsCluster(3):
        pass
    assert _Server.fail == []
