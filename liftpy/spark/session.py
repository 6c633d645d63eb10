"""``local_session``: a Spark session on one machine, for tests and examples."""

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
"""JVM options that skip the verification of Spark's own classes. They save a tenth of the time of a short job."""

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
"""Settings of a local session: loopback only, no web page, few tasks, UTC, no adaptive execution."""
_WORKER = Path(__file__).with_name("worker.sh")
_LOOPBACK = ("spark.driver.host", "spark.driver.bindAddress")
"""Settings that a cluster must not have, because its executors would not find the driver."""


def local_session(
    app_name: str, master: str = "local[2]", *, fast_start: bool = True, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a Spark session on this machine, or on the cluster of ``master``.

    If the thread has an active session already, it is returned. Then only ``settings`` are changed in it. Read streams
    with ``format("liftpy")``. Nothing needs to be registered.

    Args:
        app_name: Name of the application.
        master: Spark master. Default ``local[2]``.
        fast_start: If True, the JVM starts in 5 s instead of 7, but runs long jobs at about half speed. Default True.
        settings: Spark settings. They win over the defaults in ``LAPTOP_SETTINGS``. Default None.

    Returns:
        The session.

    Raises:
        ConfigError: pyspark or Java is missing. The text says which.

    Example:
        from liftpy.spark import local_session

        spark = local_session("orders")
        frame = spark.read.format("liftpy").option("stream", "orders").load()
    """
    if problem := spark_problem():
        raise ConfigError(problem)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if SparkSession.getActiveSession() is not None:  # its queries must keep their time zone and their number of tasks
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    # The workers that Spark starts take their interpreter from here; another one would not find these packages.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python() if is_local(master) else sys.executable)
    laptop = dict(LAPTOP_SETTINGS)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        laptop = {name: value for name, value in laptop.items() if name not in _LOOPBACK}
    builder = builder.appName(app_name).master(master)
    chosen = {**laptop, **({"spark.driver.extraJavaOptions": FAST_START} if fast_start else {}), **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _worker_python() -> str:
    """Return the path of the program that Spark starts as Python worker: the script ``worker.sh``, or this interpreter."""
    installed = importlib.util.find_spec("pyspark")
    beside = installed is not None and str(installed.origin).startswith(sys.prefix)
    usable = os.name == "posix" and os.access(_WORKER, os.X_OK) and "SPARK_HOME" not in os.environ
    return str(_WORKER) if usable and beside else sys.executable


def is_local(master: str) -> bool:
    """Return whether Spark tasks run on this machine if ``master`` is the Spark master."""
    return master.startswith("local")


def spark_problem() -> str:
    """Return why Spark cannot start here and what to do. '': it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed. Install it with pip install 'liftpy[spark]'."
    return _java_problem()


def _java_problem() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {OLDEST_JAVA} or newer (for example the package openjdk-17-jre-headless)"
    if java is None:
        return f"{wanted}. There is no java on the PATH and no JAVA_HOME. Install Java, or set JAVA_HOME."
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{wanted}, but {java} does not run: {error}. Set JAVA_HOME to another Java."
    version = java_major_version(done.stderr + done.stdout)
    if version is None:
        return f"{wanted}, but {java} -version prints no version. Set JAVA_HOME to another Java."
    return "" if version >= OLDEST_JAVA else f"{wanted}, but {java} is Java {version}. Set JAVA_HOME to another Java."


def java_major_version(text: str) -> int | None:
    """Return the major version of Java. ``text``: output of ``java -version``. None: the text has no version."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first
