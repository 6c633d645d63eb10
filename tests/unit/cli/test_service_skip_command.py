"""Test that ``liftpy service skip`` decides about a record only if no node has applied it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire.batch import Record
from liftpy.errors import (
    ConfigError,
    UnavailableError,
)
from sidecar.cli import service
from tests.flat_client import FlatClient


def applied(position: int, *points: tuple[int, int], version: int = 1, **more: int) -> dict[str, Any]:
    """Return the status of a service that has snapshots at ``points``: (position, version) each."""
    replay_points = [{"position": at, "output_count": 0, "effect_count": 0, "version": active} for at, active in points]
    counts = {"emitted_end": 0, "output_count": 0, "effect_count": 0} | more
    return {"position": position, "version": version, "replay_points": replay_points, **counts}


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

    async def node_status(self, node: str, timeout_s: float) -> Any:
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


async def test_service_skip_command_with_the_own_stream_for_dead_letters_is_rejected(decisions: list[Unit]) -> None:
    """The service read the dead letter as its next record, and could not apply it either."""
    client: Any = Asked(n1={"position": 5, "snapshot": 3})
    with pytest.raises(ConfigError, match="--dead-letter-stream s is the stream of the service itself"):
        await service.pass_over(client, "counter", "s", 0, Unit(5, ""), dead_letter="s")
    assert decisions == []


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """Return the units of the decisions that were written."""
    written: list[Unit] = []

    class Writer:
        def __init__(self, client: Any, dead_letter: str) -> None: ...

        async def pass_over(self, identity: Any, decision: Any, record: Any, why: str, check: Any) -> int:
            written.append(decision.unit)
            return 42

    monkeypatch.setattr(service, "DecisionWriter", Writer)
    return written


async def force(client: Any, offset: int, **how: Any) -> int:
    return await service.pass_over(client, "counter", "s", 0, Unit(offset, ""), force=True, **how)


FIRST_RECORD = Record(0, 0, None, b"", (), "", None, 1)
STARTS_WITH_2 = FIRST_RECORD._replace(headers=VersionDecision("counter", 2, 1).headers())


@pytest.mark.parametrize(
    ("instances", "log_start", "first", "possible"),
    [
        ([applied(9, (2, 1), (8, 1)), applied(9, (8, 1))], 2, FIRST_RECORD, True),
        ([applied(9, (8, 1)), applied(9, (6, 1))], 2, FIRST_RECORD, False),
        ([applied(9, (1, 1), (8, 1))], 2, FIRST_RECORD, False),
        ([applied(9)], 2, FIRST_RECORD, False),
        ([applied(9)], 0, FIRST_RECORD, True),
        ([applied(9, (3, 1), version=3)], 2, FIRST_RECORD, False),
        ([applied(9, (3, 2), version=3)], 2, FIRST_RECORD, True),
        ([applied(9, version=3)], 0, FIRST_RECORD, False),
        ([applied(9, version=3)], 0, STARTS_WITH_2, True),
        ([applied(9), applied(4)], 2, FIRST_RECORD, True),
    ],
    ids=[
        "one instance has a snapshot",
        "all snapshots are above the record",
        "the snapshot is below the log start",
        "no snapshot",
        "the log is complete",
        "the snapshot is too old for the code",
        "the code supports the snapshot",
        "the log is too old for the code",
        "the log begins with a version that the code supports",
        "one instance has not applied the record",
    ],
)
async def test_service_skip_command_for_an_applied_record_needs_an_instance_that_can_replay_without_it(
    decisions: list[Unit], instances: list[Any], log_start: int, first: Record, *, possible: bool
) -> None:
    client: Any = Asked(**{f"n{number}": said for number, said in enumerate(instances, 1)})
    client.first, client.records = log_start, [first]
    if possible:
        assert await force(client, 5) == 42
    else:
        with pytest.raises(ConfigError, match="no instance can rebuild its state without it"):
            await force(client, 5, has_no_side_effects=True)
    assert decisions == ([Unit(5)] if possible else [])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"emitted_end": 3}, "it has written 3 outputs and requested 0 effects"),
        ({"effect_count": 2}, "it has written 0 outputs and requested 2 effects"),
    ],
)
async def test_service_skip_command_for_an_applied_record_with_later_outputs_or_effects_needs_a_confirmation(
    decisions: list[Unit], more: dict[str, int], told: str
) -> None:
    client: Any = Asked(n1=applied(9, (2, 1)), n2=applied(9, (4, 1), **more))
    with pytest.raises(ConfigError, match=f"Since offset 4, {told}.*--no-side-effects"):
        await force(client, 5)
    assert decisions == []
    assert await force(client, 5, has_no_side_effects=True) == 42


async def test_service_skip_command_with_an_instance_of_an_earlier_version_needs_a_confirmation(decisions: list[Unit]) -> None:
    client: Any = Asked(n1={"position": 9, "version": 1, "emitted_end": 0}, n2=applied(9, (4, 1)))
    with pytest.raises(ConfigError, match="--no-side-effects"):
        await force(client, 5)
    assert await force(client, 5, has_no_side_effects=True) == 42
    assert decisions == [Unit(5)]


@pytest.mark.parametrize("written", [3, 4])
async def test_service_skip_command_for_a_record_with_written_outputs_needs_a_confirmation(
    decisions: list[Unit], written: int
) -> None:
    """An instance is blocked at the record, but an earlier LEADER has applied it."""
    client: Any = Asked(n1=applied(5, (2, 1), output_count=3, emitted_end=written), n2=applied(3, (2, 1), emitted_end=written))
    if written == 3:
        assert await service.pass_over(client, "counter", "s", 0, Unit(5, "")) == 42
    else:
        with pytest.raises(ConfigError, match=r"Since offset 5, it has written 1 outputs.*--no-side-effects"):
            await service.pass_over(client, "counter", "s", 0, Unit(5, ""))
    assert decisions == ([Unit(5)] if written == 3 else [])
