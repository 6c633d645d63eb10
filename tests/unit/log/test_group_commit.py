"""Test GroupCommit: one flush at a time covers all appends before it, and a failed flush is final."""

from __future__ import annotations

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log.flush import Flush
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch
from liftpy.errors import LogClosedError, StorageError


class Shell:
    """Starts at once what it is told to begin; the test says when the device is done."""

    def __init__(self, policy: str = "always") -> None:
        config = StreamConfig(flush=FlushPolicy.parse(policy), segment_bytes=4096)
        self.log, _ = Log.open(MemoryStorage(), config)
        self.begun: list[Flush] = []
        self.starts = True
        self.told: list[object] = []
        self.error: StorageError | None = None
        self.commit = GroupCommit(self.log, config.flush, self)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(build_batch([b"x"], base_offset=self.log.log_end_offset, leader_epoch=1))
            self.commit.appended()

    def end(self, flush: Flush | None = None) -> None:
        """The flush that runs, or ``flush``, is over."""
        flush = flush or self.commit.running
        assert flush is not None
        error = self._run(flush)
        self.commit.flush_ended(flush, 7, error)

    def _run(self, flush: Flush) -> StorageError | None:
        flush.run()
        return self.error

    def begin(self) -> None:
        self.told.append("begin")
        if self.starts and (flush := self.commit.start()) is not None:
            self.begun.append(flush)

    def arm(self) -> None:
        self.told.append("arm")

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        self.told.append("wait")
        return 7, self._run(flush)

    def wait_for_checkpoint(self) -> None:
        self.told.append("wait for checkpoint")

    def flush_succeeded(self) -> None:
        self.told.append("done")

    def log_flushed(self, end_offset: int, took_ns: int) -> None:
        self.told.append((end_offset, took_ns))

    def log_failed(self, error: StorageError) -> None:
        self.told.append(error)

    def heard(self) -> list[object]:
        told, self.told = self.told, []
        return told


def test_group_commit_flushes_records_appended_during_a_flush_with_the_next_flush() -> None:
    shell = Shell()
    shell.append()
    assert shell.heard() == ["begin"]
    shell.append(10)
    assert shell.heard() == [], "one at a time"
    shell.end()
    assert shell.heard() == ["done", (1, 7), "begin"]
    shell.end()
    assert shell.heard() == ["done", (11, 7)], "one for all ten, and none for nothing"
    assert shell.commit.running is None
    assert shell.commit.count == 2


def test_group_commit_runs_deferred_work_in_order_after_the_running_flush() -> None:
    shell = Shell()
    shell.append()
    late = shell.commit.running
    assert shell.commit.begin_checkpoint()
    done: list[str] = []
    shell.commit.queue_exclusive(lambda: done.append(f"first, {shell.commit.running}"))
    shell.commit.queue_exclusive(lambda: done.append(f"second, {shell.commit.running}"))
    shell.append()
    shell.heard()
    shell.end(late)
    shell.append()
    assert (done, shell.heard()) == ([], ["done", (1, 7)]), "a checkpoint runs still, and no flush begins"
    shell.commit.checkpoint_ended()
    assert done == ["first, None", "second, None"]
    assert shell.heard() == ["begin"], "then what came meanwhile"
    shell.end()
    assert shell.heard() == ["done", (3, 7)]
    assert shell.commit.begin_checkpoint()
    shell.commit.queue_exclusive(lambda: done.append("third"))
    assert not shell.commit.begin_checkpoint()
    shell.commit.close()
    shell.commit.checkpoint_ended()
    assert len(done) == 2, "the log is about to be closed"


def test_group_commit_truncation_waits_for_the_running_flush_and_flushes_afterwards() -> None:
    shell = Shell()
    shell.append(3)
    late = shell.commit.running
    assert shell.heard() == ["begin"]

    def cut() -> int:
        assert shell.commit.running is None
        assert shell.heard() == ["wait", "done", (1, 7)], "counted before the cut"
        end_offset = shell.log.truncate_to(2)
        shell.commit.appended()
        assert shell.heard() == [], "not beside it"
        return end_offset

    assert shell.commit.alone(cut) == 2
    assert shell.heard() == ["begin"]
    assert late is not None
    shell.end(late)
    assert shell.heard() == [], "the late end of the one that was waited for is not the end of the next"
    shell.end()
    assert shell.heard() == ["done", (2, 7)]


@pytest.mark.parametrize("waited_for", [False, True])
def test_group_commit_flush_error_fails_the_log_and_starts_no_further_flush(waited_for: bool) -> None:
    shell = Shell()
    shell.append(2)
    shell.heard()
    shell.error = StorageError("broken disk")
    if waited_for:
        with pytest.raises(LogClosedError):
            shell.commit.alone(lambda: shell.log.truncate_to(1))
        waited, failure = shell.heard()
        assert waited == "wait"
    else:
        shell.end()
        (failure,) = shell.heard()
    assert isinstance(failure, StorageError)
    shell.commit.appended()
    assert shell.heard() == []
    assert not shell.commit.begin_checkpoint()
    assert shell.log.durable_end_offset == 0


def test_group_commit_with_interval_policy_counts_records_as_flushed_at_once_and_flushes_by_timer() -> None:
    shell = Shell("interval:50")
    shell.append(2)
    assert shell.heard() == [(1, 0), "arm", (2, 0)]
    shell.commit.interval_over()
    assert shell.heard() == ["begin"]
    shell.append()
    assert shell.heard() == [(3, 0), "arm"]
    shell.end()
    assert shell.heard() == ["done"], "the next waits for its timer"
    shell.commit.interval_over()
    assert shell.heard() == ["begin"]
    shell.append()
    shell.commit.interval_over()
    assert shell.heard() == [(4, 0), "arm"], "the flush is slower than the interval"
    shell.end()
    assert shell.heard() == ["done", "begin"], "and what its timer wanted is not forgotten"
    shell.end()
    assert shell.log.durable_end_offset == 4


def test_group_commit_runs_one_checkpoint_at_a_time_and_none_during_file_changes() -> None:
    shell = Shell()
    assert shell.commit.begin_checkpoint()
    assert not shell.commit.begin_checkpoint()
    shell.commit.checkpoint_ended()
    assert shell.commit.begin_checkpoint()

    def change() -> None:
        assert shell.heard() == ["wait for checkpoint"]
        assert not shell.commit.begin_checkpoint()

    shell.commit.alone(change)
    assert shell.commit.begin_checkpoint(), "that one was over"


def test_group_commit_after_close_starts_no_flush() -> None:
    shell = Shell()
    shell.starts = False
    shell.append()
    shell.commit.close()
    assert shell.commit.start() is None
    assert not shell.commit.begin_checkpoint()
    shell.append()
    assert shell.heard() == ["begin"]


def test_group_commit_close_waits_for_the_running_flush_and_reports_its_end_offset() -> None:
    shell = Shell()
    shell.append(2)
    shell.commit.close()
    shell.commit.settle()
    assert shell.heard() == ["begin", "wait", "done", (1, 7)]
