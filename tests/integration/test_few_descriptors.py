"""A node whose limit of open files is low: it raises it as far as it may, holds more segments than it has descriptors, and is given
no more partitions than they are enough for [L6]."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from liftpy.client import connect
from liftpy.config import StreamConfig
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from sidecar.disk.files import budget_of
from tests.integration.conftest import show

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

SOFT, HARD = 128, 400
PARTITIONS, RECORDS = 30, 15
_LIMITED = (
    f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD})); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class FewDescriptors(DevCluster):
    """Its nodes may open few files."""

    def _command(self, name: str, controllers: list[str]) -> list[str]:
        return [sys.executable, "-c", _LIMITED, *super()._command(name, controllers)[1:]]


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with FewDescriptors(1, on_line=show) as running:
        yield running


async def test_node_with_few_file_descriptors_serves_more_segments_than_it_can_hold_open(cluster: DevCluster) -> None:
    async with await connect(cluster.nats_url) as client:
        budget = budget_of(HARD)
        before = (await client.admin.node_status("n1"))["descriptors"]
        assert before["limit"] == HARD, "the soft limit was raised"
        assert before["partition_budget"] == budget.partitions >= PARTITIONS
        await client.create_stream("s", "few.s", partitions=PARTITIONS, config=StreamConfig(segment_bytes=4096))
        values = [bytes([number]) * 4000 for number in range(RECORDS)]

        async def fill(partition: int) -> list[bytes | None]:
            for value in values:  # each a segment of its own
                await client.publish("s", value, partition=partition)
            return [value async for part in client.read_range("s", partition, 0, RECORDS) for value in part.values()]

        assert PARTITIONS * RECORDS > HARD
        assert await asyncio.gather(*map(fill, range(PARTITIONS))) == [values] * PARTITIONS
        found = (await client.admin.node_status("n1"))["descriptors"]
        assert found["maps_opened"] >= PARTITIONS * (RECORDS - 1), "every sealed segment was opened to be read"
        assert found["maps"] <= budget.maps
        assert found["open"] < HARD
        wanted = budget.partitions - PARTITIONS + 1
        with pytest.raises(LiftError) as refused:
            await client.create_stream("more", "few.more", partitions=wanted)
        assert f"n1 ({PARTITIONS} of {budget.partitions})" in str(refused.value)
        assert "limits of open files" in str(refused.value)
        await client.create_stream("fits", "few.fits", partitions=wanted - 1)
    assert cluster.nodes["n1"].running
