"""Test that ``liftpy service skip`` decides about a record only if no node has applied it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotFoundError,
    UnavailableError,
)
from sidecar.cli import service
from tests.flat_client import FlatClient


class Asked(FlatClient):
    """A client over one stream of one partition whose nodes say how their services are."""

    def __init__(self, **said: Any) -> None:
        self.said: dict[str, Any] = said
        self.published: list[tuple[str, bytes]] = []
        self.transport = self
        self.first, self.end = 2, 10
        self.ranges: list[Any] = []
        self.records: list[str] = ["the record"]
        self.partitions = 1

    async def stream(self, name: str) -> Any:
        return SimpleNamespace(uid="u1", partitions=[SimpleNamespace(replicas=("n1", "n2", "n3"))] * self.partitions)

    async def bounds(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(log_start_offset=self.first, end_offset=self.end)

    async def node_status(self, node: str) -> Any:
        said = self.said.get(node, UnavailableError("silent"))
        if isinstance(said, Exception):
            raise said
        services = [{"service": "other", "position": 99, "snapshot": 99}, {"service": "counter", **said}]
        return {
            "partitions": [
                {"uid": "u2", "partition": 0, "services": services[:1]},
                {"uid": "u1", "partition": 0, "services": services},
            ]
        }

    async def publish(self, subject: str, payload: bytes) -> None:
        self.published.append((subject, payload))
        node = subject.split(".")[2]
        self.said[node] = {**self.said[node], "snapshot": self.said[node]["position"]}

    async def read_range(self, stream: str, partition: int, start: int, end: int, uid: str, exact: bool = False) -> Any:
        self.ranges.append((stream, partition, start, end, uid))
        yield SimpleNamespace(records=lambda: iter(self.records))


async def test_service_command_without_partition_option_on_two_partitions_is_rejected() -> None:
    client: Any = Asked(n1={"position": 7, "snapshot": 3})
    client.partitions = 2
    with pytest.raises(ConfigError, match=r"2 partitions.*--partition"):
        await service.store_now(client, "counter", "s", None, (), 30.0, "ns")
    with pytest.raises(ConfigError, match=r"2 partitions.*--partition"):
        await service.pass_over(client, "counter", "s", None, Unit(5, ""))
    assert client.published == []


async def test_service_skip_command_writes_a_decision_only_if_no_node_has_applied_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []

    class Writer:
        def __init__(self, client: Any, dead_letter: str) -> None:
            written.append(dead_letter)

        async def pass_over(self, identity: Any, decision: Any, record: Any, why: str) -> int:
            written.append((identity.service, identity.uid, decision.unit, record, why))
            return 42

    monkeypatch.setattr(service, "DecisionWriter", Writer)
    client: Any = Asked(n1={"position": 5}, n2={"position": 4})

    async def skip(offset: int, **how: Any) -> int:
        return await service.pass_over(client, "counter", "s", 0, Unit(offset, ""), **how)

    assert await skip(5, dead_letter="dead") == 42, "it stands at the record"
    assert client.ranges == [("s", 0, 5, 6, "u1")]
    assert written == ["dead", ("counter", "u1", Unit(5, ""), "the record", "passed over by an operator")]
    with pytest.raises(ConfigError, match="counter on n1 is at"):
        await skip(4)
    assert await skip(4, force=True) == 42
    for offset, inside in ((1, False), (2, True), (9, True), (10, False)):
        if inside:
            assert await skip(offset, force=True) == 42
        else:
            with pytest.raises(ConfigError, match=f"s/0 has the offsets 2 to 9, not {offset}"):
                await skip(offset, force=True)
    client.records = []
    with pytest.raises(LiftError, match="s/0 has no record at offset 9"):
        await skip(9)
    with pytest.raises(NotFoundError, match="Stream s has no partition 1"):
        await service.pass_over(client, "counter", "s", 1, Unit(5, ""))
