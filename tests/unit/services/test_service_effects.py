"""Test effects, offers and ticks: actions outside the service, and the results that return to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.metadata_requests import MetadataRequests
from liftpy.core.services import effects as bounds
from liftpy.core.services.bad_records import Unit
from liftpy.core.services.effects import Effect, EffectNumbering, NumberingDecision, result_headers, tick_headers
from liftpy.core.services.snapshot import Snapshot, decode
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import UnavailableError
from liftpy.service import Identity, Outbox, Record, Service, ServiceFailedError, ServiceMachine
from liftpy.service.bad_record_writer import RecordWriter
from liftpy.service.effect_runner import EffectRunner
from liftpy.service.settings import ServiceSettings
from liftpy.testing import ServiceTest
from liftpy.testing.memory import memory_cluster
from tests.each import each

WHO = Identity("shop", "orders", "u", 0)


class Shop(Service):
    """A service that charges a card for each order and stores the result. An empty order offers a reminder."""

    on_error = "skip"

    def on_start(self, snapshot: bytes | None) -> None:
        self.told: list[str] = snapshot.decode().split() if snapshot else []

    def on_record(self, record: Record) -> None:
        what = (record.value or b"").decode()
        self.told.append(f"order:{what}")
        if what == "remind":
            self.offer(b"reminder", key=b"k")
            self.offer(b"reminder2")
        elif what == "wait":
            self.set_timer("t", self.now_ns + 1_000_000_000)
        elif what == "bad":
            self.effect("never", b"")
            raise ValueError(what)
        else:
            self.effect("charge", what.encode())
            self.emit(b"x")

    def on_timer(self, name: str) -> None:
        self.told.append(name)

    def on_effect(self, effect: Effect) -> bytes | None:
        return b"paid-" + effect.payload

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        self.told.append(f"{effect.name}:{effect.payload.decode()}:{result.decode()}")

    def take_snapshot(self) -> bytes:
        return " ".join(self.told).encode()


def record(offset: int, value: bytes, headers: Any = ()) -> Record:
    return Record(offset, offset, None, value, headers, "orders", None, 1)


def machine_of(service: Service | None = None, snapshot: Any = None) -> ServiceMachine:
    made = ServiceMachine(service or Shop(), WHO, snapshot_interval_records=1000, outbox=Outbox("u/0", service="shop"))
    made.start(snapshot)
    return made


# ---- the state -------------------------------------------------------------------------------------------------------------
def test_service_restored_from_a_snapshot_resumes_pending_effects() -> None:
    machine = machine_of()
    assert machine.snapshot().sections == ()
    machine.apply([record(0, b"a"), record(1, b"remind")])
    again = machine_of(snapshot=machine.snapshot())
    assert list(again.effects) == list(machine.effects)
    again.apply([record(2, b"reminder", result_headers("shop", 1)), record(3, b"c")])
    assert [effect.number for effect in again.effects] == [0, 2, 3, 4], "numbers are never used twice"
    assert b"order:reminder" in again.snapshot().state


# ---- numbers of effects ----------------------------------------------------------------------------------------------------
def numbering(offset: int, numbering: EffectNumbering = EffectNumbering.BY_RECORD, epoch: int = 1) -> Record:
    return record(offset, b"", NumberingDecision("shop", numbering, epoch).headers())


def applied(*records: Record, skipped: tuple[Unit, ...] = (), snapshot: Snapshot | None = None) -> ServiceMachine:
    machine = machine_of(snapshot=snapshot)
    for unit in skipped:
        machine.skip(unit)
    machine.apply(records)
    return machine


def result_of(machine: ServiceMachine, payload: bytes, offset: int) -> Record:
    (effect,) = (effect for effect in machine.effects if effect.payload == payload)
    value = payload if effect.is_offer else b"paid-" + payload
    return record(offset, value, result_headers("shop", effect.number))


def told(machine: ServiceMachine) -> list[str]:
    return machine.snapshot().state.decode().split()


def ids(machine: ServiceMachine) -> dict[bytes, str]:
    return {effect.payload: effect.id for effect in machine.effects}


def test_service_replay_without_a_skipped_record_gives_each_effect_its_own_result_and_id() -> None:
    """[A23]."""
    log = [numbering(0), record(1, b"a"), record(2, b"remind"), record(3, b"b"), record(4, b"c")]
    first = applied(*log)
    log += [result_of(first, payload, 5 + n) for n, payload in enumerate((b"a", b"reminder2", b"b"))]
    replayed = applied(*log, skipped=(Unit(1),))
    assert told(replayed) == ["order:remind", "order:b", "order:c", "order:reminder2", "charge:b:paid-b"]
    assert [ids(replayed)[payload] for payload in (b"reminder", b"c")] == [
        ids(first)[payload] for payload in (b"reminder", b"c")
    ]
    assert len(set(ids(first).values())) == 5


def test_service_effect_of_another_record_at_the_same_offset_has_another_id() -> None:
    """An unclean election may replace a record, also by one that requests an equal effect."""
    kept, lost = applied(numbering(0), record(1, b"a")), applied(numbering(0), record(1, b"b"))
    again = applied(numbering(0), record(1, b"a")._replace(leader_epoch=2))
    found = [*ids(kept).values(), *ids(lost).values(), *ids(again).values()]
    assert len(set(found)) == 3
    late = applied(numbering(0), record(1, b"b"), result_of(kept, b"a", 2))
    assert told(late) == ["order:b"]
    assert ids(late) == ids(lost)


def test_service_equal_effects_of_one_record_have_ids_that_do_not_depend_on_skipped_timers() -> None:
    class Twice(Shop):
        def on_record(self, record: Record) -> None:
            for name in ("t1", "t2") if record.value == b"set" else ():
                self.set_timer(name, self.now_ns)
            self.effect("charge", b"x")
            self.effect("charge", b"x")

        def on_timer(self, name: str) -> None:
            self.effect("charge", b"x")
            self.effect("remind", name.encode())

    def found(*skipped: Unit) -> list[str]:
        machine = machine_of(Twice())
        for unit in skipped:
            machine.skip(unit)
        machine.apply([numbering(0), record(1, b"set"), record(2, b"y")])
        return [effect.id for effect in machine.effects]

    everything = found()
    assert len(everything) == len(set(everything)) == 8
    assert found(Unit(2, "t1")) == [*everything[:2], *everything[4:]]
    assert found(Unit(2)) == everything[:6]


def test_service_effects_pending_at_a_change_of_their_numbering_keep_their_ids() -> None:
    """A snapshot has the numbering. Results from before and after the change end their effects."""
    before = applied(record(0, b"a"), record(1, b"b"))
    assert ids(before) == {b"a": "u/0/shop/0", b"b": "u/0/shop/1"}
    log = [numbering(2), record(3, b"c")]
    machine = applied(*log, snapshot=before.snapshot())
    assert ids(machine).items() > ids(before).items()
    replayed = applied(record(0, b"a"), record(1, b"b"), *log)
    assert replayed.snapshot().encode() == machine.snapshot().encode()
    restored = machine_of(snapshot=decode(machine.snapshot().encode(), WHO))
    assert ids(restored) == ids(machine)
    restored.apply([result_of(machine, payload, 4 + n) for n, payload in enumerate((b"b", b"c", b"a"))])
    restored.apply([record(7, b"d")])
    assert told(restored)[3:] == ["charge:b:paid-b", "charge:c:paid-c", "charge:a:paid-a", "order:d"]
    assert restored.effects.count == 4
    from_first = applied(numbering(2), record(3, b"c"), *(record(n, b"", ()) for n in range(4, 7)), record(7, b"d"))
    assert ids(restored)[b"d"] == ids(from_first)[b"d"], "it does not depend on earlier effects"


def test_service_that_counts_its_effects_again_gives_no_number_twice() -> None:
    """So it does before a downgrade to a version that only counts."""
    machine = applied(record(0, b"a"), numbering(1), record(2, b"b"), numbering(3, EffectNumbering.BY_COUNT))
    machine.apply([record(4, b"c")])
    again = applied(record(5, b"d"), numbering(6), record(7, b"e"), snapshot=decode(machine.snapshot().encode(), WHO))
    numbers = [effect.number for effect in again.effects]
    assert len(set(numbers)) == 5
    assert numbers[3] == numbers[2] + 1
    assert max(len(str(number)) for number in numbers) <= 19, "earlier versions ignore longer numbers"


@each(
    "decision",
    [
        numbering(0, epoch=7),
        record(0, b"", (("Lift-Service-Version", b"other/effects-by-record/1"),)),
        record(0, b"", (("Lift-Service-Version", b"shop/effects-by-x/1"),)),
    ],
)
def test_service_numbering_decision_that_is_invalid_is_ignored(decision: Record) -> None:
    machine = applied(decision, record(1, b"a"))
    assert (told(machine), ids(machine)) == (["order:a"], {b"a": "u/0/shop/0"})
    skipped = applied(numbering(0), record(1, b"a"), skipped=(Unit(0),))
    assert ids(skipped) == ids(machine)


def test_service_offer_whose_result_arrives_twice_is_applied_once() -> None:
    test = ServiceTest(Shop).send(b"remind")
    assert [(effect.is_offer, effect.payload, effect.key) for effect in test.effects] == [
        (True, b"reminder", b"k"),
        (True, b"reminder2", None),
    ]
    offer = test.effects[0]
    test.result(offer).result(offer)
    assert test.snapshot() == b"order:remind order:reminder"


def test_service_test_harness_run_effects_applies_the_effect_results() -> None:
    test = ServiceTest(Shop).send(b"a").run_effects()
    assert test.snapshot() == b"order:a charge:a:paid-a"
    test.send(b"b").result(test.effects[0], b"refused")
    assert test.snapshot().endswith(b"charge:b:refused")
    test.verify(hash_seeds=1)

    class Endless(Shop):
        def on_effect_result(self, effect: Effect, result: bytes) -> None:
            self.effect("more", b"")

    with pytest.raises(ServiceFailedError, match="than 5 effects"):
        ServiceTest(Endless).send(b"a").run_effects(limit=5)


async def test_service_test_harness_runs_an_async_effect_inside_a_running_event_loop() -> None:
    class Async(Shop):
        async def on_effect(self, effect: Effect) -> bytes | None:  # type: ignore[override]
            await asyncio.sleep(0)
            return b"paid"

    assert ServiceTest(Async).send(b"a").run_effects().snapshot() == b"order:a charge:a:paid"


def test_service_tick_fires_only_due_timers() -> None:
    test = ServiceTest(Shop).send(b"wait").tick()
    assert test.snapshot() == b"order:wait"
    test.advance(2).tick()
    assert test.snapshot() == b"order:wait t"


def test_service_effect_above_the_pending_limit_or_without_on_effect_fails_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoHandler(Shop):
        on_effect = Service.on_effect

    with pytest.raises(ServiceFailedError, match="Define on_effect"):
        ServiceTest(NoHandler).send(b"a")
    monkeypatch.setattr(bounds, "MAX_PENDING", 3)
    test = ServiceTest(Shop).send(b"a").send(b"b")
    with pytest.raises(ServiceFailedError, match="Too many pending effects"):
        test.send(b"remind")


# ---- the LEADER ------------------------------------------------------------------------------------------------------------
class Writer:
    """A writer to a log in memory that applies each record. ``deaf``: appends are not acknowledged."""

    def __init__(self, machine: ServiceMachine) -> None:
        self.machine = machine
        self.appended: list[tuple[bytes, bytes | None, Any]] = []
        self.deaf = False
        self.applies = True
        self.offset = 0

    async def append(self, name: str, partition: int, value: bytes, key: bytes | None, headers: Any, uid: str = "") -> int:
        assert (name, partition, uid) == ("orders", 0, "u")
        await asyncio.sleep(0)
        if self.deaf:
            raise UnavailableError("no ack")
        self.appended.append((value, key, tuple(headers)))
        if self.applies:
            self.machine.apply([record(self.machine.position, value, tuple(headers))])
        return self.offset


class Bench:
    def __init__(self, machine: ServiceMachine, record_writer: RecordWriter | None = None, **settings: Any) -> None:
        self._machine, self.writer = machine, Writer(machine)
        self.checks = 0
        self.leads = True
        self.emitted_end: int | None = None
        made = ServiceSettings("shop", "orders", "n1", Path("unused"), **settings)
        writer: Any = record_writer or self.writer
        own: Any = self
        self.runner = EffectRunner(writer, made, own)
        self.task = asyncio.create_task(self.runner.run())

    @property
    def machine(self) -> ServiceMachine:
        self.checks += 1
        return self._machine

    def restore(self, machine: ServiceMachine) -> None:
        """Replace the machine, as a feeder does."""
        self._machine = self.writer.machine = machine

    async def turns(self, number: int) -> None:
        """Wait until the runner has looked at the machine ``number`` more times."""
        end = self.checks + number
        await self.until(lambda: self.checks >= end)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.001)


async def test_service_effect_runner_of_the_leader_runs_handlers_in_threads_and_appends_results() -> None:
    where: list[int] = []

    class Seen(Shop):
        async def on_effect(self, effect: Effect) -> bytes | None:  # type: ignore[override]
            await asyncio.sleep(0)
            where.append(threading.get_ident())
            with pytest.raises(ServiceFailedError, match="emit is allowed only in on_record and on_timer"):
                self.emit(b"from elsewhere")
            return None

    bench = Bench(machine_of(Seen()))
    bench.leads = False
    bench.machine.apply([record(0, b"a"), record(1, b"remind")])
    checks = bench.checks
    await asyncio.sleep(0.3)
    assert (bench.writer.appended, bench.checks - checks) == ([], 1), "a FOLLOWER does nothing, and does not poll"
    bench.leads, bench.emitted_end = True, 0
    bench.runner.wake()  # as its host does when the leadership comes
    await asyncio.sleep(0.1)
    assert bench.writer.appended == [], "an output of the first is not written yet"
    bench.emitted_end = 10
    await bench.until(lambda: not any(effect.number < 3 for effect in bench.machine.effects))
    first = [result_headers("shop", number) for number in range(3)]
    assert sorted((one for one in bench.writer.appended if one[2] in first), key=lambda a: a[2]) == [
        (b"", None, result_headers("shop", 0)),
        (b"reminder", b"k", result_headers("shop", 1)),
        (b"reminder2", None, result_headers("shop", 2)),
    ]
    assert where
    assert threading.get_ident() not in where
    bench.task.cancel()


async def test_service_effect_runner_retries_a_failing_or_hanging_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.service.effect_runner._FIRST_WAIT_S", 0.01)
    tries: list[str] = []
    hang = threading.Event()

    class Failing(Shop):
        def on_effect(self, effect: Effect) -> Any:
            tries.append(effect.id)
            if len(tries) == 1:
                raise KeyError("no card")
            if len(tries) == 2:
                return "no bytes"
            if len(tries) == 3:
                hang.wait(30)
            return b"paid"

    bench = Bench(machine_of(Failing()), effect_timeout_s=0.05)
    bench.machine.apply([record(0, b"a")])
    await bench.until(lambda: "KeyError" in bench.runner.problem)
    assert "'charge' u/0/shop/0, try 1" in bench.runner.problem
    await bench.until(lambda: "Return bytes or None" in bench.runner.problem)
    await bench.until(lambda: "TimeoutError" in bench.runner.problem)
    await bench.until(lambda: not len(bench.machine.effects))
    assert set(tries) == {"u/0/shop/0"}
    await bench.until(lambda: not bench.runner.problem)
    hang.set()
    bench.task.cancel()


@pytest.mark.parametrize("raised", [StopIteration(), asyncio.CancelledError(), SystemExit(3)])
async def test_service_effect_runner_retries_a_handler_that_raises_no_ordinary_exception(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.service.effect_runner._FIRST_WAIT_S", 0.01)
    tries: list[str] = []

    class Failing(Shop):
        def on_effect(self, effect: Effect) -> bytes:
            tries.append(effect.id)
            if len(tries) == 1:
                raise raised
            return b"paid"

    bench = Bench(machine_of(Failing()), effect_timeout_s=30, max_concurrent_effects=1)
    bench.machine.apply([record(0, b"a"), record(1, b"b")])
    await bench.until(lambda: not len(bench.machine.effects))
    assert len(tries) == 3, "the thread of the failed try counts no more"
    bench.task.cancel()


async def test_service_effect_runner_after_a_failed_append_appends_the_same_result_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a leader of the input, the handler would charge the card again and again."""
    monkeypatch.setattr("liftpy.service.effect_runner._FIRST_WAIT_S", 0.01)
    ran: list[int] = []

    class Counted(Shop):
        def on_effect(self, effect: Effect) -> bytes:
            ran.append(effect.number)
            return b"%d" % len(ran)

    bench = Bench(machine_of(Counted()), max_concurrent_effects=2)
    bench.writer.deaf = True
    bench.machine.apply([record(offset, b"a") for offset in range(4)])
    await bench.until(lambda: bench.runner.problem and "try 3" in bench.runner.problem)
    assert sorted(ran) == [0, 1], "two results wait, so no more handlers begin"
    bench.writer.deaf = False
    await bench.until(lambda: not len(bench.machine.effects))
    assert sorted(ran) == [0, 1, 2, 3]
    assert sorted(value for value, _, _ in bench.writer.appended) == [b"1", b"2", b"3", b"4"]
    bench.task.cancel()


