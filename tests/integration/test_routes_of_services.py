"""Routes on real processes: outputs reach a further stream, by key, once and in order, also over the death of the leader's node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.outbox import place_of
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.examples.alarms import LIMIT
from tests.examples.processes import start_service
from tests.integration.conftest import Bench, close_bench, open_bench, show
from tests.integration.running_services import NODES, QUICK

pytestmark = pytest.mark.processes

PARTITIONS = 3
SENSORS = [b"s%d" % number for number in range(8)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings=QUICK, on_line=show) as running:
        yield running


async def publish(bench: Bench, first: int, count: int) -> None:
    """Readings, each at least once: whose outcome is not known is sent again."""
    for number in range(first, first + count):

        async def stored(number: int = number) -> bool:
            try:
                await bench.client.publish("readings", b"%d" % (number * 37 % 200), key=SENSORS[number * 5 % 8])
            except LiftError:
                return False
            return True

        await bench.until(stored, "a reading is stored")


async def readings_of(bench: Bench) -> list[tuple[bytes, int]]:
    """Sensor and reading of each that the log holds."""
    return [(record.key or b"", int(record.value or b"")) async for record in bench.client.consume("readings", until="end")]


def wanted(readings: list[tuple[bytes, int]]) -> list[list[tuple[bytes, bytes]]]:
    """What each partition of the warnings has to hold: key and value."""
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in range(PARTITIONS)]
    high = [(sensor, reading) for sensor, reading in readings if reading > LIMIT]
    for number, (sensor, reading) in enumerate(high, 1):
        found[place_of(sensor, range(PARTITIONS))].append((sensor, b"%d: %d is too high" % (number, reading)))
    return found


async def warnings(bench: Bench) -> list[list[tuple[bytes | None, bytes | None]]]:
    return [
        [(record.key, record.value) async for record in bench.client.consume("warnings", partition, until="end")]
        for partition in range(PARTITIONS)
    ]


@pytest.mark.long
async def test_service_routes_copy_each_output_once_although_a_leader_was_killed(cluster: DevCluster, tmp_path: Path) -> None:
    bench = await open_bench(cluster)
    for stream, partitions in (("readings", 1), ("confirmed", 1), ("warnings", PARTITIONS)):
        await bench.client.create_stream(stream, f"data.{stream}", partitions=partitions)
    processes: list[subprocess.Popen[Any]] = [
        start_service(
            "tests.examples.alarms:Alarms",
            stream="readings",
            node=node,
            data=tmp_path,
            output="confirmed",
            snapshot_interval_records=50,
            nats_url=cluster.nats_url,
            more=("--route", "high=warnings"),
        )
        for node in NODES
    ]
    try:

        async def all_there() -> bool:
            return await warnings(bench) == wanted(await readings_of(bench))

        await publish(bench, 0, 60)
        await bench.until(all_there, "the warnings of the first readings are there")
        leader = (await bench.client.stream("readings")).partitions[0].leader
        cluster.nodes[leader].kill()
        await publish(bench, 60, 60)
        await bench.until(all_there, "those after the leader's death are there too, each once")
        cluster.nodes[leader].start()
        cluster.nodes[leader].wait_ready()
        await publish(bench, 120, 30)
        await bench.until(all_there, "and those after its return")
        readings = await readings_of(bench)
        assert min(map(len, wanted(readings))) > 5
        outputs = [record.value or b"" async for record in bench.client.consume("confirmed", until="end")]
        assert [int(value) for value in outputs if b"high" not in value] == [reading for _, reading in readings]
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
        await close_bench(bench)
