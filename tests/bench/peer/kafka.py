"""Kafka from the jars that Maven brings."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from liftpy.errors import ConfigError, UnavailableError
from sidecar.bench import systems
from tests.clients.build import MissingError, Program

PROGRAMS = Path(__file__).parent / "programs"
KAFKA = Program(
    name="Kafka 3.9.1",
    sources="kafka",
    folder=PROGRAMS,
    tools=("java", "mvn"),
    build="mvn -q dependency:copy-dependencies",
    run=("java",),
)


class KafkaCluster(systems.KafkaCluster):
    """``with KafkaCluster() as cluster``; raises MissingError where Java, Maven or the jars can't be had."""

    def __init__(self, brokers: int = 3) -> None:
        super().__init__(Path(), brokers)

    def __enter__(self) -> Self:
        _, folder = KAFKA.ready()
        self.jars = folder / "target" / "dependency"
        try:
            return super().__enter__()
        except (ConfigError, UnavailableError) as error:
            raise MissingError(str(error)) from error
