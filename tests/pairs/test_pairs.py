"""Test a fixed sample of feature pairs, and that the check detects a planted bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from liftpy.client.cursor import Cursor
from liftpy.config import AckPolicy
from liftpy.core.publish.dedup_window import RecentIds
from liftpy.core.replication import effects as do
from liftpy.core.services.machine import ServiceMachine
from sidecar.partition.worker import METHODS, PartitionWorker
from tests.pairs.__main__ import main, scenarios
from tests.pairs.scenario import Scenario, run
from tests.pairs.table import FEATURES, combined

SAMPLE = (
    ("compaction", "consume"), ("retention", "cursor"), ("retention-age", "read-range"), ("max-per-subject", "spark-batches"),
    ("purge", "reverse"), ("truncate", "group"), ("message-ids", "transfer"), ("pause", "queue"), ("read-only", "jetstream"),
    ("standby", "killed-leader"), ("quota", "producer"), ("codec", "backup"), ("added-partitions", "consume-many"),
    ("majority", "restart-node"), ("flush-interval", "restart-all"), ("max-message", "filter"), ("plain-nats", "nats-restart"),
    ("service", "follower-away"), ("group-into", "move-replica"), ("ordered-queue", "add-replica"), ("conditional", "full-disk"),
    ("alter", "lost-messages"), ("recreate", "lost-logs"), ("group-new", "transfer"), ("repeat", "added-partitions"),
)  # fmt: skip
"""Every feature of the cluster in memory; the command line runs the whole table."""


@pytest.mark.parametrize("names", SAMPLE, ids=",".join)
def test_feature_pair_scenario_reports_no_violation(names: tuple[str, ...]) -> None:
    scenario = Scenario(names, 1)
    violations = run(scenario)
    assert not violations, f"{scenario.command}\n" + "\n".join(violations[:5])


def test_feature_pair_sample_contains_each_feature() -> None:
    assert set(FEATURES) - {name for names in SAMPLE for name in names} == set()


def test_feature_pair_random_choice_repeats_for_a_seed_and_covers_each_pair() -> None:
    possible = combined(2)
    assert list(scenarios(50, 7)) == list(scenarios(50, 7))
    assert {s.names for s in scenarios(len(possible), 7)} == {s.names for s in scenarios(0, 1, every=True)} == set(possible)


# ---- the harness can fail --------------------------------------------------------------------------------------------------
def _forget_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecentIds, "find", lambda self, message_id, now_wall_ns: None)


def _ack_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def append_and_ack(worker: PartitionWorker, effect: Any) -> None:
        worker.append_batch(effect)
        worker.acks.release(AckPolicy.ALL, worker.log.log_end_offset - 1, worker.leader_epoch, worker.ingest.wall_ns())

    monkeypatch.setitem(METHODS, do.AppendBatch, append_and_ack)  # type: ignore[type-var]


def _commit_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Cursor.commit

    async def commit_more(self: Cursor, position: Any, partition: int = 0) -> None:
        await commit(self, position + 1, partition)

    monkeypatch.setattr(Cursor, "commit", commit_more)


def _put_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = ServiceMachine.emit

    def emit_twice(self: ServiceMachine, *arguments: Any) -> None:
        emit(self, *arguments)
        emit(self, *arguments)

    monkeypatch.setattr(ServiceMachine, "emit", emit_twice)


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...], str]] = {
    "message ids are forgotten": (_forget_ids, ("message-ids", "codec"), "message id"),
    "acknowledged before it is committed": (_ack_before_commit, ("killed-leader", "majority"), "was acknowledged"),
    "a cursor passes a record": (_commit_too_far, ("cursor", "codec"), "cursor"),
    "outputs come twice": (_put_out_twice, ("service", "codec"), "twice"),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_feature_pair_run_reports_a_planted_bug(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, names, words = BROKEN[mistake]
    break_it(monkeypatch)
    found = next((violations for seed in range(1, 9) if (violations := run(Scenario(names, seed)))), [])
    assert any(words in violation for violation in found), found


def test_feature_pairs_command_prints_the_violation_and_the_command_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _forget_ids(monkeypatch)
    assert main(["--pair", "message-ids,codec", "--seed", "3", "--count", "1"]) == 1
    printed = capsys.readouterr().out
    assert "python -m tests.pairs --pair message-ids,codec --seed 3 --count 1" in printed
    assert "1 run in 1 scenarios" in printed.splitlines()[-1]
