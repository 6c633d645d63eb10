"""Test the settings of a local Spark session, error codes, and the read of one range to rows, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError, DataLossError, UnavailableError
from liftpy.spark import range_reader, session
from liftpy.spark.failures import SourceError, with_error_code
from liftpy.spark.planning import PlannedRange
from liftpy.spark.range_reader import FetchRules


class Builder:
    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def appName(self, name: str) -> Builder:
        self.said["app"] = name
        return self

    def master(self, where: str) -> Builder:
        self.said["master"] = where
        return self

    def config(self, name: str, value: str) -> Builder:
        self.said[name] = value
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    beside = SimpleNamespace(origin=f"{sys.prefix}/lib/pyspark/__init__.py")
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(sql=None, __spec__=beside))
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(SparkSession=SimpleNamespace(builder=made)))
    monkeypatch.setattr(session, "spark_problem", lambda: "")
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "kept")
    for name in ("PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # so that it is taken away again
    return made


def test_local_spark_session_workers_use_the_current_python_interpreter(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"spark.sql.session.timeZone": "CET", "mine": "1"}
    found: Any = session.local_session("app", settings=given)
    assert found is builder
    assert builder.said == {
        "app": "app", "master": "local[2]", **session.LAPTOP_SETTINGS, "spark.driver.extraJavaOptions": session.FAST_START, **given,
    }  # fmt: skip
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == ("kept", "kept")
    builder.said.clear()
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name)
    session.local_session("app", "local[4]", fast_start=False)
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == (str(session._WORKER), "127.0.0.1")
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert builder.said == {"app": "app", "master": "local[4]", **session.LAPTOP_SETTINGS}
    monkeypatch.setattr(session, "spark_problem", lambda: "no java")
    with pytest.raises(ConfigError, match="no java"):
        session.local_session("app")


@pytest.mark.parametrize(
    ("master", "home", "origin"),
    [("spark://host:7077", "", sys.prefix), ("local[2]", "/opt/spark", sys.prefix), ("local[2]", "", "/usr/share")],
)
def test_local_spark_session_of_another_spark_installation_uses_the_current_python_for_workers(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, master: str, home: str, origin: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    if home:
        monkeypatch.setenv("SPARK_HOME", home)
    sys.modules["pyspark"].__spec__ = SimpleNamespace(origin=f"{origin}/pyspark/__init__.py")  # type: ignore[assignment]
    session.local_session("app", master)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_spark_worker_script_removes_the_pyspark_zips_from_the_python_path() -> None:
    zips = ["/x/pyspark/python/lib/pyspark.zip", "/x/pyspark/python/lib/py4j-0.10.9.9-src.zip"]
    surroundings = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": ":".join([zips[0], "/a b/py4j.zip", zips[1], "/c*"])}
    command = [str(session._WORKER), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')", "one two"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout == "/a b/py4j.zip:/c*|one two\n"


def test_spark_session_with_a_failing_or_too_old_java_raises_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    answer: list[Any] = []

    def run(command: list[str], **how: Any) -> Any:
        said.append((command, how["timeout"]))
        if isinstance(answer[0], Exception):
            raise answer[0]
        return SimpleNamespace(stderr=answer[0], stdout="")

    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    monkeypatch.setattr(session.subprocess, "run", run)
    newest, oldest = session.OLDEST_JAVA, session.OLDEST_JAVA - 1
    for given, problem in (
        (OSError("no such file"), "java does not run: no such file"),
        (session.subprocess.TimeoutExpired("java", 1), "java does not run"),
        ("nothing", "prints no version"),
        (f'openjdk version "{oldest}.0.1"', f"java is Java {oldest}"),
        (f'openjdk version "{newest}.0.1"', ""),
    ):
        answer[:] = [given]
        found = session._java_problem()
        assert (problem in found) if problem else (found == "")
        assert session.java_available() is not bool(problem)
    assert {tuple(command) for command, _ in said} == {("/opt/java/bin/java", "-version")}


def test_spark_source_error_contains_the_liftpy_error_code_once() -> None:
    def fail(error: Exception) -> None:
        with with_error_code():
            raise error

    with pytest.raises(SourceError, match=r"^\[UNAVAILABLE\] nobody$") as raised:
        fail(UnavailableError("nobody"))
    again = raised.value
    with pytest.raises(SourceError) as raised:
        fail(again)
    assert raised.value is again
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())


@pytest.mark.parametrize("fails", [False, True])
def test_spark_range_read_builds_rows_with_the_columns_of_the_query_options(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Reader:
        def __init__(self, link: Any, planned: Any, rules: Any) -> None:
            asked.append((link, planned, rules))

        def read(self) -> Any:
            yield ["one", "two"]
            if fails:
                raise DataLossError("gone")
            yield ["three"]

    class Rows:
        def __init__(self, *given: Any) -> None:
            asked.append(given)

        def batches(self, pieces: Any) -> Any:
            return (f"row of {piece}" for piece in pieces)

    monkeypatch.setattr(range_reader, "RangeReader", Reader)
    monkeypatch.setattr(range_reader, "link_to", lambda access: ("link", access))
    monkeypatch.setattr(range_reader, "RowBuilder", Rows)
    planned = PlannedRange("s", "u1", 2, 5, 8, 3, "n1", ("n1",))
    options: Any = SimpleNamespace(
        patience_s=7.0,
        read_from_leader=fails,
        expects_files=not fails,
        fail_on_data_loss=False,
        columns=("value",),
        access="a",
    )
    found = range_reader.read_planned(planned, options)
    assert [next(found), next(found)] == ["row of one", "row of two"]
    if fails:
        with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] gone"):
            next(found)
    else:
        assert list(found) == ["row of three"]
    assert asked == [
        ("s", 2, ("value",)),
        (("link", "a"), planned, FetchRules(7.0, fails, False, files=not fails, expects_files=not fails)),
    ]
    assert list(range_reader.read_planned(None, options)) == []
