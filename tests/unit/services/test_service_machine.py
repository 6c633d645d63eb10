"""Test ServiceMachine: log order, log time, timers, snapshots and numbered outputs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from liftpy.core.services.outbox import extend_digest
from liftpy.core.wire.batch import Record
from liftpy.errors import StorageError
from liftpy.service import DivergedError, Identity, Outbox, Role, Service, ServiceFailedError, ServiceMachine

WHO = Identity("ledger", "s", "uid1", 0)


def record(offset: int, value: bytes = b"x", at_ns: int = 0, epoch: int = 1) -> Record:
    return Record(offset, at_ns, None, value, (), "", None, epoch)


class Journal(Service):
    """A service that records all its calls. ``t:<name>:<ns>`` sets a timer, ``c:<name>`` cancels it, ``e:...`` emits."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.seen: list[Any] = json.loads(snapshot) if snapshot else []
        self.roles: list[Any] = []

    def on_record(self, record: Record) -> None:
        text = (record.value or b"").decode()
        self.seen.append([record.offset, text, self.now_ns])
        kind, _, rest = text.partition(":")
        if kind == "t":
            name, _, at_ns = rest.partition(":")
            self.set_timer(name, int(at_ns))
        elif kind == "c":
            self.cancel_timer(rest)
        elif kind == "e":
            for word in rest.split(","):
                self.emit(word.encode())
        elif kind == "raise":
            raise KeyError(rest)

    def on_timer(self, name: str) -> None:
        self.seen.append(["timer", name, self.now_ns])
        if name.startswith("again"):
            self.set_timer(name, self.now_ns + 10)
        if name.startswith("emit"):
            self.emit(name.encode())

    def take_snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()

    def on_role_change(self, role: Role, leader_epoch: int) -> None:
        self.roles.append((role, leader_epoch))


def started(every: int = 1000, snapshot: Any = None) -> tuple[Journal, ServiceMachine]:
    service = Journal()
    machine = ServiceMachine(service, WHO, snapshot_interval_records=every, outbox=Outbox("uid1/0"))
    machine.start(snapshot)
    return service, machine


def test_service_machine_applies_each_record_once_up_to_the_stop_position() -> None:
    service, machine = started()
    assert machine.apply([record(0), record(1), record(2)], stop_position=2).count == 2
    assert machine.apply([record(0), record(1), record(2), record(3, epoch=4)]).count == 2
    assert [seen[0] for seen in service.seen] == [0, 1, 2, 3]
    assert (machine.position, machine.last_epoch) == (4, 4)


def test_service_machine_fires_timers_in_the_order_of_a_log_time_that_never_decreases() -> None:
    service, machine = started()
    machine.apply([record(0, b"t:b:50", 10), record(1, b"t:a:50", 8), record(2, b"t:gone:40", 9), record(3, b"c:gone", 11)])
    machine.apply([record(4, b"t:a:60", 49), record(5, b"x", 70)])
    assert service.seen[1][2] == 10  # not 8
    assert service.seen[5:] == [["timer", "b", 50], ["timer", "a", 60], [5, "x", 70]]


@pytest.mark.parametrize("cuts", [(1,), (3,), (7,), (100,), (1, 5, 2)])
def test_service_machine_with_any_batch_sizes_takes_the_same_snapshots(cuts: tuple[int, ...]) -> None:
    records = [
        record(offset, b"t:again:%d" % (offset * 7) if offset % 4 == 0 else b"e:x,y", offset * 5) for offset in range(30)
    ]

    def snapshots(sizes: tuple[int, ...]) -> list[bytes]:
        _, machine = started(every=8)
        found, place, turn = [], 0, 0
        while place < len(records):
            size = sizes[turn % len(sizes)]
            found += machine.apply(records[place : place + size]).snapshots
            place, turn = place + size, turn + 1
        assert [s.position for s in found] == [8, 16, 24]
        return [s.encode() for s in found]

    assert snapshots(cuts) == snapshots((30,))


