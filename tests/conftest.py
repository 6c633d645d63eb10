"""The suite on two cores, ``python -m pytest -n 2``: what starts real nodes stays on one worker, one test after another."""

from __future__ import annotations

from typing import Any

import pytest

ONE_AT_A_TIME = ("tests/integration/", "tests/system/", "tests/unit/test_compose.py", "tests/bench/")
"""Where the tests marked ``processes`` and ``spark`` are (``test_tidy`` sees to it): they wait for elections, beside their own load.

In this order: the benchmarks' short forms come last, when the other worker has nothing left to do.
"""

SPARK = (
    "tests/integration/test_spark_",
    "tests/integration/test_operator_mode.py",
    "tests/bench/test_short_forms.py::test_the_spark",
)
"""These wait for Spark, and for few elections: they begin the other worker's half, which is the shorter one."""


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, one after another: everything with processes, everything with Spark, else a file."""
    if nodeid.startswith(SPARK):
        return "spark"
    return "processes" if nodeid.startswith(ONE_AT_A_TIME) else nodeid.split("::", 1)[0]


def place_of(nodeid: str) -> int:
    """Groups begin in the order in which their first tests are collected: the two long ones first, one for each worker."""
    if nodeid.startswith(SPARK):
        return len(ONE_AT_A_TIME)
    return next((place for place, start in enumerate(ONE_AT_A_TIME) if nodeid.startswith(start)), len(ONE_AT_A_TIME) + 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever the number of workers: the order of files stays within each place."""
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``group_of`` says what goes together."""
    from xdist.scheduler import LoadScopeScheduling

    class Halves(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Halves(config, log)
