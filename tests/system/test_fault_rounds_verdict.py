"""The verdict over the logs finds what it is there to find."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import build_batch
from tests.examples.processes import snapshot_path
from tests.system.faults import cursors, services
from tests.system.faults.check import Verdict, check
from tests.system.faults.load import Acked, payload
from tests.system.faults.rounds import percentiles

NUMBERS = [7, 3, 9, 4]
"""Message numbers by offset."""


def write(folder: Path, numbers: list[int]) -> Path:
    folder.mkdir(parents=True)
    half = len(numbers) // 2
    for base, part in ((0, numbers[:half]), (half, numbers[half:])):
        batch = build_batch([payload(number) for number in part], base_offset=base, leader_epoch=1, timestamp_ns=5)
        (folder / f"{base:020d}.log").write_bytes(batch)
    return folder


def acks(numbers: list[int]) -> list[Acked]:
    return [Acked(number, offset, 1, 0.0, 0.0) for offset, number in enumerate(numbers)]


def test_fault_verdict_accepts_equal_logs_that_have_every_acknowledged_record(tmp_path: Path) -> None:
    folders = {name: write(tmp_path / name, NUMBERS) for name in "abc"}
    verdict = check(acks(NUMBERS)[1:3], folders)
    assert verdict.right
    assert (verdict.acknowledged, verdict.log_end_offset, verdict.replicas) == (2, 4, 3)


def test_fault_verdict_finds_a_truncated_and_a_changed_replica(tmp_path: Path) -> None:
    folders = {
        "a": write(tmp_path / "a", NUMBERS),
        "b": write(tmp_path / "b", NUMBERS[:2]),
        "c": write(tmp_path / "c", [7, 3, 1, 4]),
    }
    verdict = check(acks(NUMBERS), folders)
    assert not verdict.right
    assert (verdict.lost, verdict.changed, verdict.unequal) == (2, 1, ["b", "c"])


def test_fault_verdict_finds_an_offset_acknowledged_twice_and_a_message_stored_twice(tmp_path: Path) -> None:
    folders = {"a": write(tmp_path / "a", [7, 3, 7, 4])}
    verdict = check([*acks([7]), Acked(8, 0, 2, 0.0, 0.0)], folders)
    assert (verdict.acked_twice, verdict.stored_twice, verdict.lost, verdict.changed) == (1, 1, 0, 0)
    assert not verdict.right


def test_fault_verdict_finds_a_replica_with_a_damaged_log(tmp_path: Path) -> None:
    folders = {name: write(tmp_path / name, NUMBERS) for name in "ab"}
    segment = min(folders["b"].glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    verdict = check(acks(NUMBERS), folders)
    assert not verdict.right
    assert (verdict.unequal, verdict.damaged) == (["b"], ["b"])


def test_fault_verdict_percentiles_are_values_of_the_sample() -> None:
    assert percentiles([]) == {}
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
    assert percentiles([float(n) for n in range(1, 201)]) == {"p50": 100.0, "p99": 198.0, "max": 200.0}


def served(tmp_path: Path, log: bytes, spoilt: bytes | None = None) -> services.Services:
    """Two nodes with the snapshots that a replay of ``log`` gives; the second one has ``spoilt`` instead, b"": nothing."""
    _, (position, encoded) = services.replay("s", "u", log)
    for node, data in (("a", encoded), ("b", encoded if spoilt is None else spoilt)):
        path = snapshot_path(tmp_path, node, services.SERVICE, "s", "u", position)
        path.parent.mkdir(parents=True)
        if data:
            path.write_bytes(data)
    return services.Services("s", "out", tmp_path, {"a": "", "b": ""})


def a_log(count: int, changed: int = -1) -> bytes:
    values = [b"another" if number == changed else payload(number) for number in range(count)]
    return build_batch(values, base_offset=0, leader_epoch=1, timestamp_ns=5)


def outputs(log: bytes) -> list[bytes | None]:
    machine, _ = services.replay("s", "u", log)
    assert machine.outbox is not None
    return [output.value for output in machine.outbox.read(0, machine.outbox.output_count)]


def test_fault_verdict_accepts_services_with_equal_states_and_each_output_once(tmp_path: Path) -> None:
    log = a_log(250)
    found = served(tmp_path, log).check("u", log, outputs(log))
    assert (found.position, found.outputs, found.problems) == (200, 2, [])
    verdict = Verdict(services=found)
    assert verdict.right
    found.problems.append("one")
    assert not verdict.right


@pytest.mark.parametrize("changed", [0, 199])
def test_fault_verdict_finds_a_service_that_applied_a_different_record(tmp_path: Path, changed: int) -> None:
    log = a_log(250)
    _, (_, other) = services.replay("s", "u", a_log(250, changed))
    (problem,) = served(tmp_path, log, other).check("u", log, outputs(log)).problems
    assert "beside b differs" in problem


def test_fault_verdict_finds_a_missing_service_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_STORED_WITHIN_S", 0.0)
    log = a_log(250)
    (problem,) = served(tmp_path, log, b"").check("u", log, outputs(log)).problems
    assert "beside b has no snapshot at 200" in problem


def test_fault_verdict_finds_duplicate_and_missing_outputs(tmp_path: Path) -> None:
    log = a_log(250)
    beside, (first, second) = served(tmp_path, log), outputs(log)
    for written, text in (([first, first, second], "differ at 1"), ([first], "1 outputs instead of 2")):
        (problem,) = beside.check("u", log, written).problems
        assert text in problem


async def test_fault_verdict_finds_lost_commits_and_commits_that_no_client_requested() -> None:
    key = PartitionKey("faulted", "u", 0)

    async def cursor_at(*_: Any) -> dict[PartitionKey, int]:
        return {key: 5}

    async def group_at(*_: Any) -> Any:
        return SimpleNamespace(positions={key: 5})

    client: Any = SimpleNamespace(cursors=SimpleNamespace(describe=cursor_at), groups=SimpleNamespace(describe=group_at))
    for confirmed, asked, right in ((5, 5, True), (4, 5, True), (6, 7, False), (3, 4, False)):
        commits = cursors.Commits(client)
        commits.cursor.confirmed, commits.cursor.asked = confirmed, asked
        commits.group.confirmed, commits.group.asked = {0: confirmed}, {0: asked}
        await commits.look()
        assert len(commits.problems) == (0 if right else 2)