def test_service_machine_takes_snapshots_at_boundaries_inside_compaction_gaps() -> None:
    _, machine = started(every=10)
    taken = machine.apply([record(offset) for offset in (0, 7, 13, 14, 35)]).snapshots
    assert [s.position for s in taken] == [10, 30]
    assert json.loads(taken[0].state)[-1][0] == 7  # nothing at or past 10 is in it


class Deferred(Journal):
    def take_snapshot(self) -> Any:
        return partial(bytes, super().take_snapshot())


class Checked(Journal):
    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        assert json.loads(state), "a snapshot without records"


class DeferredAndChecked(Checked, Deferred):
    pass


def snapshot_after(service: Service, records: list[Record]) -> bytes:
    """Return the bytes of the snapshot after ``records``, encoded after one more record."""
    machine = ServiceMachine(service, WHO, snapshot_interval_records=1000, outbox=Outbox("uid1/0"))
    machine.start(None)
    machine.apply(records)
    snapshot = machine.snapshot()
    machine.apply([record(len(records))])
    return snapshot.encode()


@pytest.mark.parametrize("kind", [Deferred, Checked, DeferredAndChecked])
def test_service_machine_snapshot_encoded_or_checked_later_has_the_state_at_its_request(kind: type[Service]) -> None:
    records = [record(0), record(1)]
    assert snapshot_after(kind(), records) == snapshot_after(Journal(), records)


@pytest.mark.parametrize("kind", [Checked, DeferredAndChecked])
def test_service_machine_snapshot_that_its_class_rejects_raises_storage_error(kind: type[Service]) -> None:
    with pytest.raises(StorageError, match="a snapshot without records"):
        snapshot_after(kind(), [])


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("text", "returned str. Return bytes, or a function"),
        (lambda: "text", "produced str. It must return bytes"),
        (lambda: 1 // 0, "what take_snapshot returned: ZeroDivisionError"),
    ],
    ids=["text", "function that returns text", "function that fails"],
)
def test_service_machine_rejects_a_snapshot_that_is_not_bytes(returned: object, error: str) -> None:
    service, machine = started()
    service.take_snapshot = lambda: returned  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ServiceFailedError, match=error):
        machine.snapshot().encode()


def test_service_machine_restored_from_a_snapshot_has_the_state_of_a_full_replay() -> None:
    records = [record(o, b"t:emit%d:%d" % (o, o * 3 + 20) if o % 3 else b"e:a", o * 4, 1 + o // 9) for o in range(40)]
    whole, machine = started(every=10)
    taken = machine.apply(records).snapshots
    for snapshot in taken:
        service, again = started(every=10, snapshot=snapshot)
        later = again.apply(records).snapshots
        assert [s.encode() for s in later] == [s.encode() for s in taken if s.position > snapshot.position]
        assert service.seen == whole.seen
        assert again.outbox is not None
        assert machine.outbox is not None
        assert again.outbox.output_count == machine.outbox.output_count
        assert again.snapshot() == machine.snapshot()


def test_service_machine_calls_the_role_callback_once_per_role_change() -> None:
    service, machine = started()
    assert not machine.change_role(Role.FOLLOWER, 0)
    assert machine.change_role(Role.LEADER, 3)
    assert not machine.change_role(Role.LEADER, 3)
    assert machine.change_role(Role.FOLLOWER, 4)
    assert service.roles == [(Role.LEADER, 3), (Role.FOLLOWER, 4)]


def test_service_machine_rejects_emit_and_timers_outside_callbacks() -> None:
    service, _ = started()
    for call in (lambda: service.emit(b"x"), lambda: service.set_timer("a", 1), lambda: service.cancel_timer("a")):
        with pytest.raises(ServiceFailedError, match="on_record"):
            call()


def test_service_machine_with_a_full_outbox_waits_as_leader_and_drops_oldest_as_follower() -> None:
    service = Journal()
    outbox = Outbox("uid1/0", max_records=3)
    outbox.known = True
    machine = ServiceMachine(service, WHO, snapshot_interval_records=1000, outbox=outbox)
    machine.start(None)
    machine.change_role(Role.LEADER, 1)
    records = [record(offset, b"e:x") for offset in range(10)]
    assert machine.apply(records).count == 3
    assert machine.apply(records).count == 0
    outbox.outputs_committed(2)
    assert machine.apply(records).count == 2
    machine.change_role(Role.FOLLOWER, 2)
    assert machine.apply(records).count == 5
    assert (outbox.oldest_number, outbox.output_count, outbox.must_rewind) == (7, 10, True)


def test_service_machine_skips_compacted_offsets_and_takes_snapshots_at_boundaries() -> None:
    _, machine = started(every=10)
    machine.apply([record(offset) for offset in range(8)])
    taken = machine.skip_to(25)
    assert ([s.position for s in taken], machine.position) == ([20], 25)
    assert machine.skip_to(5) == []


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("a", "a"), "Header names"),
        (("Lift-Output",), "Header names"),
        (("Lift-Key",), "Header names"),
        (("",), "Header names"),
        (("Nats-Expected-Last-Sequence",), "Header names"),
        (("a", "Nats-TTL"), "An output cannot have the"),
        (("a", "Nats-Expected-Last-Msg-Id"), "An output cannot have the"),
        (("a", "Nats-Rollup"), "An output cannot have the"),
        (("a", "Nats-Schedule-Target"), "An output cannot have the"),
    ],
)
def test_service_machine_rejects_output_headers_that_the_output_stream_would_reject(names: tuple[str, ...], error: str) -> None:
    service, machine = started()
    service.on_record = lambda record: service.emit(b"x", headers=[(name, b"1") for name in names])  # type: ignore[method-assign]
    with pytest.raises(ServiceFailedError, match=error):
        machine.apply([record(0)])


