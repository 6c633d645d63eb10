"""What whoever can publish may try on the membership of a cluster without authorization: real nodes, frames as nodes send them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import close_bench, open_bench

from sidecar.raft.sessions import _FRAME, _HELLO

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
async def bench(shared_cluster: Any) -> AsyncIterator[Any]:
    opened = await open_bench(shared_cluster)
    yield opened
    await close_bench(opened)


async def ended_sessions(bench: Any) -> int:
    """Of all controllers together."""
    reports = [await bench.client.node_status(node) for node in ("n1", "n2", "n3")]
    return sum(n for report in reports for kind, n in report["counters"].items() if "sessions ended" in kind)


async def test_hellos_in_the_names_of_members_end_no_session(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    before = await bench.client.describe_cluster()
    ended = await ended_sessions(bench)
    draw = random.Random(1)
    acked = []
    for turn in range(20):
        for to in ("n1", "n2", "n3"):
            for sender in {"n1", "n2", "n3"} - {to}:
                for _ in range(20):
                    frame = _FRAME.pack(_HELLO, draw.choice((0, 4)), draw.getrandbits(63) | 1, draw.choice((0, 7)), 0, 1)
                    await bench.nc.publish(f"liftpy.raft.{to}.{sender}", frame)
        acked += await bench.publish_acked(f"data.{stream_name}", [b"%d" % turn])
    await bench.nc.flush()
    assert acked == list(range(1, 21))

    async def heard() -> bool:
        reports = [await bench.client.node_status(node) for node in ("n1", "n2", "n3")]
        return all(r["counters"].get("metadata: hellos that answer nobody", 0) >= 800 for r in reports)

    await bench.until(heard, "all of them have come")
    assert await ended_sessions(bench) == ended
    after = await bench.client.describe_cluster()
    assert (after.metadata_leader, [c.term for c in after.controllers]) == (
        before.metadata_leader,
        [c.term for c in before.controllers],
    )
