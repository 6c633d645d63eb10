"""Test that every effect is executed in order, and that failures become events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.errors import InvariantError, StorageError
from sidecar.partition.worker import RECENT_STEPS, PartitionWorker
from tests.unit.partition.shell_parts import PARTS, DrivenWorker, executing_worker


class Anything:
    """Takes every call and notes it."""

    def __init__(self, calls: list[str], name: str, fails: dict[str, Exception] | None = None) -> None:
        self._calls, self._name, self._fails = calls, name, fails or {}
        self.log_end_offset, self.log_start_offset = 5, 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> bytes:
            self._calls.append(f"{self._name}.{name}")
            if name in self._fails:
                raise self._fails[name]
            if name == "alone":
                return args[0]()
            return b"batch"

        return call


def executor(
    fails: dict[str, Exception] | None = None, repaired: list[str] | None = None
) -> tuple[PartitionWorker, list[str], list[events.Event]]:
    calls: list[str] = []
    fed: list[events.Event] = []
    parts: dict[str, Any] = {name: Anything(calls, name) for name in PARTS}
    return executing_worker(fed, parts, Anything(calls, "log", fails), repaired), calls, fed


class Scripted:
    """A replica that answers each event with prepared effects."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers, self.seen = answers, []

    def step(self, event: Any, now_ns: int) -> list[Any]:
        self.seen.append(event)
        if event == "bug":
            raise InvariantError("broken")
        return self.answers.get(event, [])


def test_replica_driver_on_hold_handles_queued_events_after_release() -> None:
    replica: Any = Scripted({"first": ["a", "b"], "from a": ["c"], "later": ["d"], "again": ["e"]})
    done: list[str] = []

    def execute(effect: Any) -> None:
        done.append(effect)
        if effect == "a":
            driver.feed("from a")  # type: ignore[arg-type]
            driver.hold()

    worker = DrivenWorker(replica, execute)
    driver, broken = worker.driver, worker.broken
    driver.feed("first")  # type: ignore[arg-type]
    driver.feed("later")  # type: ignore[arg-type]
    assert done == ["a", "b"], "the step is carried out, and no other"

    def work() -> None:
        done.append("work")
        driver.feed("again")  # type: ignore[arg-type]

    driver.go_on(work)
    assert done == ["a", "b", "work", "c", "d", "e"]
    driver.hold()

    def fails() -> None:
        raise ValueError("a bug")

    driver.go_on(fails)
    assert len(broken) == 1, "a bug in it is one of the replica's"
    driver.go_on(lambda: done.append("after the end"))
    assert done[-1] == "e"


def test_replica_driver_on_hold_merges_repeated_wake_ups() -> None:
    taken: list[Any] = []

    def step(event: Any, now_ns: int) -> list[Any]:
        taken.append(event)
        return []

    replica: Any = SimpleNamespace(step=step)
    driver = DrivenWorker(replica).driver
    driver.hold()
    driver.feed("before")  # type: ignore[arg-type]
    for _ in range(100):
        driver.feed(events.NotificationReceived())
    driver.go_on(lambda: None)
    assert taken == ["before", events.NotificationReceived()]


def test_replica_driver_exception_report_contains_the_last_steps(caplog: pytest.LogCaptureFixture) -> None:
    replica: Any = Scripted({f"event {n}": [f"effect {n}"] for n in range(100)})
    driver = DrivenWorker(replica).driver
    for n in range(100):
        driver.feed(f"event {n}")  # type: ignore[arg-type]
        driver.feed(events.LeaseChanged())
    assert len(driver.recent_steps) == RECENT_STEPS
    driver.feed("bug")  # type: ignore[arg-type]
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    lines = record.getMessage().splitlines()
    assert "event 99 -> ['effect 99']" in lines[-2]
    assert lines[-1].endswith("bug"), "what was being taken, and was not done"
    assert "event 36 -> " in lines[1], "the last 64 steps, heartbeats that changed nothing left out"
    assert not any("LeaseChanged" in line for line in lines)


def test_effect_executor_does_not_report_a_leader_epoch_after_the_close() -> None:
    runner, calls, fed = executor()
    answers: list[Any] = []
    runner._node.promises.store = lambda folder, leader_epoch, stored: answers.append(stored)  # type: ignore[method-assign]
    for _ in range(2):
        runner.execute(do.PersistLeaderEpoch(leader_epoch=4))
    runner.has_ended = True
    for answer, error in zip(answers, (None, StorageError("late")), strict=True):
        answer(error)
    assert (calls, fed, runner.storage_failed) == ([], [], False)
