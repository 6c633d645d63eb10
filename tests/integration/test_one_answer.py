"""As the wire shows it: each request gets one answer, and an Ack of a run is one to each request of it [A8]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clients.answered import Tap

pytestmark = pytest.mark.processes


async def test_publishes_answered_by_batched_acks_get_one_answer_each(bench: Any, stream_name: str) -> None:
    await bench.create(stream_name)
    subject = f"data.{stream_name}"
    async with Tap(bench.cluster.nats_url, subject) as tap:
        ours = [bench.client.publish(stream_name, b"%d" % number) for number in range(500)]
        plain = [bench.nc.request(subject, b"plain %d" % number, timeout=20) for number in range(50)]
        acks, _ = await asyncio.gather(asyncio.gather(*ours), asyncio.gather(*plain))
        assert len({ack.offset for ack in acks}) == 500
        assert await tap.wrong() == ""
        assert (tap.twice(), tap.requests) == (0, 550)
        assert tap.lines < 550, "some were answered in a run"
