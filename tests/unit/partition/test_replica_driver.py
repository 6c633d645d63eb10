"""Test the driver of a replica: events in order, holds, and the end after an exception."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.invariants import InvariantError
from liftpy.core.replication import events
from sidecar.partition import worker as driver_module
from sidecar.partition.worker import RECENT_STEPS, ReplicaDriver


class Driven:
    """A driver whose replica answers each event with scripted effects.

    Attributes:
        seen: Events that the replica has got.
        done: Effects that were carried out.
        broken: Errors that would end the process.
    """

    def __init__(self, script: Callable[[Any], list[Any]] = lambda event: []) -> None:
        self.script = script
        self.seen: list[Any] = []
        self.done: list[Any] = []
        self.broken: list[Exception] = []
        self.react: Callable[[Any], object] = lambda effect: None
        worker: Any = SimpleNamespace(
            key="orders/3",
            replica=SimpleNamespace(step=self._step),
            execute=self._execute,
            mark_changed=lambda: None,
            replication=SimpleNamespace(end_step=lambda: None),
        )
        process: Any = SimpleNamespace(fatal=self.broken.append)
        self.driver: Any = ReplicaDriver(worker, process)

    def _step(self, event: Any, now_ns: int) -> list[Any]:
        self.seen.append(event)
        return self.script(event)

    def _execute(self, effect: Any) -> None:
        self.done.append(effect)
        self.react(effect)


def test_replica_driver_on_hold_handles_queued_events_after_release() -> None:
    effects = {"first": ["a", "b"], "from a": ["c"], "later": ["d"], "again": ["e"]}
    made = Driven(lambda event: effects[event])

    def react(effect: str) -> None:
        if effect == "a":
            made.driver.feed("from a")
            made.driver.hold()

    def work() -> None:
        made.done.append("work")
        made.driver.feed("again")

    made.react = react
    made.driver.feed("first")
    made.driver.feed("later")
    assert made.done == ["a", "b"], "the driver carries out the whole step, and starts no other"
    made.driver.resume(work)
    assert made.done == ["a", "b", "work", "c", "d", "e"]


def test_replica_driver_after_an_exception_in_held_work_stops_the_replica() -> None:
    made = Driven()

    def fail() -> None:
        raise ValueError("a bug")

    made.driver.hold()
    made.driver.resume(fail)
    made.driver.resume(lambda: made.done.append("after the end"))
    assert (len(made.broken), made.done) == (1, [])


def test_replica_driver_on_hold_merges_repeated_wake_ups() -> None:
    made = Driven()
    made.driver.hold()
    made.driver.feed("before")
    for _ in range(100):
        made.driver.feed(events.NotificationReceived())
    made.driver.resume(lambda: None)
    assert made.seen == ["before", events.NotificationReceived()]


def test_replica_driver_exception_report_contains_the_last_steps(caplog: pytest.LogCaptureFixture) -> None:
    def script(event: Any) -> list[Any]:
        if event == "bug":
            raise InvariantError("broken")
        return [f"effect of {event}"] if isinstance(event, str) else []

    gc.unfreeze()  # another test may have frozen its drivers, which have a part in the limit
    gc.collect()
    made = Driven(script)
    for n in range(100):
        made.driver.feed(f"event {n}")
        made.driver.feed(events.LeaseChanged())
    made.driver.feed("bug")
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    _, *steps = record.getMessage().splitlines()
    assert len(steps) == RECENT_STEPS + 1
    assert "event 99 -> ['effect of event 99']" in steps[-2]
    assert steps[-1].endswith("bug"), "the event that failed"
    assert not any("LeaseChanged" in step for step in steps), "heartbeats that changed nothing are left out"


@pytest.mark.parametrize("where", ["step", "effect"])
def test_replica_driver_after_an_exception_handles_no_event(where: str) -> None:
    def fail_in(place: str, name: Any) -> None:
        if (place, name) == (where, "bad"):
            raise InvariantError("no")

    def script(event: Any) -> list[Any]:
        fail_in("step", event)
        return [event]

    def react(effect: Any) -> None:
        if effect == "good":
            made.driver.feed("bad")
            made.driver.feed("after")
        fail_in("effect", effect)

    made = Driven(script)
    made.react = react
    made.driver.feed("good")
    made.driver.feed("later")
    assert made.seen == ["good", "bad"]
    assert [type(error) for error in made.broken] == [InvariantError]


@pytest.mark.parametrize(("count", "is_broken"), [(3, False), (4, True)])
def test_replica_driver_step_that_feeds_too_many_events_stops_the_replica(
    count: int, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "MAX_QUEUE", 3)
    made = Driven(lambda event: [event] if event == "first" else [])
    made.react = lambda effect: [made.driver.feed(number) for number in range(count)]
    made.driver.feed("first")
    assert made.seen == (["first"] if is_broken else ["first", 0, 1, 2])
    assert ["more than 3 events" in str(error) for error in made.broken] == [True] * is_broken


def test_replica_driver_after_stop_ignores_events() -> None:
    made = Driven()
    made.driver.stop()
    made.driver.feed("a")
    assert made.seen == []
