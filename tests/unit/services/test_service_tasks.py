"""Test the background tasks of a service: effects, replies, queries and decisions, and their retries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.effects import Effect
from liftpy.core.services.outbox import EXPECTED_HEADER, MAX_OUTPUT_BYTES
from liftpy.core.services.queries import POSITION_HEADER, Query
from liftpy.core.services.replies import Reply, ReplyBuffer
from liftpy.core.services.service import Service
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, ProtocolError, UnavailableError
from liftpy.service import Identity, Outbox, ServiceFailedError, ServiceMachine, effect_runner, query_server
from liftpy.service.bad_record_writer import RecordWriter
from liftpy.service.effect_runner import EffectRunner
from liftpy.service.query_server import QueryServer
from liftpy.service.reply_sender import Replier
from liftpy.service.settings import ServiceSettings
from tests.only_in import only_in

WHO = Identity("shop", "orders", "u", 0)


class Shop(Service):
    """A service that requests an effect, an offer or a timer, as the record says."""

    outcome: Any = b"done"

    def on_record(self, record: Record) -> None:
        what = (record.value or b"").decode()
        if what == "offer":
            self.offer(b"offered", key=b"k")
        elif what.startswith("timer "):
            self.set_timer("t", int(what.split()[1]))
        elif what == "output":
            self.emit(b"x")
            self.effect("after", b"")
        else:
            self.effect(what, b"p-" + what.encode())

    def on_timer(self, name: str) -> None: ...

    def on_effect(self, effect: Effect) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def on_effect_result(self, effect: Effect, result: bytes) -> None: ...

    def on_query(self, body: bytes) -> bytes:
        return body * 2

    def take_snapshot(self) -> bytes:
        return b""


def machine_of(*values: bytes) -> ServiceMachine:
    machine = ServiceMachine(Shop(), WHO, snapshot_interval_records=1000, outbox=Outbox("u/0", service="shop"))
    machine.start(None)
    machine.apply([Record(offset, 0, None, value, (), "", None, 1) for offset, value in enumerate(values)])
    return machine


class Acting:
    """An effect runner whose writer records its appends. ``error``: the error of an append."""

    def __init__(self, machine: ServiceMachine, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.machine, self.emitted_end = machine, None
        self.appended: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        made = ServiceSettings("shop", "orders", "n1", Path("unused"), **settings)
        self.now_s = 1000.0
        self.leads = True
        self.runner: Any = EffectRunner(self, made, self)  # type: ignore[arg-type]
        only_in(monkeypatch, effect_runner, "time", monotonic=lambda: self.now_s)

    async def append(self, *given: Any) -> int:
        if self.error is not None:
            raise self.error
        self.appended.append(given)
        return 0

    async def act(self) -> None:
        """Run one turn and the tasks that it starts."""
        self.runner._begin(self.machine)
        while begun := [one.task for one in self.runner._tries.values() if one.task is not None]:
            await asyncio.wait(begun)


# ---- effects ---------------------------------------------------------------------------------------------------------------
async def test_service_effect_runner_appends_results_and_offers_to_its_own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Acting(machine_of(b"pay", b"offer"), monkeypatch)
    await bench.act()
    assert sorted(bench.appended, key=str) == [
        ("orders", 0, b"done", None, (("Lift-Service-Effect", b"shop/0"),), "u"),
        ("orders", 0, b"offered", b"k", (("Lift-Service-Effect", b"shop/1"),), "u"),
    ]
    await bench.act()
    assert len(bench.appended) == 2, "both wait to be applied"
    bench.now_s += 9.9
    await bench.act()
    assert len(bench.appended) == 2
    bench.now_s += 0.2
    await bench.act()
    assert len(bench.appended) == 4, "a result that is not in the state by now was lost"


async def test_service_effect_runner_with_a_failing_handler_retries_with_backoff_and_reports_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Acting(machine_of(b"pay"), monkeypatch)
    bench.error = UnavailableError("no ack")
    waits, said = [], []
    for _ in range(11):
        await bench.act()
        (one,) = bench.runner._tries.values()
        waits.append(one.again_s - bench.now_s)
        said.append(bench.runner.problem)
        bench.now_s = one.again_s - 0.001
        await bench.act()
        assert one.failures == len(waits), "not before its time"
        bench.now_s = one.again_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert said[1] == "effect 'pay' u/0/shop/0, try 2: UNAVAILABLE: no ack"
    assert [r.getMessage().split("try ")[1].split(":")[0] for r in caplog.records] == ["1", "10"], "not each of them"
    bench.error = None
    bench.now_s += 60
    await bench.act()
    bench.machine.effects.end(0)
    bench.runner._begin(bench.machine)
    assert (bench.runner.problem, bench.runner._tries) == ("", {})


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (7, "SERVICE_FAILED: on_effect returned int. Return bytes or None."),
        (
            b"x" * (MAX_OUTPUT_BYTES + 1),
            f"SERVICE_FAILED: on_effect returned {MAX_OUTPUT_BYTES + 1} bytes, at most {MAX_OUTPUT_BYTES} are allowed. "
            "Return a reference to larger data.",
        ),
        (KeyError("k"), "KeyError: 'k'"),
        (b"x" * MAX_OUTPUT_BYTES, ""),
        (None, ""),
        (b"", ""),
    ],
)
async def test_service_effect_runner_rejects_a_handler_result_that_is_not_bytes(
    outcome: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shop, "outcome", outcome)
    bench = Acting(machine_of(b"pay"), monkeypatch)
    await bench.act()
    assert bench.runner.problem == (f"effect 'pay' u/0/shop/0, try 1: {said}" if said else "")
    assert [given[2] for given in bench.appended] == ([] if said else [outcome or b""])
    assert bench.runner._threads == 0


async def test_service_effect_runner_runs_an_effect_after_the_outputs_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Acting(machine_of(b"pay", b"output", b"late"), monkeypatch)
    bench.emitted_end = 0
    await bench.act()
    assert list(bench.runner._tries) == [0]
    bench.emitted_end = 1
    await bench.act()
    assert list(bench.runner._tries) == [0, 1, 2]


@pytest.mark.parametrize(("threads", "begun"), [(0, 2), (1, 2), (2, 0)])
async def test_service_effect_runner_includes_hanging_threads_in_the_thread_limit(
    threads: int, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Acting(machine_of(b"a", b"b", b"c"), monkeypatch, max_concurrent_effects=2)
    bench.runner._threads = threads
    bench.runner._begin(bench.machine)
    running = [one.task for one in bench.runner._tries.values() if one.task is not None]
    assert len(running) == begun
    bench.runner._cancel_all()
    assert (bench.runner._tries, bench.runner.problem) == ({}, "")
    await asyncio.gather(*running, return_exceptions=True)
    assert all(task.cancelled() for task in running)


async def test_service_effect_runner_result_from_another_node_cancels_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Acting(machine_of(b"a", b"b"), monkeypatch)
    bench.runner._begin(bench.machine)
    tasks = [one.task for one in bench.runner._tries.values()]
    bench.machine.effects.end(0)
    bench.runner._begin(bench.machine)
    assert list(bench.runner._tries) == [1]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, False]


async def test_service_effect_runner_stops_without_leadership_or_with_failed_state(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waits = machine_of(b"a"), list[tuple[int, float]]()
    instance: Any = SimpleNamespace(machine=machine, leads=True, emitted_end=None)
    made: Any = EffectRunner(None, ServiceSettings("shop", "orders", "n1", Path("x")), instance)  # type: ignore[arg-type]
    states = iter(["runs", "follows", "runs", "failed", "end"])

    async def sleep(wait_s: float) -> None:
        waits.append((len(made._tries), wait_s))
        state = next(states)
        instance.leads, machine.failed = state != "follows", state == "failed"
        if state == "end":
            raise asyncio.CancelledError

    async def wait_for(woken: Any, wait_s: float) -> None:
        woken.close()
        await sleep(wait_s)

    monkeypatch.setattr(effect_runner, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep, "wait_for": wait_for}))
    monkeypatch.setattr(EffectRunner, "_act", lambda *_: asyncio.Event().wait())
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    assert waits == [(1, 0.01), (1, 0.01), (0, 30.0), (1, 0.01), (0, 0.05)]
    assert made._tries == {}


@pytest.mark.parametrize(
    ("tick_interval_s", "timer_s", "ticked_s", "rest_s"),
    [(1.0, 100.2, 0.0, 0.2), (1.0, 99.0, 0.0, 0.05), (1.0, 99.0, -0.9, 0.1), (1.0, 207.0, 0.0, 30.0), (0.0, 100.2, 0.0, 30.0),
     (1.0, None, 0.0, 30.0)],
)  # fmt: skip
async def test_service_effect_runner_sleeps_until_the_next_timer_is_due(
    tick_interval_s: float, timer_s: float | None, ticked_s: float, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(b"timer %d" % round(timer_s * 10**9)) if timer_s is not None else machine_of()
    bench = Acting(machine, monkeypatch, tick_interval_s=tick_interval_s)
    only_in(monkeypatch, effect_runner, "time", time_ns=lambda: 100 * 10**9)
    bench.runner._ticked_s = bench.now_s + ticked_s if ticked_s else bench.now_s - 60
    assert bench.runner._rest_s(machine) == pytest.approx(rest_s)
    assert bench.runner._rest_s(None) == 30.0
    bench.leads = False
    assert bench.runner._rest_s(machine) == 30.0


async def test_service_effect_runner_starts_a_new_effect_without_waiting_for_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effect_runner, "_IDLE_CHECK_S", 3600.0)
    machine, ran = machine_of(), list[int]()
    instance: Any = SimpleNamespace(machine=machine, leads=True, emitted_end=None)
    settings = ServiceSettings("shop", "orders", "n1", Path("x"))
    made: Any = EffectRunner(None, settings, instance)  # type: ignore[arg-type]
    machine.on_work = made.wake

    async def act(_: Any, machine: Any, effect: Any, __: Any) -> None:
        ran.append(effect.number)
        machine.effects.end(effect.number)

    monkeypatch.setattr(EffectRunner, "_act", act)
    running = asyncio.create_task(made.run())

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)

    def asks(offset: int) -> None:
        machine.apply([Record(offset, 0, None, b"a", (), "", None, 1)])

    await until(lambda: made._wake_event._waiters)
    asks(0)
    await until(lambda: ran == [0] and made._wake_event._waiters)
    instance.leads = False
    asks(1)
    assert not made._wake_event.is_set()
    instance.leads = True
    made.wake()
    await until(lambda: ran == [0, 1])
    running.cancel()


async def test_service_effect_runner_wakes_for_a_new_timer_only_if_due_before_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = machine_of()
    bench = Acting(machine, monkeypatch, tick_interval_s=1.0)
    only_in(monkeypatch, effect_runner, "time", time_ns=lambda: 100 * 10**9)
    machine.on_work = bench.runner.wake

    def wakes(value: bytes) -> bool:
        bench.runner._wake_event.clear()
        machine.apply([Record(machine.position, 0, None, value, (), "", None, 1)])
        return bool(bench.runner._wake_event.is_set())

    bench.runner._rests_until_s = bench.now_s + 10
    assert not wakes(b"timer %d" % (120 * 10**9))
    assert wakes(b"timer %d" % (105 * 10**9))
    bench.runner._rests_until_s = bench.now_s + 5
    assert not wakes(b"timer %d" % (108 * 10**9)), "another is due first"
    assert wakes(b"a"), "an effect always does"


# ---- ticks -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tick_interval_s", "timer_s", "passed_s", "ticks"),
    [(5.0, 100, 5.0, 1), (5.0, 100, 4.9, 0), (0.0, 100, 60.0, 0), (5.0, 101, 60.0, 0), (5.0, None, 60.0, 0)],
)
async def test_service_effect_runner_appends_a_tick_when_a_timer_is_due_by_wall_clock_time(
    tick_interval_s: float, timer_s: int | None, passed_s: float, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(b"timer %d" % (timer_s * 10**9)) if timer_s is not None else machine_of()
    bench = Acting(machine, monkeypatch, tick_interval_s=tick_interval_s)
    only_in(monkeypatch, effect_runner, "time", time_ns=lambda: 100 * 10**9)
    bench.runner._ticked_s = bench.now_s - passed_s
    await bench.runner._tick(machine)
    assert bench.appended == [("orders", 0, b"", None, (("Lift-Service-Tick", b"shop"),), "u")] * ticks
    await bench.runner._tick(machine)
    assert len(bench.appended) == ticks, "not twice in tick_interval_s"


async def test_service_effect_runner_reports_a_rejected_tick_and_writes_the_tick_later(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Acting(machine_of(b"timer 1"), monkeypatch, tick_interval_s=5.0)
    bench.error = UnavailableError("no ack")
    await bench.runner._tick(bench.machine)
    assert (bench.runner.problem, bench.runner._ticked_s) == ("tick: UNAVAILABLE: no ack", bench.now_s)


# ---- queries ---------------------------------------------------------------------------------------------------------------
class Answers:
    """A transport and its connection that record publishes. ``deaf``: not connected."""

    def __init__(self, max_payload: int = 2000) -> None:
        self.connection = SimpleNamespace(max_payload=max_payload)
        self.said: list[tuple[str, bytes, dict[str, str]]] = []
        self.deaf: type[Exception] | None = None

    async def publish(self, subject: str, payload: bytes, *, headers: dict[str, str]) -> None:
        if self.deaf is not None:
            raise self.deaf("no")
        self.said.append((subject, payload, headers))


def server_of(transport: Answers, machine: ServiceMachine | None) -> Any:
    settings = ServiceSettings("shop", "orders", "n1", Path("unused"), partition=3)
    instance = SimpleNamespace(machine=machine, is_fed=True, has_caught_up=True)
    return QueryServer(transport, transport, Subjects("ns"), settings, instance)  # type: ignore[arg-type]


def message(reply: str = "_INBOX.r", headers: dict[str, str] | None = None, data: bytes = b"?") -> Any:
    return SimpleNamespace(data=data, reply=reply, headers=headers)


async def test_service_query_server_drops_queries_without_reply_subject_and_rejects_invalid_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Answers()
    server = server_of(bus, machine_of())
    only_in(monkeypatch, query_server, "time", monotonic=lambda: 5.0)
    await server._message_arrived(message(reply=""))
    await server._message_arrived(message(headers={"Lift-At-Least": "-1"}))
    assert (server.waiting_count, server.refused_count, server._arrival.is_set()) == (0, 1, False)
    assert bus.said[0][::2] == ("_INBOX.r", {"Lift-Error": "QUERY_FAILED", "Lift-Node": "n1"})
    await server._message_arrived(message(headers={"Lift-At-Least": "7"}))
    await server._message_arrived(message(headers=None, data=b"later"))
    assert server._arrival.is_set()
    assert [(q.body, q.reply, q.arrived_s, q.position) for q in server._pending._waiting] == [
        (b"?", "_INBOX.r", 5.0, 7),
        (b"later", "_INBOX.r", 5.0, None),
    ]
    server._pending._max_queries = 2
    bus.said.clear()
    await server._message_arrived(message(reply="_INBOX.third"))
    assert (server.waiting_count, server.refused_count) == (2, 2)
    assert bus.said == [
        (
            "_INBOX.third",
            b"Too many queries wait on this node. Retry later, or query fewer at a time.",
            {"Lift-Error": "QUERY_REJECTED", "Lift-Node": "n1"},
        )
    ]


async def test_service_query_server_answer_limit_includes_the_headers() -> None:
    bus = Answers(max_payload=2000)
    server = server_of(bus, machine_of(b"pay"))
    for size, fits in ((488, True), (489, False)):
        await server._answer_one(server._instance.machine, Query(b"x" * size, "_INBOX.r", 0.0))
        (reply, payload, headers) = bus.said.pop()
        assert reply == "_INBOX.r"
        if fits:
            assert (payload, headers) == (b"x" * 976, {POSITION_HEADER: "1", "Lift-Node": "n1"})
        else:
            assert (payload, headers["Lift-Error"]) == (
                b"The answer has 978 bytes and does not fit into a NATS message. Ask for less.",
                "QUERY_FAILED",
            )
    assert (server.answered_count, server.refused_count) == (1, 1)
    await server._refuse("_INBOX.r", ServiceFailedError("y" * 3000))
    assert bus.said.pop()[1] == b"y" * 1024
    bus.deaf = UnavailableError
    await server._answer_one(server._instance.machine, Query(b"x", "_INBOX.r", 0.0))
    await server._refuse("_INBOX.r", ServiceFailedError("y"))
    assert (server.answered_count, server.refused_count, bus.said) == (2, 3, []), "who asked asks again"


async def test_service_query_server_without_a_leader_rejects_only_queries_that_wait_for_a_leader_position() -> None:
    bus = Answers()
    server = server_of(bus, machine_of(b"pay"))
    asked: list[Any] = []

    async def bounds(*given: Any, options: Any) -> Any:
        asked.append((given, options.patience_s, options.answer_timeout_s))
        raise UnavailableError("nobody leads")

    async def stream(name: str) -> None:
        raise UnavailableError("nobody says how many partitions it has")

    server._client = SimpleNamespace(bounds=bounds, stream=stream)
    first, second = Query(b"", "_INBOX.r1", 0.0), Query(b"", "_INBOX.r2", 0.0)
    server._pending.try_add(first)
    server._pending.try_add(second)
    server._pending.drop([second])
    await server._place([first, second])
    assert asked == [(("orders", 3), 1.0, 0.5)]
    why = b"Cannot determine the committed offset: UNAVAILABLE: nobody leads. Retry later, or accept an older state (--at-least 0)."
    assert bus.said == [("_INBOX.r1", why, {"Lift-Error": "QUERY_REJECTED", "Lift-Node": "n1"})]
    server._pending.try_add(third := Query(b"x", "_INBOX.r3", 0.0, position=1))
    await server._answer_ready()
    assert (server.waiting_count, bus.said[-1][:2]) == (0, ("_INBOX.r3", b"xx"))
    assert third.position == 1
    server._instance.machine = None
    server._pending.try_add(third)
    await server._answer_ready()
    assert server._pending.pop_expired(math.inf) == [third], "there is no state: it waits"


# ---- replies ---------------------------------------------------------------------------------------------------------------
def replier(bus: Answers, buffer: ReplyBuffer) -> Any:
    instance = SimpleNamespace(leads=True, emitted_end=None)
    return Replier(bus, ServiceSettings("shop", "orders", "n1", Path("x")), buffer, instance)  # type: ignore[arg-type]


async def test_service_reply_sender_retries_only_replies_that_were_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    bus = Answers()
    made = replier(bus, ReplyBuffer())
    await made._send(Reply(5, "_INBOX.a", b"v", error="E"))
    headers = {"Lift-Service": "shop", "Lift-Offset": "5", "Lift-Node": "n1", "Lift-Error": "E"}
    assert bus.said == [("_INBOX.a", b"v", headers)]
    bus.deaf = UnavailableError
    with pytest.raises(UnavailableError):
        await made._send(Reply(6, "_INBOX.a", b"v"))
    assert (made.sent_count, made.refused_count) == (1, 0)
    bus.deaf = ProtocolError
    await made._send(Reply(7, "_INBOX.a", b"four"))
    await made._send(Reply(8, "orders", b"v"))
    await made._send(Reply(9, None, b"v"))
    assert (made.sent_count, made.refused_count) == (1, 3)
    (said,) = caplog.records
    assert (
        said.getMessage()
        == "reply not sent service=shop offset=7 to='_INBOX.a' reason=the reply of 4 bytes is larger than this NATS server accepts"
    )


async def test_service_reply_sender_yields_between_replies_and_retries_a_failed_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, buffer, waits = Answers(), ReplyBuffer(), []
    for offset in range(300):
        buffer.add(Reply(offset, "_INBOX.a", b"", leader_epoch=1))
    made = replier(bus, buffer)

    async def sleep(wait_s: float) -> None:
        waits.append((wait_s, len(bus.said)))
        bus.deaf = UnavailableError if len(waits) == 1 else None
        if len(waits) == 4:
            raise asyncio.CancelledError

    async def wait_for(kept: Any, wait_s: float) -> None:
        kept.close()
        await sleep(wait_s)

    loop = SimpleNamespace(sleep=sleep, Event=asyncio.Event, wait_for=wait_for)
    monkeypatch.setattr("liftpy.service.reply_sender.asyncio", loop)
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    assert waits == [(0, 256), (0.002, 256), (0, 300), (30.0, 300)]
    assert [headers["Lift-Offset"] for _, _, headers in bus.said] == [str(offset) for offset in range(300)]


async def test_service_reply_sender_sends_a_new_reply_without_waiting_for_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.reply_sender._IDLE_CHECK_S", 3600.0)
    bus, buffer = Answers(), ReplyBuffer()
    running = asyncio.create_task(replier(bus, buffer).run())
    for offset in range(3):
        await asyncio.sleep(0)
        buffer.add(Reply(offset, "_INBOX.a", b"", leader_epoch=1))
        async with asyncio.timeout(30):
            while len(bus.said) <= offset:
                await asyncio.sleep(0.001)
    running.cancel()


# ---- what is said in the log -----------------------------------------------------------------------------------------------
class Log:
    """A client of one stream. Each publish returns ``ack``."""

    def __init__(self, **stream: Any) -> None:
        self.found = SimpleNamespace(
            **({"uid": "u9", "subject": "a.*.b.>", "answers": True, "partitions": [None] * 2} | stream)
        )
        self.transport = SimpleNamespace(request=self._request)
        self.asked: list[tuple[Any, ...]] = []
        self.ack = client_pb2.Ack(stream="s", partition=1, offset=33)

    async def stream(self, name: str) -> Any:
        return self.found

    async def _request(self, *given: Any) -> bytes:
        self.asked.append(given)
        return frames.encode(self.ack)


async def test_service_record_writer_sends_value_key_headers_and_stream_uid() -> None:
    log: Any = Log()
    writer = RecordWriter(log, 2.5)
    assert await writer.append("s", 1, b"v", b"", [("h", b"1")], "u9") == 33
    subject, payload, timeout_s, headers = log.asked.pop()
    assert (subject, timeout_s, headers) == ("a.service.b.service.1", 2.5, None)
    sent = frames.decode(payload, client_pb2.Message)
    wanted = client_pb2.Message(
        offset=-1, value=b"v", key=b"", keyed=True, stream="s", streamUid="u9", partition=1,
        headers=[client_pb2.Header(name="h", value=b"1")], ackPolicy=client_pb2.ALL,
    )  # fmt: skip
    assert sent == wanted
    await writer.append("s", 1, b"v", None, [], first=True)
    assert log.asked[-1][3] == {EXPECTED_HEADER: "0"}
    assert not frames.decode(log.asked[-1][1], client_pb2.Message).keyed
    log.ack.partition = 0
    await writer.append("s", 2, b"v", None, [])
    assert log.asked[-1][0] == "a.service.b.service", "a partition that is not there is the first"


@pytest.mark.parametrize(
    ("ack", "said"),
    [
        ({"stream": "other", "partition": 1}, "s/1 rejected the decision: 0. Retry later."),
        ({"stream": "s", "partition": 0}, "s/1 rejected the decision: 0. Retry later."),
        (
            {"stream": "s", "partition": 1, "ackError": client_pb2.Ack.NOT_LEADER, "detail": "n2 leads"},
            "s/1 rejected the decision: n2 leads. Retry later.",
        ),
    ],
)
async def test_service_record_writer_without_a_matching_ack_raises_unavailable(ack: dict[str, Any], said: str) -> None:
    log: Any = Log()
    log.ack = client_pb2.Ack(**ack)
    with pytest.raises(UnavailableError) as raised:
        await RecordWriter(log).append("s", 1, b"v", None, [])
    assert str(raised.value) == said
    assert log.asked[0][2] == 3.0


@pytest.mark.parametrize(
    ("stream", "uid", "said"), [({}, "u8", "was deleted and created again"), ({"answers": False}, "u9", "ack policy none")]
)
async def test_service_record_writer_with_a_recreated_stream_or_without_acks_raises_config_error(
    stream: dict[str, Any], uid: str, said: str
) -> None:
    log: Any = Log(**stream)
    with pytest.raises(ConfigError, match=said):
        await RecordWriter(log).append("s", 1, b"v", None, [], uid)
    assert log.asked == []
