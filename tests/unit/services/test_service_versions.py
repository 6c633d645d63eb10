"""Test versions of the code of a service: no two nodes ever apply a record differently."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from liftpy.core.services.bad_records import BadRecordError, Unit
from liftpy.core.services.snapshot import decode
from liftpy.core.services.versions import CodeVersions, VersionDecision, VersionError, decided_version, from_section
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError
from liftpy.service import Identity, Outbox, Service, ServiceMachine, host
from liftpy.service.host import Upgrader
from liftpy.service.settings import ServiceSettings
from liftpy.testing import ServiceTest

WHO = Identity("sum", "in", "u1", 0)


def record(offset: int, value: bytes = b"1", epoch: int = 5, **headers: bytes) -> Record:
    named = tuple((name.replace("_", "-"), content) for name, content in headers.items())
    return Record(offset, 0, None, value, named, "", None, epoch)


def says(offset: int, version: int, epoch: int = 5, service: str = "sum", appended: int = 5) -> Record:
    return Record(offset, 0, None, b"", VersionDecision(service, version, epoch).headers(), "", None, appended)


class One(Service):
    """A service whose version 1 counts records once, version 2 twice, and version 3 three times."""

    version: ClassVar[int] = 1

    def on_start(self, snapshot: bytes | None) -> None:
        self.total = int(snapshot or 0)
        self.told: list[int] = []

    def on_record(self, record: Record) -> None:
        self.total += int(record.value or 0) * self.active_version
        self.emit(b"%d" % self.total)

    def on_version(self, version: int) -> None:
        self.told.append(version)
        self.total += 1000

    def take_snapshot(self) -> bytes:
        return b"%d" % self.total


class Two(One):
    version = 2


class Three(One):
    version = 3


def started(service: Service, snapshot: Any = None) -> ServiceMachine:
    machine = ServiceMachine(service, WHO, snapshot_interval_records=10, outbox=Outbox("u1/0"))
    machine.start(snapshot)
    return machine


def test_service_version_changes_on_all_nodes_at_the_same_record() -> None:
    log = [record(n) for n in range(10)] + [says(10, 2)] + [record(n) for n in range(11, 25)]
    made = [Two(), Two(), Two()]
    machines = [started(service) for service in made]
    files = [[s.encode() for s in machine.apply(log).snapshots] for machine in machines]
    old = started(One())
    before = old.apply(log[:10]).snapshots[0]
    assert before.encode() == files[0][0], "one that still has the old code"
    assert [service.total for service in made] == [10 + 1000 + 28] * 3
    assert made[0].told == [2]
    assert len({tuple(f) for f in files}) == 1
    again = Two()
    machine = started(again, decode(files[0][1], WHO))
    assert (machine.active_version, again.told) == (2, [])
    machine.apply(log)
    assert again.total == made[0].total
    moved = Two()
    started(moved, before).apply(log)
    assert (moved.total, moved.told) == (made[0].total, [2])


def test_service_version_that_the_code_does_not_support_raises_before_the_record_is_applied() -> None:
    one = One()
    machine = started(one)
    with pytest.raises(VersionError, match="version 2 of the service"):
        machine.apply([record(0), says(1, 2), record(2)])
    assert (one.total, machine.position) == (1, 1)
    newer = started(Two())
    newer.apply([says(0, 2), *(record(n) for n in range(1, 12))])
    with pytest.raises(VersionError, match="Start version 2"):
        started(One(), newer.snapshot())
    three = Three()
    with pytest.raises(VersionError, match=r"Code of version 3 supports only 2 and 3\. Start version 2 on all nodes first"):
        started(three).apply([record(0)])
    assert three.total == 0
    with pytest.raises(VersionError, match="Start version 2"):
        started(Three(), started(One()).snapshot())
    going_on = started(Three(), newer.snapshot())
    going_on.apply([record(12), says(13, 3)])
    assert going_on.active_version == 3
    assert issubclass(VersionError, ConfigError)


def test_service_version_starts_at_any_number_and_increases_by_one() -> None:
    three = Three()
    machine = started(three)
    machine.apply([says(0, 3), record(1)])
    assert (machine.active_version, three.total) == (3, 1003)
    with pytest.raises(VersionError):
        started(Three()).apply([says(0, 1), record(1)])
    two = started(Two())
    two.apply([record(0), says(1, 3), says(2, 2), says(3, 1), says(4, 2)])
    assert two.active_version == 2


@pytest.mark.parametrize(
    "decision",
    [
        says(3, 2, epoch=4),
        says(3, 2, service="other"),
        record(3, b"", Lift_Service_Version=b"garbage"),
        record(3, b"", Lift_Service_Version=b"sum/x/5"),
        record(3, b"", Lift_Service_Version=b"../x/2/5"),
        record(3, b"", Lift_Service_Version=b"sum/2"),
        record(3, b"", Lift_Service_Version=b"sum/0/5"),
        record(3, b"", Lift_Service_Version=b"sum/-2/5"),
        record(3, b"", Lift_Service_Version=b"sum/2147483648/5"),
        record(3, b"", Lift_Service_Version=b"\xff\xfe/2/5"),
    ],
)
def test_service_version_record_of_another_epoch_or_service_is_ignored(decision: Record) -> None:
    """The record has another leader epoch, another service, or an invalid header."""
    service = Two()
    machine = started(service)
    machine.apply([record(0), record(1), record(2), decision])
    assert (machine.active_version, service.told, service.total, machine.position) == (1, [], 3, 4)
    assert decided_version(decision, "sum") is None


def test_service_version_callback_error_fails_the_record_and_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: One, version: int) -> None:
        raise ValueError("no")

    monkeypatch.setattr(One, "on_version", fails)
    log = [record(0), says(1, 2), record(2)]
    machine = started(Two())
    with pytest.raises(BadRecordError, match="offset 1"):
        machine.apply(log)
    assert machine.failed
    again = started(Two())
    again.skip(Unit(1))
    again.apply(log)
    assert (again.active_version, again.position) == (1, 3)


def test_service_version_that_is_not_a_positive_number_is_rejected() -> None:
    with pytest.raises(VersionError):
        from_section(b"abc")
    for version in (0, True, "2", 1 << 31):
        with pytest.raises(ConfigError, match="version"):
            started(type("Bad", (One,), {"version": version})())
    test = ServiceTest(Three).send(b"2").restart().send(b"1")
    assert [output.value for output in test.outputs] == [b"1006", b"1009"]


# ---- who decides, and when -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "active", "lowest", "high_watermark", "expected"),
    [
        (2, 1, 2, 9, (2, False)),
        (2, 1, 1, 9, None),
        (2, 1, 0, 9, None),
        (1, 1, 2, 9, None),
        (2, 2, 2, 9, None),
        (2, 1, 3, -1, (2, False)),
        (3, 1, 3, -1, (3, True)),
        (3, 1, 2, -1, None),
        (3, 2, 3, 9, (3, False)),
    ],
)
def test_service_upgrade_to_the_next_version_starts_once_when_all_nodes_have_the_code(
    code: int, active: int, lowest: int, high_watermark: int, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = None
    upgrader = Upgrader(client, ServiceSettings("sum", "in", "n1", tmp_path))
    machine: Any = SimpleNamespace(
        version=code, active_version=active, position=high_watermark + 1, identity=WHO, is_replaying=False
    )
    order = pb.JoinLog(leaderEpoch=5, lowestVersion=lowest, highWatermark=high_watermark)
    due = upgrader.due_decision(order, machine)
    assert (None if due is None else (due[0].version, due[1])) == expected
    if due is not None:
        assert due[0] == VersionDecision("sum", expected[0], 5)
    assert upgrader.due_decision(order, machine) is None, "it is looked for first"
    monkeypatch.setattr(host, "AGAIN_S", 0.0)
    assert (upgrader.due_decision(order, machine) is None) is (expected is None)


def test_service_code_version_reports_expire_after_4_seconds_and_are_bounded_in_number() -> None:
    second, known = 1_000_000_000, CodeVersions()
    known.note_version("sum", "n1", 3, 0)
    known.note_version("sum", "n2", 2, second)
    assert known.lowest("sum", ["n1", "n2"], 4 * second) == 2
    assert known.lowest("sum", ["n1", "n2"], 4 * second + 1) == 0
    assert known.lowest("sum", ["n2"], 5 * second) == 2
    assert (known.lowest("sum", [], 0), known.lowest("sum", ["n2", "n3"], second), known.lowest("other", ["n2"], second)) == (
        0,
        0,
        0,
    )
    for number in range(254):
        known.note_version("more", f"m{number}", 1, second)
    known.note_version("more", "full", 1, 4 * second)
    assert known.lowest("more", ["full"], 4 * second) == 0, "there are 256"
    known.note_version("sum", "n2", 5, 4 * second)
    assert known.lowest("sum", ["n2"], 4 * second) == 5, "one that is known is told again"
    known.note_version("more", "full", 1, 4 * second + 1)
    assert known.lowest("more", ["full"], 4 * second + 1) == 1, "n1 is not believed any more"


def test_service_version_of_a_new_log_is_set_only_by_the_record_at_offset_zero() -> None:
    machine = started(Three())
    machine.apply([says(0, 2), record(1)])
    assert (machine.active_version, machine.position) == (2, 2)
    with pytest.raises(VersionError):
        started(Three()).apply([says(5, 2), record(6)])
