"""Spark's standalone cluster: a master and workers, each a process, all on loopback; what executors print stays in their folders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyspark

from sidecar.dev.nats_server import spawn

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
START_TIMEOUT_S = 120.0
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+IgnoreUnrecognizedVMOptions -Dspark.master.rest.enabled=false"
_STOP_TIMEOUT_S = 20.0


class Daemon:
    """One of Spark's daemons. ``log``: its last lines."""

    def __init__(self, home: Path, arguments: list[str]) -> None:
        home.mkdir(parents=True)
        self.log: deque[str] = deque(maxlen=200)
        installed = Path(pyspark.__file__).parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment = {
            **kept,
            "SPARK_HOME": str(installed),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        self._process: subprocess.Popen[str] = spawn(
            [str(installed / "bin" / "spark-class"), *arguments],
            signal.SIGKILL,
            cwd=home,  # a folder of its own: nothing that tasks name relatively is there by chance
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until a line of its log has ``pattern``."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in list(self.log):
                if found := re.search(pattern, line):
                    return found
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"it does not say {pattern!r}: {list(self.log)[-12:]}")

    def stop(self) -> None:
        """End it; what a worker has started ends with it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Standalone:
    """A master and ``workers`` workers of one core each. A context manager."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self.daemons: list[Daemon] = []
        self.url = ""

    def __enter__(self) -> Standalone:
        try:
            master = Daemon(self._folder / "master", [MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
            self.daemons.append(master)
            self.url = master.said(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
            for number in range(self._count):
                home = self._folder / f"worker{number}"
                place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(home / "work")]
                self.daemons.append(Daemon(home, [WORKER, *place, "--cores", "1", "--memory", "1g", self.url]))
            for worker in self.daemons[1:]:
                worker.said("Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for daemon in reversed(self.daemons):
            daemon.stop()

    @property
    def pids(self) -> set[int]:
        """Of master and workers."""
        return {daemon.pid for daemon in self.daemons}
