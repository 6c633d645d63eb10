"""A Kafka cluster on loopback (KRaft, each broker also a controller), from a folder of its jars."""

from __future__ import annotations

import base64
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from liftpy.errors import ConfigError, UnavailableError
from sidecar.dev.nats_server import spawn
from sidecar.dev.ports import free_ports
from sidecar.runtime.settings import search_path

_CLIENT = Path(__file__).with_name("KafkaPeer.java")
_HEAP = "-Xmx512m"
_READY_S = 60.0
_STOP_S = 15.0
_FORMAT_S = 60.0


def find_java() -> str:
    """Return the path of java. Raise ConfigError without one."""
    found = shutil.which("java", path=search_path())
    if found is None:
        raise ConfigError("Kafka needs Java 17 or later. Put `java` on the PATH.")
    return found


def require_kafka(jars: Path) -> None:
    """Raises ConfigError where Kafka can't be started from ``jars``; to be asked before a long run."""
    find_java()
    if not any(jars.glob("kafka_*.jar")) or not any(jars.glob("kafka-clients-*.jar")):
        raise ConfigError(
            f"{jars} has no kafka_*.jar and kafka-clients-*.jar. Give the directory `libs` of a Kafka "
            "distribution (--kafka-jars)."
        )


class KafkaCluster:
    """``with KafkaCluster(jars) as kafka``; raises UnavailableError, with its words, where Kafka does not start. Every child ends with
    it. ``jars``: a folder of Kafka's, as ``libs`` of its distribution."""

    def __init__(self, jars: Path, brokers: int = 3) -> None:
        self.jars = jars
        self._count = brokers
        self._folder = Path()
        self._brokers: list[subprocess.Popen[Any]] = []
        self.servers = ""
        """``bootstrap.servers``."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""
        return [broker.pid for broker in self._brokers]

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-peer-"))
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        ports = free_ports(2 * self._count)
        talk, vote = ports[: self._count], ports[self._count :]
        self.servers = ",".join(f"127.0.0.1:{port}" for port in talk)
        voters = ",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(vote))
        cluster = "k" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
        words = [find_java(), _HEAP, *self._jars()]
        for number in range(self._count):
            settings = self._folder / f"{number}.properties"
            settings.write_text(
                _settings(number, (talk[number], vote[number]), voters, self._folder / str(number), self._count)
            )
            formatted = [*words, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            done = subprocess.run(formatted, capture_output=True, text=True, timeout=_FORMAT_S, check=False)
            if done.returncode:
                raise UnavailableError(f"Cannot format the storage of Kafka: {(done.stderr or done.stdout)[-300:]}")
            with (self._folder / f"{number}.log").open("wb") as log:
                started = [*words, "kafka.Kafka", str(settings)]
                self._brokers.append(spawn(started, signal.SIGTERM, stdout=log, stderr=log))
        for port in talk:
            self._wait_for(port)

    def _wait_for(self, port: int) -> None:
        give_up_at = time.monotonic() + _READY_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > give_up_at or any(broker.poll() is not None for broker in self._brokers):
                raise UnavailableError(f"A Kafka broker did not start: {(self._folder / '0.log').read_text()[-300:]}")
            time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for broker in self._brokers:
            broker.terminate()
        for broker in self._brokers:
            try:
                broker.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _jars(self) -> list[str]:
        return ["-cp", str(self.jars / "*")]

    def client(self) -> list[str]:
        """Kafka's clients (``KafkaPeer.java``), without their arguments."""
        return [find_java(), *self._jars(), str(_CLIENT)]

    def create(self, topic: str, *, flushed: bool) -> None:
        """Create a topic with one partition on all brokers and min.insync.replicas 2.

        ``flushed``: each broker flushes before the ack.
        """
        words = [*self.client(), "create", self.servers, topic, "1" if flushed else str((1 << 63) - 1)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_READY_S, check=False)
        if done.returncode:
            raise UnavailableError(f"Cannot create a Kafka topic: {done.stderr[-300:]}")


def _settings(number: int, ports: tuple[int, int], voters: str, folder: Path, replicas: int) -> str:
    talk, vote = ports
    return f"""
process.roles=broker,controller
node.id={number + 1}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{talk},CONTROLLER://127.0.0.1:{vote}
advertised.listeners=PLAINTEXT://127.0.0.1:{talk}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
message.max.bytes=2097152
replica.fetch.max.bytes=2097152
log.cleaner.enable=false
"""
