"""Test that many status requests at once cost a node a limited time, and that each of them gets an answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.observe.history import NAMES, HistoryRows
from liftpy.core.wire.frames import decode_presence
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import UnavailableError
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime.settings import NodeSettings
from sidecar.status.answers import BUSY, FAILED, MOST_QUESTIONS, MOST_WAITING, SharedAnswers
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.status_api import NodeStatusRequester, StatusHandler
from sidecar.transport.liveness import QUESTION
from tests.unit.status.fake_bus import Bus
from tests.unit.status.fake_reporter import a_reporter, a_worker
from tests.unit.status.test_status_page import Reporter as Paged
from tests.until import until


class Questions:
    """Callers of ``SharedAnswers`` with a clock of their own. Each computation takes ``took_s`` seconds of it."""

    def __init__(self, took_s: float = 0.0, **options: Any) -> None:
        self.now = 100.0
        self.made: list[str] = []
        self.heard: list[bytes] = []
        self.counters = Counter[str]()
        self._took_s = took_s
        self.shared = SharedAnswers(RequestGuard("page", self.counters), now=lambda: self.now, **options)

    def ask(self, *questions: str, error: Exception | None = None) -> None:
        for question in questions:

            async def make(question: str = question) -> bytes:
                self.made.append(question)
                self.now += self._took_s
                if error is not None:
                    raise error
                return f"{question}{self.made.count(question)}".encode()

            self.shared.ask(question.encode(), make, self.heard.append)

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self.now += 0.05
                await asyncio.sleep(0)


async def test_shared_answers_are_computed_once_per_interval_for_all_equal_questions() -> None:
    q = Questions(interval_s=0.25, kept_s=5.0)
    q.ask(*["a"] * 200)
    await q.until_heard(200)
    assert (q.made, set(q.heard)) == (["a"], {b"a1"})
    began = q.now
    q.heard.clear()
    q.ask("a", "b", "c", "a", "b")
    assert q.heard == [b"a1", b"a1"], "it was just made"
    await q.until_heard(5)
    assert (sorted(q.heard[2:]), q.made) == ([b"b1", b"b1", b"c1"], ["a", "b", "c"])
    assert q.now - began >= 0.25
    q.now += 60
    q.ask("a")
    await q.until_heard(6)
    assert q.heard[-1] == b"a2", "an old answer is not sent again"


async def test_shared_answers_use_at_most_their_share_of_the_event_loop() -> None:
    q = Questions(took_s=0.1, interval_s=0.5, loop_share=0.05, kept_s=60.0)
    q.ask("a")
    await q.until_heard(1)
    q.now += 1.8
    q.ask("a")
    assert q.heard == [b"a1", b"a1"], "a new answer would take more than a twentieth of the time"
    q.now += 0.2
    q.ask("a")
    await q.until_heard(3)
    assert q.heard[-1] == b"a2"


@pytest.mark.parametrize("kept_s", [0.0, 5.0])
async def test_shared_answers_that_are_closed_answer_all_callers_and_leave_no_task(kept_s: float) -> None:
    shared, began = SharedAnswers(kept_s=kept_s), asyncio.Event()

    async def make() -> bytes:
        began.set()
        await asyncio.Event().wait()
        return b""

    callers = [asyncio.create_task(shared.wait_for(b"a", make))]
    await began.wait()
    callers += [asyncio.create_task(shared.wait_for(question, make)) for question in (b"a", b"b")]
    await asyncio.sleep(0)
    await shared.close()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*callers) == [FAILED] * 3
        assert await shared.wait_for(b"a", make) == BUSY
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_shared_answers_that_are_not_kept_are_computed_after_each_question() -> None:
    shared, began, go_on = SharedAnswers(), asyncio.Event(), asyncio.Event()
    states = ["before", "after"]

    async def make() -> bytes:
        state = states.pop(0)
        began.set()
        await go_on.wait()
        return state.encode()

    first = asyncio.create_task(shared.wait_for(b"", make))
    await began.wait()
    second = asyncio.create_task(shared.wait_for(b"", make))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(first, second) == [b"before", b"after"], "the second caller may know of a change"


async def test_shared_answers_beyond_their_limits_are_refused_at_once() -> None:
    q = Questions(interval_s=1e-6, kept_s=1e-6)
    q.ask(*(f"q{number}" for number in range(MOST_QUESTIONS + 3)))
    assert q.heard == [BUSY] * 3
    q.ask(*["q1"] * (MOST_WAITING - MOST_QUESTIONS + 2))
    assert q.heard == [BUSY] * 5
    await q.until_heard(MOST_WAITING + 5)
    assert len(q.made) == MOST_QUESTIONS
    q.heard.clear()
    q.now += 60
    q.ask("later")
    await q.until_heard(1)
    assert q.heard == [b"later1"]


@pytest.mark.parametrize(("error", "count"), [(KeyError("a stream that was deleted"), 0), (RuntimeError("a defect"), 1)])
async def test_shared_answer_that_fails_is_logged_and_computed_again(
    error: Exception, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    q = Questions(interval_s=0.25, kept_s=5.0)
    q.ask("a", "a", error=error)
    await q.until_heard(2)
    assert (q.heard, q.counters.total()) == ([FAILED, FAILED], count)
    assert str(error) in caplog.text, "the answer says that the log has the reason"
    q.ask("a")
    await q.until_heard(3)
    assert q.heard[-1] == b"a2"


# ---- of a node -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def node(tmp_path: Path) -> tuple[Bus, StatusHandler]:
    bus, handler = Bus(), StatusHandler(NodeSettings("n1", tmp_path))
    handler.listen(bus, Subjects("ns"), (InboxRule(("_INBOX.",)),))  # type: ignore[arg-type]
    return bus, handler


def ask(bus: Bus, *payloads: bytes) -> None:
    for payload in payloads:
        bus.listening["ns.status.n1"](b"ns.status.n1", b"_INBOX.a", payload, b"")


async def until_sent(bus: Bus, count: int) -> None:
    await until(lambda: len(bus.sent) >= count)


class Counted(Paged):
    """Reporter that counts its pages."""

    pages = 0

    def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        self.pages += 1
        return super().page(after, count)


async def test_status_pages_over_nats_of_400_requests_at_once_are_computed_once(node: tuple[Bus, StatusHandler]) -> None:
    bus, handler = node
    handler.reporter = reporter = Counted()  # type: ignore[assignment]
    ask(bus, *[b"", b"{}"] * 200)
    await until_sent(bus, 400)
    assert reporter.pages == 1
    assert len({answer for _, answer in bus.sent}) == 1
    assert "partitions" in json.loads(bus.sent[0][1])


async def test_status_metrics_over_http_of_many_scrapes_at_once_are_gathered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[NodeFigures] = []

    class CountedFigures(NodeFigures):
        async def gather(self) -> Figures:
            gathered.append(self)
            return await super().gather()

    monkeypatch.setattr("sidecar.status.status_api.NodeFigures", CountedFigures)
    handler = StatusHandler(NodeSettings("n1", tmp_path))
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(handler.answer_probe(b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(30)))  # type: ignore[arg-type]
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
    assert len(gathered) == 1


async def test_status_metrics_requests_of_200_callers_at_once_are_all_answered(node: tuple[Bus, StatusHandler]) -> None:
    bus, handler = node
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    ask(bus, *[b'{"metrics": true}', b'{"glance": true}'] * 200)
    await until_sent(bus, 400)
    assert sum(b"liftpy_uptime_seconds" in answer for _, answer in bus.sent) == 200
    assert sum(answer.startswith(b'{"glance"') for _, answer in bus.sent) == 200


async def test_status_question_of_the_page_of_a_flooded_node_is_refused_at_once(node: tuple[Bus, StatusHandler]) -> None:
    bus, handler = node
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)
    ask(bus, *(b'{"partitions": {"limit": %d}}' % number for number in range(1, MOST_QUESTIONS + 3)))
    async with asyncio.timeout(10):
        assert await handler.answer(b'{"streams": {"limit": 7}}') == BUSY, "without an answer, the page would wait forever"


async def test_status_question_of_the_page_to_its_own_node_has_a_time_limit(node: tuple[Bus, StatusHandler]) -> None:
    bus, handler = node
    handler.reporter = a_reporter([a_worker()], incarnation=6, uptime_s=7.0)

    handler.reporter.group_rows = lambda: iter(())  # type: ignore[method-assign]

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    handler.answers.joins = never
    requester = NodeStatusRequester("n1", bus, Subjects("ns"), handler)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="Node n1 does not answer"):
            await requester.ask_node("n1", b'{"groups": {"group": "", "limit": 7}}', 0.01)


async def test_status_history_of_200_callers_at_once_is_encoded_once(
    node: tuple[Bus, StatusHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, handler = node
    handler.history.add_values(5_000, [1.0] * len(NAMES))
    encoded: list[object] = []
    as_object = HistoryRows.as_object
    monkeypatch.setattr(HistoryRows, "as_object", lambda rows: encoded.append(rows) or as_object(rows))
    ask(bus, *[b'{"history": {"step": 1, "after": 0}}'] * 200)
    await until_sent(bus, 200)
    assert len(encoded) == 1


async def test_status_answers_leave_room_on_the_connection_of_the_replication(node: tuple[Bus, StatusHandler]) -> None:
    bus, handler = node
    for moment in range(5_000, 5_300):
        handler.history.add_values(moment, [1.0] * len(NAMES))
    history = b'{"history": {"step": 1, "after": 0}}'
    bus.unsent_bytes = 9 << 20
    ask(bus, history)
    await until_sent(bus, 1)
    assert bus.sent[-1][1] == BUSY
    ask(bus, QUESTION)
    await until_sent(bus, 2)
    assert decode_presence(bus.sent[-1][1]) is not None, "other nodes judge their clocks by this small answer"
    bus.unsent_bytes = 0
    ask(bus, history)
    await until_sent(bus, 3)
    assert "history" in json.loads(bus.sent[-1][1])
