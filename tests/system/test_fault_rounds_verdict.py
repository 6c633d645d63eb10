"""The verdict over the logs finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

from tests.batches import build_batch
from tests.system.faults.check import check
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