async def test_service_effect_runner_with_results_that_are_too_large_runs_the_other_effects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("liftpy.service.effect_runner._FIRST_WAIT_S", 0.01)

    class Stream:
        """The input stream, with a limit of 1,000 bytes, and its client."""

        max_message_bytes = 1000
        bench: Bench

        def __init__(self) -> None:
            self.transport: Any = self

        async def stream(self, name: str) -> Any:
            return SimpleNamespace(uid="u", subject="orders", answers=True, partitions=[None])

        async def request(self, subject: str, payload: bytes, *_: Any) -> bytes:
            message, ack = frames.decode(payload, client_pb2.Message), client_pb2.Ack(stream="orders", partition=0)
            if len(message.value) > self.max_message_bytes:
                ack.ackError = client_pb2.Ack.TOO_LARGE
            else:
                headers = tuple((header.name, header.value) for header in message.headers)
                ack.offset = self.bench.machine.position
                self.bench.machine.apply([record(ack.offset, message.value, headers)])
            return frames.encode(ack)

    class Large(Shop):
        def on_effect(self, effect: Effect) -> bytes:
            return bytes(2000) if effect.payload == b"large" else b"paid"

    stream: Any = Stream()
    bench = Bench(machine_of(Large()), RecordWriter(stream), max_concurrent_effects=1)
    stream.bench = bench
    bench.machine.apply([record(0, b"large"), record(1, b"large"), record(2, b"a"), record(3, b"remind")])
    await bench.until(lambda: [effect.number for effect in bench.machine.effects if effect.number < 4] == [0, 1])
    assert "TOO_LARGE" in bench.runner.problem
    assert "effect failed service=shop" in caplog.text
    stream.max_message_bytes = 4000
    await bench.until(lambda: all(effect.number > 1 for effect in bench.machine.effects))
    bench.task.cancel()


