"""Both shells keep the ordering contract of ``liftpy/core/replication/effects.py``.

The asyncio shell is the shipped worker (driver, executor, flusher, ingest, acks, replication, reads) on two nodes; the simulator's
plays a script and a seed. The same audit checks both.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.errors import LiftError, StorageError
from tests.conformance.contract_audit import Audit, ContractBroken
from tests.conformance.two_workers import TwoWorkers, WorkerNode
from tests.scripts.stage import Stage
from tests.simulation.replica.messages import AckFrame, FetchFrame, FetchResponse
from tests.simulation.replica.network import Network
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import run_plan
from tests.simulation.replica.sim_replica import SimReplica

CLAIMS = {"1", "2", "3", "4", "5", "6", "7", "8"}


def test_ordering_contract_docstring_lists_the_checked_claims() -> None:
    assert set(re.findall(r"^(\d)\. ", do.__doc__ or "", re.MULTILINE)) == CLAIMS


# ---- asyncio ---------------------------------------------------------------------------------------------------------
async def a_story(t: TwoWorkers) -> Counter[str]:
    """Publishes, a flush that is slow, a cut of what one leader alone had, a promotion, a disk that refuses; and how often each claim
    was looked at."""
    n1, n2 = t.nodes["n1"], t.nodes["n2"]
    t.metadata("n1", 1)
    await t.until(lambda: n1.worker.replica.phase == "LEADER_READY", "n1 leads")
    first = [t.publish(b"one") for _ in range(3)]
    await t.until(lambda: all(t.answer(inbox) for inbox in first), "acknowledged")
    assert t.answer(first[0]) == {"stream": "orders", "seq": 1}

    n1.flushes.clear()  # the leader's disk stands still, and its follower gets on
    slow = t.publish(b"slow")
    await t.until(lambda: n2.log.flushed_end_offset == 4, "the follower has what its leader has not flushed")
    assert n1.log.flushed_end_offset == 3
    assert t.answer(slow) is None
    n1.flushes.set()
    await t.until(lambda: t.answer(slow) is not None, "acknowledged")

    n1.bus.cut = n2.bus.cut = True
    lost = [t.publish(b"lost") for _ in range(2)]
    await t.until(lambda: n1.log.flushed_end_offset == 6, "n1 has what n2 has not")
    t.metadata("n2", 2, candidate=True)
    n1.bus.cut = n2.bus.cut = False
    await t.until(lambda: any(isinstance(e, do.ReportPromotion) and e.finished for e in n2.asked.effects), "promoted")
    await t.until(lambda: n1.log.log_end_offset == 4, "n1 cuts what n2 lacks")
    t.metadata("n2", 2)
    await t.until(lambda: n2.worker.replica.phase == "LEADER_READY", "n2 leads")
    again = t.publish(b"again")
    await t.until(lambda: t.answer(again) is not None, "acknowledged")
    assert not any(t.answer(inbox) for inbox in lost)
    await t.until(lambda: n1.log.high_watermark == 4, "the follower hears of it")

    read = n2.log.read  # the log can't be read for a moment: the follower hears nothing, and asks again
    n2.log.read = _unreadable  # type: ignore[method-assign]
    unread = t.publish(b"unread")
    await t.until(lambda: n2.worker._node.counters["fetch_read_failed"] > 0, "a read fails")
    assert n1.log.log_end_offset == 5
    n2.log.read = read  # type: ignore[method-assign]
    await t.until(lambda: t.answer(unread) is not None, "acknowledged")

    n2.refuse = StorageError("the disk refuses")
    t.publish(b"refused")
    await t.until(lambda: n2.worker.replica.role == "FAILED", "an error is an event")
    n2.refuse = None
    return n1.audit.checks + n2.audit.checks


def _unreadable(*args: Any, **kwargs: Any) -> Any:
    raise StorageError("unreadable")


async def test_asyncio_shell_executes_effects_in_the_documented_order() -> None:
    async with TwoWorkers() as t:
        checks = await a_story(t)
    assert checks >= Counter(dict.fromkeys(CLAIMS - {"8"}, 1))
    assert checks["2: served before the flush"]


async def test_truncation_during_a_hanging_flush_waits_without_blocking_the_event_loop() -> None:
    """The replica stands still meanwhile, whatever it hears; then it does what it would have done, in that order."""
    async with TwoWorkers() as t:
        n1, n2 = t.nodes["n1"], t.nodes["n2"]
        t.metadata("n1", 1)
        await t.until(lambda: n1.worker.replica.phase == "LEADER_READY", "n1 leads")
        first = t.publish(b"one")
        await t.until(lambda: t.answer(first) is not None, "acknowledged")
        n1.bus.cut = n2.bus.cut = True
        n1.flushes.clear()
        t.publish(b"lost")
        await t.until(lambda: n1.log.log_end_offset == 2, "n1 has what n2 has not, unflushed")
        t.metadata("n2", 2, candidate=True)
        n1.bus.cut = n2.bus.cut = False
        await t.until(lambda: n1.worker.replica.phase == "FOLLOWER_CUT", "n1 is to cut")
        t.metadata("n2", 2)
        await t.until(lambda: n2.worker.replica.phase == "LEADER_READY", "n2 leads, and the loop turns")
        for _ in range(3):
            t.metadata("n2", 2)
        assert (n1.worker.replica.phase, n1.log.log_end_offset) == ("FOLLOWER_CUT", 2), "it waits"
        heard = [type(event) for event in n1.worker._driver._queue]
        assert heard.count(ev.PartitionChanged) == 4, "none of the changes is left out"
        assert not n1.worker.flusher.checkpoint(), "nothing begins beside what waits"
        n1.flushes.set()
        again = t.publish(b"again")
        await t.until(lambda: t.answer(again) is not None, "n1 has cut, fetched and flushed")
        assert (n1.log.log_end_offset, n1.log.truncated_records) == (2, 1)
        assert n1.audit.checks["5"] > 0


async def cuts_behind_a_hung_flush(t: TwoWorkers) -> WorkerNode:
    """n1, which is to cut what it alone has, unflushed."""
    n1, n2 = t.nodes["n1"], t.nodes["n2"]
    t.metadata("n1", 1)
    await t.until(lambda: n1.worker.replica.phase == "LEADER_READY", "n1 leads")
    n1.bus.cut = n2.bus.cut = True
    n1.flushes.clear()
    t.publish(b"lost")
    await t.until(lambda: n1.log.log_end_offset == 1, "unflushed")
    t.metadata("n2", 2, candidate=True)
    n1.bus.cut = n2.bus.cut = False
    await t.until(lambda: n1.worker.replica.phase == "FOLLOWER_CUT", "n1 is to cut")
    return n1


async def test_truncation_after_a_failed_flush_fails_the_replica() -> None:
    async with TwoWorkers() as t:
        n1 = await cuts_behind_a_hung_flush(t)
        n1.refuse_sync = StorageError("the disk refuses")
        n1.flushes.set()
        await t.until(lambda: n1.worker.replica.role == "FAILED", "an error is an event")


async def test_truncation_still_waiting_at_the_close_is_not_executed() -> None:
    async with TwoWorkers() as t:
        n1 = await cuts_behind_a_hung_flush(t)
        n1.worker._driver.stop()
        ending = asyncio.ensure_future(n1.worker.flusher.close())
        await asyncio.sleep(0)
        n1.flushes.set()
        await ending
        assert n1.log.log_end_offset == 1, "as a process that dies then would leave it"


# ---- the simulator -----------------------------------------------------------------------------------------------------
@contextmanager
def audited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Audit]]:
    """Every SimReplica that is made is watched, and everything that it sends."""
    audits: list[Audit] = []
    by_node: dict[str, Audit] = {}
    made, transmit = SimReplica.__init__, Network._transmit

    def watched(self: SimReplica, *args: Any) -> None:
        made(self, *args)
        disk, storage = self.process.disk, self.log.storage
        name = next(name for name, folder in disk.folders.items() if folder is storage)
        audit = Audit(self.node_id, self.log, lambda: disk.folders.get(name, storage), lambda: disk.promises, threads=False)
        audits.append(audit)
        by_node[self.node_id] = audit
        audit.watch(self.replica)
        for kind, act in self._do.items():
            self._do[kind] = lambda shell, effect, act=act: audit.carries_out(  # type: ignore[misc]
                effect, lambda: act(shell, effect)
            )

    def sent(self: Network, way: Any, message: Any, arrive: Any) -> None:
        audit = by_node.get(way.sender)
        if audit is not None and isinstance(message, FetchFrame):
            audit.sends_fetch(message.fetch.offset)
        elif audit is not None and isinstance(message, FetchResponse) and message.piece is None:
            audit.sends_batches(message.high_watermark, message.batches)
        elif audit is not None and isinstance(message, AckFrame) and not message.decoded().reason:
            audit.sends_ack(message.decoded().offset)
        transmit(self, way, message, arrive)

    monkeypatch.setattr(SimReplica, "__init__", watched)
    monkeypatch.setattr(Network, "_transmit", sent)
    yield audits


def a_sim_story() -> None:
    """As above: a slow flush, a cut of what one leader alone had, a promotion, a disk without room."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.slow_disk(a, 200)
        s.publish(1)
        s.slow_disk(a, 1)
        s.cut(a, b)
        s.cut(a, c)
        for _ in range(3):
            s.send(AckPolicy.LEADER)
        s.run(0.2)
        s.crash(a)
        s.mend(a, b)
        s.mend(a, c)
        s.wait_for_leader(b, c)
        s.publish(2)
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        full = s.leader
        s.fill_disk(full)
        s.send()
        s.until(lambda: s.role(full) == "FAILED")
        s.free_disk(full)
        s.restart(full)


def play(story: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Raises what the audit found, before what the simulator's own checkers did."""
    ContractBroken.seen.clear()
    with audited(monkeypatch) as audits:
        try:
            story()
        except (AssertionError, LiftError):
            if not ContractBroken.seen:
                raise
    if ContractBroken.seen:
        raise ContractBroken.seen[0]
    return sum((audit.checks for audit in audits), Counter())


def a_seed() -> None:
    outcome = run_plan(replace(draw_plan(7, ""), partitions=1, streams=()), 1500)  # the audit tells nodes apart, not partitions
    assert outcome.violation is None, outcome.report()


@pytest.mark.parametrize("story", [a_sim_story, a_seed])
def test_simulator_shell_executes_effects_in_the_documented_order(
    story: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = play(story, monkeypatch)
    seen = CLAIMS - {"8"} if story is a_sim_story else {"1", "2", "3", "4", "6", "7"}
    assert checks >= Counter(dict.fromkeys(seen, 1))
    assert checks["2: served before the flush"]
