"""Test the decision record of a skipped record, and rejected requests of operators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.bad_records import SkipDecision, Unit
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, service_pb2
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError, NotFoundError, UnavailableError
from liftpy.service import Identity
from liftpy.service.bad_record_writer import DecisionWriter
from sidecar.cli.service import pass_over, store_now
from tests.flat_client import FlatClient

WHO = Identity("bank", "in", "u1", 1)
BAD = Record(17, 5, b"k", b"bad", (("a", b"1"),), "", None, 3)


class Cluster(FlatClient):
    """Streams with two partitions each. Publishes are recorded and acknowledged."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, client_pb2.Message]] = []
        self.told: list[tuple[str, service_pb2.SnapshotRequest]] = []
        self.refused = ""
        self.expected: list[Any] = []
        self.position, self.snapshot = 17, 10
        self.log_start = 5
        self.log_start_after_publish = 5
        self.transport = SimpleNamespace(request=self._request, publish=self._publish)

    async def stream(self, name: str) -> Any:
        replicas = SimpleNamespace(replicas=("n1", "n2"))
        uid = {"in": "u1", "dead": "u2"}[name]
        return SimpleNamespace(uid=uid, subject=f"data.{name}.*", answers=True, partitions=(replicas, replicas))

    async def bounds(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(log_start_offset=self.log_start, end_offset=30)

    async def node_status(self, node: str, timeout_s: float) -> dict[str, Any]:
        if node == "n2":
            raise UnavailableError("gone")
        points = [{"position": 10, "output_count": 3, "effect_count": 2, "version": 1}]
        bank = {"service": "bank", "position": self.position, "snapshot": self.snapshot, "replay_points": points}
        bank |= {"version": 1, "output_count": 3, "emitted_end": 3, "effect_count": 2}
        return {"partitions": [{"uid": "u1", "partition": 1, "services": [bank]}]}

    async def read_range(self, stream: str, partition: int, start: int, end: int, *, uid: str, exact: bool = False) -> Any:
        assert (stream, partition, start, end, uid) == ("in", 1, 17, 18, "u1")
        yield SimpleNamespace(records=lambda: [BAD])

    async def _request(self, subject: str, payload: bytes, timeout_s: float, headers: Any = None) -> bytes:
        self.expected.append(headers)
        message = frames.decode(payload, client_pb2.Message)
        if message.stream == self.refused:
            ack = client_pb2.Ack(stream=message.stream, partition=message.partition, ackError=client_pb2.Ack.NOT_LEADER)
        else:
            self.sent.append((subject, message))
            self.log_start = self.log_start_after_publish
            ack = client_pb2.Ack(stream=message.stream, partition=message.partition, offset=40 + len(self.sent))
        return frames.encode(ack)

    async def _publish(self, subject: str, payload: bytes) -> None:
        self.told.append((subject, frames.decode(payload, service_pb2.SnapshotRequest)))
        self.snapshot = self.position


@pytest.fixture
def cluster() -> Any:
    return Cluster()


@pytest.mark.parametrize("refused", ["dead", "in"])
async def test_service_skip_command_fails_if_the_dead_letter_or_the_decision_is_rejected(cluster: Any, refused: str) -> None:
    cluster.refused = refused
    with pytest.raises(UnavailableError):
        await DecisionWriter(cluster, "dead").pass_over(WHO, SkipDecision("bank", Unit(17)), BAD, "x")
    assert [message.stream for _, message in cluster.sent] == ([] if refused == "dead" else ["dead"])


async def test_service_skip_command_for_a_recreated_stream_raises_config_error(cluster: Any) -> None:
    other = Identity("bank", "in", "u0", 1)
    with pytest.raises(ConfigError, match="created again"):
        await DecisionWriter(cluster, "").pass_over(other, SkipDecision("bank", Unit(17)), BAD, "x")


async def test_service_skip_command_for_an_applied_record_without_force_raises_config_error(cluster: Any) -> None:
    assert await pass_over(cluster, "bank", "in", 1, Unit(17)) == 41
    assert cluster.sent[0][1].headers[0].value == b"bank/17/0/"
    cluster.position = 18
    with pytest.raises(ConfigError, match="n1 is at"):
        await pass_over(cluster, "bank", "in", 1, Unit(17))
    assert await pass_over(cluster, "bank", "in", 1, Unit(17), force=True) == 42


async def test_service_skip_command_sends_no_decision_if_the_log_is_truncated_while_it_writes_the_dead_letter(
    cluster: Any,
) -> None:
    """The snapshot at offset 10 is below the new log start, so no instance can rebuild its state without the record."""
    cluster.position, cluster.log_start_after_publish = 18, 11
    with pytest.raises(ConfigError, match="no instance can rebuild its state without it"):
        await pass_over(cluster, "bank", "in", 1, Unit(17), dead_letter="dead", force=True)
    assert [message.stream for _, message in cluster.sent] == ["dead"]
    cluster.log_start = 5
    assert await pass_over(cluster, "bank", "in", 1, Unit(17), force=True) == 42


@pytest.mark.parametrize(("partition", "offset", "error"), [(2, 17, NotFoundError), (1, 4, ConfigError), (1, 30, ConfigError)])
async def test_service_skip_command_for_an_unknown_record_raises_and_sends_no_decision(
    cluster: Any, partition: int, offset: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await pass_over(cluster, "bank", "in", partition, Unit(offset))
    assert cluster.sent == []


async def test_service_snapshot_command_waits_for_a_new_snapshot_of_each_service(cluster: Any) -> None:
    assert await store_now(cluster, "bank", "in", 1, (), 30, "ns") == {"n1": 17}
    ((subject, request),) = cluster.told
    assert (subject, request.service, request.stream, request.partition) == ("ns.service.n1.session.in.bank", "bank", "in", 1)
    with pytest.raises(NotFoundError, match="node n2"):
        await store_now(cluster, "bank", "in", 1, ("n2",), 30, "ns")
    with pytest.raises(NotFoundError):
        await store_now(cluster, "other", "in", 1, (), 30, "ns")
    cluster.transport.publish = lambda *_: _nothing()
    cluster.position = 20
    with pytest.raises(UnavailableError, match=r"no snapshot on n1 within 0\.01 s \(--timeout\)"):
        await store_now(cluster, "bank", "in", 1, (), 0.01, "ns")


async def test_service_snapshot_command_with_a_last_answer_at_the_timeout_returns_the_snapshots(cluster: Any) -> None:
    assert await store_now(cluster, "bank", "in", 1, (), 0.0, "ns") == {"n1": 17}


async def _nothing() -> None:
    """Drop the message."""
