"""Test ServiceTest, and each kind of nondeterminism that `verify` finds."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from liftpy.core.services.effects import Effect
from liftpy.core.services.outbox import MAX_OUTPUT_BYTES
from liftpy.errors import ConfigError
from liftpy.service import DivergedError, Record, Role, Service, ServiceFailedError
from liftpy.testing import ServiceTest
from liftpy.testing.memory import memory_cluster
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


class Upgraded(Echo):
    """A service of version 2, which needs what ``on_version`` makes."""

    version = 2

    def on_start(self, snapshot: bytes | None) -> None:
        self.suffix, self.words = json.loads(snapshot or b'["", []]')

    def on_version(self, version: int) -> None:
        self.suffix = f" of version {version}"
        self.emit(b"upgraded")

    def answer(self) -> bytes:
        return (self.words[-1] + self.suffix).encode()

    def take_snapshot(self) -> bytes:
        return json.dumps([self.suffix, self.words]).encode()


class FailsToUpgrade(Upgraded):
    def on_version(self, version: int) -> None:
        raise ArithmeticError("no upgrade")


def test_service_test_harness_activates_the_version_of_the_code_before_the_first_record() -> None:
    test = ServiceTest(Upgraded).send(b"one").restart().send(b"two")
    outputs = [(output.value, output.offset) for output in test.outputs]
    assert outputs == [(b"upgraded", 0), (b"one of version 2", 0), (b"two of version 2", 1)]
    test.verify()
    with pytest.raises(ServiceFailedError, match="ArithmeticError: no upgrade"):
        ServiceTest(FailsToUpgrade)


def test_memory_cluster_service_activates_the_version_of_the_code_before_the_first_record() -> None:
    with memory_cluster(1) as cluster, cluster.sync_client() as client:
        client.create_stream("words", "shop.words")
        client.create_stream("answers", "shop.answers")
        cluster.serve(Upgraded, "upgraded", "words", output_stream="answers")
        client.publish("words", b"one")
        cluster.wait_until(lambda: client.bounds("answers").end_offset == 2)
        assert [record.value for record in client.consume("answers", until="end")] == [b"upgraded", b"one of version 2"]


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


class Clerk(Service):
    """A service whose state has everything that it received. A record that is JSON is a call with arguments of a wrong type."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.seen: list[Any] = json.loads(snapshot) if snapshot else []

    def on_record(self, record: Record) -> None:
        self.seen.append([str(record.headers), record.value and record.value.decode(), type(self.now_ns).__name__])
        if record.value == b"wait":
            self.set_timer("later", np.int64(self.now_ns + 5))

    def on_timer(self, name: str) -> None:
        self.seen.append([name, type(self.now_ns).__name__])

    def on_effect(self, effect: Effect) -> Any:
        return effect.payload.decode()

    def take_snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()


def test_service_timer_at_a_numpy_time_gives_the_same_log_time_after_a_restore() -> None:
    test = ServiceTest(Clerk).send(b"wait").advance(1).send(b"x")
    assert test.service.seen[1:] == [["later", "int"], ["()", "x", "int"]]  # type: ignore[attr-defined]
    test.verify(hash_seeds=0)


def test_service_test_harness_run_effects_rejects_results_that_a_node_rejects() -> None:
    class Buyer(Clerk):
        def on_record(self, record: Record) -> None:
            self.effect("buy", record.value or b"")

    with pytest.raises(ServiceFailedError, match=r"on_effect returned str\. Return bytes or None"):
        ServiceTest(Buyer).send(b"a").run_effects()

    class Large(Buyer):
        def on_effect(self, effect: Effect) -> bytes:
            return bytes(MAX_OUTPUT_BYTES + 1)

    with pytest.raises(ServiceFailedError, match="at most 262144 are allowed"):
        ServiceTest(Large).send(b"a").run_effects()


def test_service_test_harness_send_takes_the_values_and_headers_that_client_publish_takes() -> None:
    test = ServiceTest(Clerk).send(b"a", headers={"h": "1"}).send(b"b", headers=[("h", "1"), ("h", b"2")])
    assert [seen[0] for seen in test.service.seen] == ["(('h', b'1'),)", "(('h', b'1'), ('h', b'2'))"]  # type: ignore[attr-defined]
    for wrong in ({"value": "text"}, {"value": b"x", "key": "k"}, {"value": b"x", "headers": [("h", 1)]}):
        with pytest.raises(ConfigError, match="Invalid"):
            test.send(**wrong)  # type: ignore[arg-type]
    assert len(test.send(b"c").service.seen) == 3, "a record that is not valid does not end the test"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda service: service.set_timer(b"name", 5), "Invalid timer. Use a name (str)"),
        (lambda service: service.set_timer("name", "5"), "Invalid timer. Use a name (str)"),
        (lambda service: service.effect(b"name"), "Invalid name of an effect"),
        (lambda service: service.effect("\ud800"), "Invalid name of an effect"),
        (lambda service: service.effect("name", None), "Invalid effect. It must be bytes"),
        (lambda service: service.offer(None), "Invalid offer. It must be bytes"),
        (
            lambda service: service.emit(b"", headers={"h": b"1"}),
            "Invalid output. The key must be bytes or None. The headers must be pairs",
        ),
        (
            lambda service: service.emit(b"", headers=5),
            "Invalid output. The key must be bytes or None. The headers must be pairs",
        ),
        (lambda service: service.emit(b"", to=b"alerts"), "Invalid route of type bytes"),
    ],
)
def test_service_call_with_an_argument_of_a_wrong_type_names_the_argument(call: Callable[[Any], None], text: str) -> None:
    class Caller(Clerk):
        def on_record(self, record: Record) -> None:
            call(self)

    with pytest.raises(ServiceFailedError, match=f"on_record failed at offset 0: {re.escape(text)}"):
        ServiceTest(Caller).send(b"x")
