"""Test whether Spark can start on this host, the settings of a local session, and error codes, without Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftpy.errors import ConfigError, UnavailableError
from liftpy.spark import session
from liftpy.spark.failures import SourceError, with_error_code


def fake_java(folder: Path, says: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('openjdk version "17.0.1" 2025-04-15', ""),
        ('openjdk version "21" 2023-09-19', ""),
        ('openjdk version "11.0.22"', "is Java 11"),
        ('java version "1.8.0_402"', "is Java 8"),
        ("no version", "prints no version"),
        (None, "does not run"),
    ],
)
def test_java_home_variable_selects_the_java_binary(
    says: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if says is not None:
        fake_java(tmp_path, says)
    assert bool(session.spark_problem()) == bool(problem)
    if problem:
        with pytest.raises(ConfigError, match=f"Java 17 or newer.*{problem}"):
            session.local_session("test")


def test_spark_problem_with_a_hanging_java_is_reported_after_20_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session.subprocess, "run", run)
    assert "timed out after 20.0 seconds" in session.spark_problem()


def test_spark_problem_without_java_contains_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "openjdk-17" in session.spark_problem()


def test_spark_problem_without_pyspark_contains_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'liftpy\[spark\]'"):
        session.local_session("test")


def test_local_spark_session_keeps_the_settings_of_an_active_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time zone and the number of tasks belong to other queries of the program, too."""
    sql = pytest.importorskip("pyspark.sql")
    changed: dict[str, str] = {}

    class Builder:
        """Builder of pyspark. If there is a session, its options become settings of that session."""

        def config(self, name: str, value: str) -> Builder:
            changed[name] = value
            return self

        def appName(self, name: str) -> Builder:
            return self.config("spark.app.name", name)

        def master(self, name: str) -> Builder:
            return self.config("spark.master", name)

        def getOrCreate(self) -> str:
            return "the active session"

    monkeypatch.setattr(session, "spark_problem", lambda: "")
    monkeypatch.setattr(sql, "SparkSession", SimpleNamespace(builder=Builder(), getActiveSession=lambda: "the active session"))
    assert session.local_session("orders") == "the active session"
    assert changed == {}
    session.local_session("orders", settings={"spark.sql.shuffle.partitions": "7"})
    assert changed == {"spark.sql.shuffle.partitions": "7"}


def test_local_spark_session_workers_use_the_installed_pyspark_unless_spark_home_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for origin, worker in ((Path(sys.prefix, "pyspark"), "worker.sh"), (tmp_path / "pyspark", Path(sys.executable).name)):
        monkeypatch.setattr(session.importlib.util, "find_spec", lambda name, origin=origin: SimpleNamespace(origin=origin))
        assert Path(session._worker_python()).name == worker
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=Path(sys.prefix, "pyspark")))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert session._worker_python() == sys.executable


def test_spark_planning_modules_can_be_imported_without_pyspark() -> None:
    code = (
        "import sys, liftpy.spark.session, liftpy.spark.options, liftpy.spark.planning, liftpy.spark.catalog, pyspark_liftpy;"
        "print([m for m in ('pyspark', 'sidecar') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_editable_install_adds_the_source_directory_to_the_python_path(tmp_path: Path) -> None:
    """Spark searches modules ``pyspark_*`` in the directories of the path and ignores import hooks."""
    root = Path(__file__).resolve().parents[3]
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_liftpy.py"):
        shutil.copy(root / name, tmp_path / name)
    for name in ("liftpy", "sidecar"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = "from setuptools import build_meta; build_meta.build_editable('.')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        (path,) = (made.read(name).decode() for name in made.namelist() if name.endswith(".pth"))
    assert path.strip() == str(tmp_path)


def test_spark_worker_script_removes_the_pyspark_zips_from_the_python_path() -> None:
    zips = ["/x/pyspark/python/lib/pyspark.zip", "/x/pyspark/python/lib/py4j-0.10.9.9-src.zip"]
    surroundings = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": ":".join([zips[0], "/a b/py4j.zip", zips[1], "/c*"])}
    command = [str(session._WORKER), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')", "one two"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout == "/a b/py4j.zip:/c*|one two\n"


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