def test_service_machine_raises_diverged_even_if_the_service_catches_all_errors() -> None:
    _, machine = started()
    assert machine.outbox is not None
    digest = extend_digest(b"", "uid1/0/0/0", None, b"theirs", ()).hex().encode()
    machine.outbox.check_output(
        Record(
            0,
            0,
            None,
            b"theirs",
            (("Lift-Output", b"uid1/0/0/0"), ("Lift-Output-Digest", digest), ("Lift-Output-Number", b"0")),
            "",
            None,
            1,
        )
    )
    with pytest.raises(DivergedError, match="output 0"):
        machine.apply([record(0, b"e:ours")])


def test_service_machine_rejects_emit_in_take_snapshot() -> None:
    class Sly(Journal):
        def take_snapshot(self) -> bytes:
            self.emit(b"sly")
            return b""

    machine = ServiceMachine(Sly(), WHO, snapshot_interval_records=2, outbox=Outbox("uid1/0"))
    machine.start(None)
    with pytest.raises(ServiceFailedError, match="in on_record and on_timer"):
        machine.apply([record(0), record(1), record(2)])


# ---- at its bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_ns", "fires"), [(40, 4), (50, None)])
def test_service_machine_limits_timers_that_are_set_while_firing(
    at_ns: int, fires: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.core.services.machine.MAX_FIRES_PER_RECORD", 3)
    service, machine = started()
    machine.apply([record(0, b"t:again:10", 0)])
    if fires is not None:
        machine.apply([record(1, b"x", at_ns)])
        assert sum(seen[0] == "timer" for seen in service.seen) == fires
        return
    with pytest.raises(ServiceFailedError, match="more than 3 timers"):
        machine.apply([record(1, b"x", at_ns)])
    assert machine.failed
    for use in (machine.snapshot, lambda: machine.query(b"")):
        with pytest.raises(ServiceFailedError, match="Its state is invalid, so"):
            use()


def test_service_machine_with_an_awaitable_callback_result_raises_service_failed() -> None:
    closed: list[bool] = []

    class Later:
        def __await__(self) -> Any:
            yield

        def close(self) -> None:
            closed.append(True)

    service, machine = started()
    service.on_record = lambda record: Later()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ServiceFailedError, match="returned a coroutine"):
        machine.apply([record(0)])
    assert closed == [True]
