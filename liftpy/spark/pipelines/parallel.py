"""Runs work in pieces, in threads or in the executors of a Spark session. Returns the results in order.

Each piece is one call of a function. Its result is a Python object (a digest, sums, a manifest) and not a row of the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from liftpy.errors import ConfigError
from liftpy.spark.failures import plainly, with_error_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASKS = 64
DEFAULT_TASKS = 4
_P = TypeVar("_P")
_R = TypeVar("_R")


def _with_error_code(work: Callable[[_P], _R], piece: _P) -> _R:
    """Run ``work``. The text of a liftpy error begins with its code, because Spark reports only the text."""
    with with_error_code():
        return work(piece)


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
        tell: Function of the number of finished pieces and of all pieces. It is not called with ``spark``.
    """
    if not 1 <= tasks <= MAX_TASKS:
        raise ConfigError(f"tasks = {tasks} (--tasks) is outside 1..{MAX_TASKS}. Choose a value in this range.")
    if not pieces:
        return []
    if spark is not None:
        with plainly():
            return list(spark.sparkContext.parallelize(pieces, len(pieces)).map(partial(_with_error_code, work)).collect())
    with ThreadPoolExecutor(tasks, thread_name_prefix="liftpy-pipeline") as pool:
        results: list[_R] = []
        for result in pool.map(work, pieces):
            results.append(result)
            if tell is not None:
                tell(len(results), len(pieces))
        return results
