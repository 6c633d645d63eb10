"""A candidate with a long replay is not replaced while it reports progress.

A candidate with much to replay needs many times ``election.candidate.timeout``. As long as its reports show that it gets on, it
must not be passed over: the next one would have as much to replay, and so the partition would never have a leader. One that
reports but does not get on is passed over.

Shows L1, C5.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from tests.scripts.stage import Stage
from tests.simulation.replica.clock import MS
from tests.simulation.replica.sim_replica import SimReplica

STEPS = 20
STEP_NS = 500 * MS


@contextmanager
def long_replays(*, stuck_at: int = STEPS) -> Iterator[None]:
    """Every candidate's replay takes STEPS steps of half a second; ``stuck_at``: and gets no further than that."""
    real = SimReplica.replay_log

    def replay(self: SimReplica, effect: do.ReplayLog) -> None:
        if self.replica.role != "CANDIDATE":
            real(self, effect)
            return
        for step in range(1, STEPS):
            done = effect.end_offset * min(step, stuck_at) // STEPS
            self.later(step * STEP_NS, lambda done=done: self.feed(ev.ReplayProgressed(end_offset=done)))
        if stuck_at == STEPS:
            self.later(STEPS * STEP_NS, lambda: self.feed(ev.ReplayFinished(end_offset=effect.end_offset)))

    SimReplica.replay_log = replay  # type: ignore[method-assign]
    try:
        yield
    finally:
        SimReplica.replay_log = real  # type: ignore[method-assign]


def test_candidate_with_a_long_but_progressing_replay_becomes_leader() -> None:
    with long_replays(), Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(40)
        s.settle()
        s.crash(a)
        took_s = s.until(lambda: s.leader in (b, c), within_s=20)
        assert took_s > 10, "five times the time-out"
        assert s.counted("passOver OK") == 0
        s.publish(1)


def test_candidate_with_a_stuck_replay_is_replaced_by_the_next_candidate() -> None:
    with long_replays(stuck_at=3), Stage(ends_whole=False) as s:
        a, b, c = s.leader, *s.followers
        s.publish(40)
        s.settle()
        s.crash(a)
        s.until(lambda: s.partition.candidate != "")
        first = s.partition.candidate
        s.until(lambda: s.partition.candidate == next(node for node in (b, c) if node != first), within_s=15)
        assert s.leader == ""
