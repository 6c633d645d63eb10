"""The suite on two cores, ``python -m pytest -n 4``: what starts real nodes is one test after another, on all workers first.

Such a test waits as much as it computes, so that four workers keep two cores busy.
"""

from __future__ import annotations

import compileall
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sidecar.dev import nats_server
from tests import long, parameter_ids
from tests.fork_server import FORKS

nats_server.spawn = FORKS.spawn
"""Before any other module imports it: nodes and services are forked, which saves two thirds of a second of processor time each."""


def load_hypothesis_profile() -> None:
    """Give an example any time, because machines are slow or shared, and draw fewer examples without ``--long``."""
    settings.register_profile(
        "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=long.examples(100)
    )
    settings.load_profile("suite")


load_hypothesis_profile()

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Images of containers often forbid bytecode files. Each of the suite's hundreds of nodes and commands would compile all its modules
anew then, which is half of what its start costs; and each worker would rewrite all asserts, each time."""

os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no-configuration")
"""A context that a developer has selected is not where the suite goes."""

INTERRUPTIBLE_LIFTPY = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from sidecar.cli.main import main; main()",
]
"""The command line as a child that SIGINT and SIGHUP reach, also where the tests themselves ignore them (``nohup python -m pytest &``):
the child would inherit that."""

ONE_AT_A_TIME = (
    "tests/integration/",
    "tests/system/",
    "tests/unit/test_compose.py",
    "tests/bench/",
    "tests/docs/test_tutorial.py",
)
"""Where the tests marked ``processes`` and ``spark`` are (``test_tidy`` sees to it): they wait for elections, beside their own load.

In this order: the integration tests are two workers', the others another's; the benchmarks' short forms come last there.
"""
LATER_HALF = "tests/integration/test_n"
"""From here on, by name: of the second of the two."""

SPARK = (
    "tests/integration/test_spark_",
    "tests/integration/test_operator_mode.py",
    "tests/docs/test_tutorial.py",
)
"""These wait for Spark, and for few elections: they begin the fourth worker's part."""


SHARED_CLUSTER = "shared_cluster"
"""The fixture of tests that break nothing (``tests/integration/conftest.py``)."""

LONG = ("tests/simulation/", "tests/model/", "tests/scripts/")
"""Files with few tests, each of which takes long: behind those, before all that is short, so that no worker has one at the end."""


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, one after another: integration in two halves, the other ones with processes, Spark,
    those that read the sources of all modules, else a file."""
    if nodeid.startswith(SPARK):
        return "spark"
    if nodeid.startswith(ONE_AT_A_TIME):
        if not nodeid.startswith(ONE_AT_A_TIME[0]):
            return "system"
        return "integration" if nodeid < LATER_HALF else "integration, later"
    return "sources" if nodeid.startswith(("tests/test_", "tests/docs/test_site.py")) else nodeid.split("::", 1)[0]


def place_of(nodeid: str) -> int:
    """Groups begin in the order in which their first tests are collected: the four long ones first, one for each worker."""
    if nodeid.startswith(SPARK):
        return len(ONE_AT_A_TIME)
    last = len(ONE_AT_A_TIME) + (1 if nodeid.startswith(LONG) else 2)
    return next((place for place, start in enumerate(ONE_AT_A_TIME) if nodeid.startswith(start)), last)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--long``."""
    parser.addoption(
        "--long", action="store_true", help="run the tests marked long too, and let no test take a sample of its cases"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell the test modules about ``--long`` before they are imported."""
    if config.getoption("--long"):
        os.environ[long.VARIABLE] = "1"
        load_hypothesis_profile()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever the number of workers: the order of files stays within each place, but those that share a cluster come first.

    Tests marked ``long`` are left out without ``--long``.
    """
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
    sharing = {item.path for item in items if SHARED_CLUSTER in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (place_of(item.nodeid), item.path not in sharing))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Show the value of a list, a dictionary or an error in the id of a test."""
    return parameter_ids.id_of(val)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the code and the tests once, before the workers start. In a new checkout each of them would do so, for 25 s."""
    config = session.config
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        return
    children = []
    for part in range(2):
        child = os.fork()
        if child == 0:
            try:
                compile_part(config, part, 2)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def compile_part(config: pytest.Config, part: int, parts: int) -> None:
    """Write the bytecode files of the ``part``-th of each ``parts`` modules and test files that have none, or an old one.

    pytest rewrites the asserts of a test file when it imports it, and offers no public function that only does this. Where its private
    ones have other names, each worker does the work for itself.
    """
    modules = [path for package in ("liftpy", "sidecar") for path in sorted((config.rootpath / package).rglob("*.py"))]
    for path in modules[part::parts]:
        compileall.compile_file(path, quiet=2)
    from _pytest.assertion.rewrite import (
        PYC_TAIL,
        _read_pyc,
        _rewrite_test,
        _write_pyc,
        assertstate_key,
        get_cache_dir,
        try_makedirs,
    )

    for path in sorted((config.rootpath / "tests").rglob("test_*.py"))[part::parts]:
        written = get_cache_dir(path) / (path.stem + PYC_TAIL)
        if _read_pyc(path, written) is None and try_makedirs(written.parent):
            found, code = _rewrite_test(path, config)
            _write_pyc(config.stash[assertstate_key], code, found, written)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is collected is garbage: looking for some takes a third of the time, and again in each test that makes some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape what is not UTF-8 in a report. A worker that cannot send a report ends, and the tests that it still had are not run."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """Copy a report's data, with each surrogate in its texts as an escape."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(encodable(entry) for entry in value)
    return value


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``group_of`` says what goes together."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # it would begin with the groups of most tests, and end with the longest
    return Groups(config, log)