class Till(Shop):
    """A shop that tells on a query what it was told."""

    def on_record(self, record: Record) -> None:
        self.told.append(f"order:{(record.value or b'').decode()}")
        self.effect("charge", record.value or b"")

    def on_query(self, query: bytes) -> bytes:
        return self.take_snapshot()


async def test_service_runs_effects_while_the_metadata_group_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(text: str, offset: int) -> None:
        async with asyncio.timeout(30):
            while text not in (await client.services.query("till", b"?", at_least=offset)).value.decode():
                await asyncio.sleep(0.01)

    async with memory_cluster(nodes=1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "orders")
        await asyncio.to_thread(cluster.serve, Till, "till", "orders")
        await ask("charge:a:paid-a", (await client.publish("orders", b"a")).offset + 1)

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(MetadataRequests, "stream", never)
        await ask("charge:b:paid-b", (await client.publish("orders", b"b")).offset + 1)


async def test_service_effect_runner_of_a_slow_service_runs_no_effect_with_a_result_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.effect_runner._APPLIED_WITHIN_S", 0.01)
    bench = Bench(machine_of())
    bench.writer.applies, bench.writer.offset = False, 5
    bench.machine.apply([record(0, b"a")])
    await bench.until(lambda: bench.writer.appended)
    await bench.turns(10)
    assert len(bench.writer.appended) == 1, "the state has not come to its result yet"
    bench.machine.apply([record(offset, b"remind") for offset in range(1, 6)])
    await bench.until(lambda: [value for value, _, _ in bench.writer.appended].count(b"paid-a") > 1)
    bench.task.cancel()


