"""Test ServiceTest, and each kind of nondeterminism that `verify` finds."""

from __future__ import annotations

import json
import time

import pytest

from liftpy.errors import ConfigError
from liftpy.service import DivergedError, Record, Role, Service, ServiceFailedError
from liftpy.testing import ServiceTest
from tests.examples.bank import Bank


class Echo(Service):
    """A service that counts records and emits each value."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.words: list[str] = json.loads(snapshot or b"[]")

    def on_record(self, record: Record) -> None:
        self.words.append((record.value or b"-").decode())
        self.emit(self.answer(), key=record.key, headers=[("n", b"%d" % len(self.words))])

    def answer(self) -> bytes:
        return self.words[-1].encode()

    def take_snapshot(self) -> bytes:
        return json.dumps(self.words).encode()


class OfASet(Echo):
    def answer(self) -> bytes:
        return ",".join(set(self.words)).encode()


class OfTheClock(Echo):
    def answer(self) -> bytes:
        return b"%d" % time.time_ns()


class OfTheRole(Echo):
    def answer(self) -> bytes:
        return self.role.value.encode()


class Forgetful(Echo):
    def take_snapshot(self) -> bytes:
        return json.dumps(self.words[-2:]).encode()

    def answer(self) -> bytes:
        return b"%d" % len(self.words)


class Unsteady(Echo):
    def take_snapshot(self) -> bytes:
        self.words.append("a snapshot was taken")
        return super().take_snapshot()


class WithoutState(Echo):
    """A service with the outputs of ``Echo``, and a snapshot in an undefined order."""

    def take_snapshot(self) -> bytes:
        return ",".join({*"abcdefgh"}).encode()

    def on_start(self, snapshot: bytes | None) -> None:
        self.words = []

    def answer(self) -> bytes:
        return b""

    def on_record(self, record: Record) -> None:
        self.emit(b"")


class Broken(Echo):
    def on_record(self, record: Record) -> None:
        raise KeyError("no")


def fed(service: type[Service]) -> ServiceTest:
    test = ServiceTest(service)
    for number in range(12):
        test.send(b"word %d" % number, key=b"k")
    return test


def test_service_test_harness_returns_outputs_with_their_source_offset() -> None:
    test = ServiceTest(Echo).send(b"one", key=b"k").send(None)
    assert [(out.offset, out.index, out.value, out.key) for out in test.outputs] == [(0, 0, b"one", b"k"), (1, 0, b"-", None)]
    assert test.outputs[1].headers == (("n", b"2"),)
    assert test.snapshot() == b'["one", "-"]'
    assert isinstance(test.service, Echo)


def test_service_test_harness_fires_timers_by_the_timestamps_of_records() -> None:
    test = ServiceTest(Bank)
    for command in (
        {"do": "open"},
        {"do": "deposit", "amount": 5},
        {"do": "lock", "for_s": 30},
        {"do": "withdraw", "amount": 1},
    ):
        test.send(json.dumps({"id": "1", "account": "a", **command}).encode())
    assert json.loads(test.outputs[-1].value)["why"] == "account a is locked"
    before = len(test.outputs)
    test.advance(31)
    assert len(test.outputs) == before, "log time is what records say"
    test.send(json.dumps({"id": "2", "do": "withdraw", "account": "a", "amount": 1}).encode())
    assert [json.loads(output.value) for output in test.outputs[before:]] == [
        {"unlocked": "a"},
        {"balance": 3, "id": "2", "ok": True},  # and the fee
    ]


def test_service_test_harness_restart_restores_a_new_instance_from_the_snapshot() -> None:
    test = ServiceTest(Echo).send(b"one")
    first = test.service
    test.restart().send(b"two")
    assert test.service is not first
    assert [output.headers[0][1] for output in test.outputs] == [b"1", b"2"]
    assert [output.number for output in test.outputs] == [0, 1]


def test_service_test_harness_callback_error_raises_with_the_offset_and_ends_the_test() -> None:
    test = ServiceTest(Broken)
    with pytest.raises(ServiceFailedError, match="on_record failed at offset 0: KeyError"):
        test.send(b"x")
    with pytest.raises(ServiceFailedError, match="Create another ServiceTest"):
        test.send(b"y")


def test_service_test_harness_verify_accepts_a_deterministic_service() -> None:
    fed(Echo).verify(hash_seeds=1)


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (OfTheClock, "Output 0 .* differs as FOLLOWER"),
        (OfTheRole, "as FOLLOWER: b'LEADER'.*, then b'FOLLOWER'"),
        (Forgetful, "snapshot after 3 records: b'4"),
        (Unsteady, "take_snapshot returned other bytes at"),
    ],
)
def test_service_test_harness_verify_of_a_nondeterministic_service_raises_diverged_error(
    service: type[Service], why: str
) -> None:
    with pytest.raises(DivergedError, match=why):
        fed(service).verify(hash_seeds=0)


def test_service_test_harness_verify_of_a_snapshot_that_restores_another_state_raises_diverged_error() -> None:
    class Silent(Forgetful):
        def on_record(self, record: Record) -> None:
            self.words.append("x")

        def take_snapshot(self) -> bytes:
            return json.dumps([*self.words, "once more"]).encode()

    with pytest.raises(DivergedError, match=": the state after a"):
        fed(Silent).verify(hash_seeds=0)


@pytest.mark.parametrize(("service", "why"), [(OfASet, "output [0-9]+ "), (WithoutState, "the snapshot after 6 records ")])
def test_service_test_harness_verify_of_outputs_that_depend_on_the_hash_seed_raises_diverged(
    service: type[Service], why: str
) -> None:
    test = fed(service)
    test.verify(hash_seeds=0)
    with pytest.raises(DivergedError, match="in another process with other"):
        test.verify(hash_seeds=2, restarts=2)


def test_service_test_harness_verify_rejects_a_class_that_cannot_be_imported() -> None:
    class Local(Echo):
        pass

    with pytest.raises(ConfigError, match="hash_seeds=0"):
        fed(Local).verify()
    with pytest.raises(ConfigError, match="top level of a module"):
        fed(lambda: Echo()).verify()  # type: ignore[arg-type]
    fed(Local).verify(hash_seeds=0)
    assert ServiceTest(Local).service.role is Role.LEADER
