"""Message ids over restarts that begin with a checkpoint of derived state, among all faults, with files that are torn, lost, and
older than they should be: each message is committed once [A3]. And bugs of it: each has a seed that shows it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from liftpy.core.log.log import Log
from liftpy.core.publish import state_writer
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.state_file import State, StateCapture, state_names
from liftpy.core.publish.state_transfer import StateFetcher
from liftpy.core.publish.state_writer import StateWriter, restore_state
from tests.simulation.replica.plan import draw_plan
from tests.simulation.replica.run import Outcome, run_plan

EVENTS = 2500
SEEDS = (0, 10)
WANTED = ("duplicate answered", "dedup_state_restored", "derived state left out: it")
Patches = list[Any]


@contextmanager
def tampering(seed: int) -> Iterator[None]:
    """Some of the files are torn, flipped, lost, or put back as they were earlier, before a log is opened."""
    rng, earlier = random.Random(seed), dict[str, tuple[str, bytes]]()

    def restore(log_state: LogState, log: Log, owner: str) -> dict[str, str]:
        for name in state_names(log.storage):
            data = log.storage.load(name) or b""
            match rng.randrange(8):
                case 0:
                    log.storage.replace(name, data[: rng.randrange(len(data))])
                case 1:
                    at = rng.randrange(len(data))
                    log.storage.replace(name, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                case 2:
                    log.storage.remove(name)
                case 3 if owner in earlier:
                    log.storage.remove(name)
                    log.storage.replace(*earlier[owner])
                case _:
                    earlier[owner] = name, data
        return restore_state(log_state, log, owner)

    with patch("tests.simulation.replica.sim_ingest.restore_state", restore):
        yield


def run(seed: int) -> Outcome:
    with tampering(seed):
        return run_plan(replace(draw_plan(seed), repeats=True, contends=True), EVENTS)


def test_simulated_restarts_with_state_files_commit_each_message_once() -> None:
    seen: dict[str, int] = {}
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.violation is None, outcome.report()
        seen = {what: seen.get(what, 0) + outcome.counters[what] for what in WANTED}
    assert [what for what, count in seen.items() if not count] == []


def one_that_is_older_needs_no_replay() -> Patches:
    real = LogState.restore

    def restore(self: LogState, state: State) -> bool:
        done = real(self, state)
        self.end_offset = self._log.log_end_offset if done else self.end_offset
        return done

    return [patch.object(LogState, "restore", restore)]


def one_is_written_above_hw() -> Patches:
    real = LogState.snapshot

    def snapshot(self: LogState, owner: str) -> StateCapture | None:
        unwritten, log = real(self, owner), self._log
        if unwritten is None or self.end_offset is None or self.end_offset != log.durable_end_offset:
            return unwritten
        return unwritten._replace(end_offset=self.end_offset, leader_epoch=log.epochs.epoch_at(self.end_offset - 1))

    return [patch.object(LogState, "snapshot", snapshot), patch("liftpy.core.publish.state_file.why_not", lambda *_: "")]


@pytest.mark.parametrize(("bug", "seed"), [(one_that_is_older_needs_no_replay, 0), (one_is_written_above_hw, 12)])
def test_simulation_detects_a_planted_state_file_bug(bug: Callable[[], Patches], seed: int) -> None:
    with ExitStack() as stack:
        for change in bug():
            stack.enter_context(change)
        assert run(seed).violation is not None, "no seed shows it"


def producers_go_with_their_records() -> Patches:
    """Retention does not wait for a state, a new replica takes none, and a start believes none."""
    return [
        patch.object(StateWriter, "may_drop", lambda self, log_start_offset: True),
        patch.object(StateFetcher, "asks", lambda self, leader_epoch: None),
        patch.object(state_writer, "load_state", lambda log, owner: (None, {})),
    ]


@pytest.mark.parametrize(("bugs", "broken"), [((), ""), ((producers_go_with_their_records,), "A16")])
def test_simulation_detects_producer_state_lost_by_retention(bugs: tuple[Callable[[], Patches], ...], broken: str) -> None:
    """A producer that makes its records from another stream reads that stream again where nobody knows its position."""
    plan = draw_plan(2, "disks")
    tight = replace(plan.stream_config, retention_bytes=1, segment_bytes=4096)
    plan = replace(plan, derives=True, publish_interval_ns=plan.publish_interval_ns // 2, stream_config=tight)
    with ExitStack() as stack:
        for change in (change for bug in bugs for change in bug()):
            stack.enter_context(change)
        assert run_plan(plan, EVENTS).invariant == broken