async def test_service_effect_runner_of_a_replaying_leader_runs_no_effects() -> None:
    bench = Bench(machine_of())
    bench.machine.replay_end = 3
    bench.machine.apply([record(0, b"a"), record(1, b"b")])
    await bench.turns(5)
    assert bench.writer.appended == []
    bench.machine.apply([record(2, b"paid-a", result_headers("shop", 0))])
    await bench.until(lambda: not len(bench.machine.effects))
    assert [value for value, _, _ in bench.writer.appended] == [b"paid-b"]
    bench.task.cancel()


async def test_service_effect_runner_with_a_restored_state_appends_results_to_their_own_effects_only() -> None:
    """The number of an effect belongs to another one if an unclean election, or a skip, removed the record that scheduled it."""
    ran, go = list[bytes](), threading.Event()

    class Slow(Shop):
        def on_effect(self, effect: Effect) -> bytes:
            ran.append(effect.payload)
            go.wait(30)
            return b"paid-" + effect.payload

    bench = Bench(machine_of(Slow()))
    bench.machine.apply([record(0, b"lost"), record(1, b"same")])
    await bench.until(lambda: len(ran) == 2)
    restored = machine_of(Slow())
    restored.replay_end = 2
    bench.restore(restored)
    go.set()
    await bench.turns(5)
    assert bench.writer.appended == []
    restored.apply([record(0, b"other"), record(1, b"same")])
    await bench.until(lambda: not len(restored.effects))
    assert sorted(value for value, _, _ in bench.writer.appended) == [b"paid-other", b"paid-same"]
    assert sorted(ran) == [b"lost", b"other", b"same"], "the result of the equal effect is appended without another run"
    assert sorted(restored.service.told[2:]) == ["charge:other:paid-other", "charge:same:paid-same"]  # type: ignore[attr-defined]
    bench.task.cancel()


