"""What the cluster in memory is held to (``tests/conformance/client_cases.py``), on a real one."""

from __future__ import annotations

import asyncio

import nats
import pytest

from liftpy.client import connect, sync
from sidecar.dev.cluster import DevCluster
from tests.conformance.client_cases import CASES, Place
from tests.conformance.group_cases import GROUP_CASES
from tests.conformance.queue_cases import QUEUE_CASES
from tests.conformance.quota_cases import QUOTA_CASES

pytestmark = pytest.mark.processes


async def test_cluster_of_processes_passes_the_client_test_cases_of_the_memory_cluster(shared_cluster: DevCluster) -> None:
    url, namespace = shared_cluster.nats_url, shared_cluster.namespace
    nc = await nats.connect(url)
    failed: dict[str, str] = {}
    async with connect(url, namespace) as client:
        for body in [*CASES, *GROUP_CASES, *QUEUE_CASES, *QUOTA_CASES]:
            name = f"same-{body.__name__.replace('_', '-')[:40]}"
            place = Place(client, nc, name, lambda: connect(url, namespace), lambda: sync.connect(url, namespace))
            try:
                await asyncio.wait_for(body(place), 60)
            except (Exception, pytest.fail.Exception) as error:
                failed[body.__name__] = repr(error)
    await nc.close()
    assert failed == {}
