"""What quotas do while a cluster runs, on the cluster in memory and on a real one (as ``client_cases.py``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from liftpy.config import DefaultQuota, StreamConfig
from tests.conformance.client_cases import Case, Place

QUOTA_CASES: list[Case] = []


def case(body: Case) -> Case:
    QUOTA_CASES.append(body)
    return body


async def throttled(place: Place, subject: str) -> bool:
    """Whether some of what is published at once is beyond a quota."""
    answers = await asyncio.gather(*(place.nc.request(subject, b"x", timeout=30) for _ in range(4)))
    return any(json.loads(answer.data).get("error", {}).get("err_code") == 10167 for answer in answers)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await is_so():
            await asyncio.sleep(0.02)


@case
async def the_clusters_default_quota_holds_at_once_where_a_stream_has_none(place: Place) -> None:
    client, name = place.client, place.name
    stream = await client.create_stream(name, f"data.{name}")
    await client.create_stream(f"{name}-free", f"data.{name}-free", config=StreamConfig(quota_exempt=True))
    await client.create_stream(f"{name}-own", f"data.{name}-own", config=StreamConfig(quota_records_per_s=1_000_000))
    assert not await throttled(place, f"data.{name}")
    try:
        assert (
            await client.admin.set_default_quota(records_per_s=1)
            == await client.admin.default_quota()
            == DefaultQuota(records_per_s=1)
        )
        await until(lambda: throttled(place, f"data.{name}"))
        assert not await throttled(place, f"data.{name}-free")
        assert not await throttled(place, f"data.{name}-own")
        new_leader = next(node for node in stream.partitions[0].replicas if node != stream.partitions[0].leader)
        await client.admin.elect_leader(name, 0, new_leader)
        await client.publish(name, b"its first")
        assert await throttled(place, f"data.{name}"), "who leads next holds it too"
        await client.admin.alter_stream(f"{name}-free", quota_exempt=False)
        await until(lambda: throttled(place, f"data.{name}-free"))
    finally:
        await client.admin.set_default_quota(records_per_s=0)

    async def takes_all() -> bool:
        return not await throttled(place, f"data.{name}")

    await until(takes_all)