async def test_service_effect_runner_limits_the_number_of_concurrent_handlers() -> None:
    running, most = [0], [0]
    lock, go = threading.Lock(), threading.Event()

    class Slow(Shop):
        def on_effect(self, effect: Effect) -> bytes:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            go.wait(30)
            with lock:
                running[0] -= 1
            return b""

    bench = Bench(machine_of(Slow()), max_concurrent_effects=2)
    bench.machine.apply([record(offset, b"a") for offset in range(6)])
    await bench.until(lambda: running[0] == 2)
    await asyncio.sleep(0.1)
    go.set()
    await bench.until(lambda: not len(bench.machine.effects))
    assert most[0] == 2
    bench.task.cancel()


async def test_service_effect_runner_with_due_timers_appends_ticks_at_the_tick_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.effect_runner._IDLE_CHECK_S", 0.001)
    bench = Bench(machine_of(), tick_interval_s=0.05)
    await asyncio.sleep(0.2)
    assert bench.writer.appended == [], "no timer is set"
    bench.machine.apply([record(0, b"wait")])  # of 1970: it is due
    bench.writer.applies = False
    began_s = time.monotonic()
    await bench.until(lambda: len(bench.writer.appended) >= 4)
    assert time.monotonic() - began_s >= 0.14
    assert bench.writer.appended[0] == (b"", None, tick_headers("shop"))
    bench.leads = False
    await asyncio.sleep(0.15)
    count = len(bench.writer.appended)
    await asyncio.sleep(0.15)
    assert len(bench.writer.appended) == count
    bench.task.cancel()
