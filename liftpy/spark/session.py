"""A Spark session for one machine: what the demo, the examples and the tests start. Imports pyspark only when called."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from liftpy.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
_JAVA_ANSWER_S = 20.0
FAST_START = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -XX:+IgnoreUnrecognizedVMOptions"
)
"""Spark's own jars are loaded without verifying each class, a tenth of what a short job costs."""

LAPTOP_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""Loopback only, no web page, few tasks, UTC. Adaptive execution costs more than it gives on small inputs."""
_WORKER = Path(__file__).with_name("worker.sh")
_LOOPBACK = ("spark.driver.host", "spark.driver.bindAddress")
"""Executors on other machines would not find a driver there."""


def local_session(
    app_name: str, master: str = "local[2]", *, fast_start: bool = True, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session here, or on the cluster that ``master`` names, started if there is none; raise ConfigError saying what is missing.

    ``fast_start``: a JVM that starts in 5 s instead of 7 and computes at perhaps half speed later: for jobs of seconds, not of
    minutes. ``settings`` win over the defaults of LAPTOP_SETTINGS. Streams are read with ``format("liftpy")``, no registration.
    """
    if problem := spark_problem():
        raise ConfigError(problem)
    from pyspark.sql import SparkSession

    # The workers that Spark starts take their interpreter from here; another one would not find these packages.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python() if is_local(master) else sys.executable)
    laptop = dict(LAPTOP_SETTINGS)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        laptop = {name: value for name, value in laptop.items() if name not in _LOOPBACK}
    builder = SparkSession.builder.appName(app_name).master(master)
    chosen = {**laptop, **({"spark.driver.extraJavaOptions": FAST_START} if fast_start else {}), **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _worker_python() -> str:
    """What starts workers here: ``worker.sh``, if Spark is the one that is installed beside this interpreter, and sh is here."""
    installed = importlib.util.find_spec("pyspark")
    beside = installed is not None and str(installed.origin).startswith(sys.prefix)
    usable = os.name == "posix" and os.access(_WORKER, os.X_OK) and "SPARK_HOME" not in os.environ
    return str(_WORKER) if usable and beside else sys.executable


def is_local(master: str) -> bool:
    """Whether executors are on this machine."""
    return master.startswith("local")


def java_available() -> bool:
    """Whether a Java that Spark can use is here (JAVA_HOME, else the PATH)."""
    return not _java_problem()


def spark_problem() -> str:
    """Why no Spark session can be started here, with what to do about it; empty when one can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'liftpy[spark]'"
    return _java_problem()


def _java_problem() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {OLDEST_JAVA} or newer (for example the package openjdk-17-jre-headless)"
    if java is None:
        return f"{wanted}, and there is no java on the PATH and no JAVA_HOME"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{wanted}, and {java} does not run: {error}"
    version = java_major_version(done.stderr + done.stdout)
    if version is None:
        return f"{wanted}, and {java} -version says nothing that looks like a version"
    return "" if version >= OLDEST_JAVA else f"{wanted}, and {java} is Java {version}"


def java_major_version(text: str) -> int | None:
    """17 from the output of ``java -version`` of a Java 17, 8 from that of a 1.8; None if it is not one."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second else first
