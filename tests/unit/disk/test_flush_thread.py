"""Test the flush thread: results, errors, timeouts and threads that hang."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from liftpy.core.log.flush import FlushScheduler
from sidecar.disk import flush_thread
from sidecar.disk.flush_thread import THREAD_NAME, FlushThread


def test_flush_thread_returns_results_and_raises_errors_of_one_worker_thread() -> None:
    made, threads = FlushThread(FlushScheduler()), set()

    def work() -> int:
        threads.add(threading.current_thread())
        return len(threads)

    assert [made.run(work, 10), made.run(work, 10)] == [1, 1]
    (thread,) = threads
    assert (thread.name, thread.daemon) == (THREAD_NAME, True)
    with pytest.raises(ZeroDivisionError):
        made.run(lambda: 1 // 0, 10)
    made.close()
    made.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_flush_thread_runs_the_next_flush_in_a_new_thread_while_one_hangs(fails: bool) -> None:
    made, began, gate, threads = FlushThread(FlushScheduler()), threading.Event(), threading.Event(), []

    def hangs() -> int:
        threads.append(threading.current_thread())
        began.set()
        assert gate.wait(10)
        return 1 // 0 if fails else 7

    late = made.run(hangs, 0.001)
    assert isinstance(late, Future)
    assert not late.done()
    assert began.wait(10), "its thread may not have had the processor yet"
    assert made.run(lambda: threads.append(threading.current_thread()) or 3, 10) == 3
    assert threads[0] is not threads[1]
    gate.set()
    if fails:
        assert isinstance(late.exception(10), ZeroDivisionError)
    else:
        assert late.result(10) == 7
    threads[0].join(10)
    assert not threads[0].is_alive(), "it ends with what it did"
    made.close()


def test_flush_thread_flush_that_ends_at_its_timeout_returns_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen each other then: the result is returned, and nobody looks at the other."""
    gate = threading.Event()

    class Late(Future):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__()
            gate.set()
            assert ended.wait(10)

    ended = threading.Event()
    run = flush_thread._Job.run

    def run_and_tell(job: flush_thread._Job) -> None:
        run(job)
        ended.set()

    monkeypatch.setattr(flush_thread, "Future", Late)
    monkeypatch.setattr(flush_thread._Job, "run", run_and_tell)
    made = FlushThread(FlushScheduler())
    assert made.run(lambda: gate.wait(10) and 5, 0.001) == 5
    made.close()


def test_flush_thread_retries_to_start_its_thread_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made, start = FlushThread(FlushScheduler()), threading.Thread.start

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        made.run(lambda: 1, 10)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert made.run(lambda: 2, 10) == 2, "not put before a thread that never was"
    made.close()
