"""Runs work in pieces, in threads or in the executors of a Spark session. Returns the results in order.

Each piece is one call of a function. Its result is a Python object (a digest, sums, a manifest) and not a row of the JVM.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from liftpy.errors import ConfigError
from liftpy.spark.failures import unwrap_spark_errors, with_error_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOB_GROUP = "spark.jobGroup.id"
_EVERY_S = 1.0
MAX_TASKS = 64
DEFAULT_TASKS = 4
_P = TypeVar("_P")
_R = TypeVar("_R")


def _with_error_code(work: Callable[[_P], _R], piece: _P) -> _R:
    """Return ``work(piece)``. If it raises a liftpy error, its text begins with the error code, because Spark reports only texts."""
    with with_error_code():
        return work(piece)


@contextlib.contextmanager
def watch_in_thread(watch: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run ``watch`` in a thread during the block. Its argument is set when the block ends. ``name``: name of the thread."""
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(over,), name=name, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


@contextlib.contextmanager
def _report_tasks(spark: SparkSession, count: int, tell: Callable[[int, int], None] | None) -> Iterator[None]:
    """While the block runs a Spark job, call ``tell`` with the number of its finished tasks and with ``count``."""
    if tell is None:
        yield
        return
    context, group = spark.sparkContext, f"liftpy-{uuid.uuid4()}"
    before = context.getLocalProperty(_JOB_GROUP)

    def watch(over: threading.Event) -> None:
        tracker = context.statusTracker()
        while not over.wait(_EVERY_S):
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
            stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
            tell(sum(stage.numCompletedTasks for stage in stages), count)

    context.setLocalProperty(_JOB_GROUP, group)
    try:
        with watch_in_thread(watch, "liftpy-progress"):
            yield
    finally:
        context.setLocalProperty(_JOB_GROUP, before)  # type: ignore[arg-type]
    tell(count, count)


def spread(
    work: Callable[[_P], _R],
    pieces: Sequence[_P],
    *,
    spark: SparkSession | None,
    tasks: int = DEFAULT_TASKS,
    tell: Callable[[int, int], None] | None = None,
) -> list[_R]:
    """Call ``work`` for each piece and return the results in order.

    Args:
        work: Function of a piece.
        pieces: The pieces.
        spark: Run as tasks of this session. None: in threads of this process.
        tasks: Number of calls that run at once.
        tell: Function of the number of finished pieces and of all pieces. With ``spark``, another thread calls it
            about once per second.
    """
    if not 1 <= tasks <= MAX_TASKS:
        raise ConfigError(f"tasks = {tasks} (--tasks) is outside 1..{MAX_TASKS}. Choose a value in this range.")
    if not pieces:
        return []
    if spark is not None:
        with unwrap_spark_errors(), _report_tasks(spark, len(pieces), tell):
            return list(spark.sparkContext.parallelize(pieces, len(pieces)).map(partial(_with_error_code, work)).collect())
    with ThreadPoolExecutor(tasks, thread_name_prefix="liftpy-pipeline") as pool:
        results: list[_R] = []
        for result in pool.map(work, pieces):
            results.append(result)
            if tell is not None:
                tell(len(results), len(pieces))
        return results
