"""The short form of ``python -m tests.system.moving``: nodes join, one is drained, one dies and is replaced; nothing is lost."""

from __future__ import annotations

import dataclasses

import pytest

from tests.system.moving.run import Run, Size

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.mark.long
async def test_nodes_joined_drained_and_replaced_under_load_lose_no_record() -> None:
    settings = {"LIFTPY_REPLICATION_REPLACEMENT_GRACE_S": "0.2"}
    small = Size(partitions=2, workers=1, quiet_s=0.0, fill_bytes=100_000, deadline_s=120.0, settings=settings)
    size = dataclasses.replace(small, late=False, bank=False, kills=False, controllers=False, more_partitions=False)
    outcome = await Run(size, print, lambda node, line: print(f"{node} | {line}")).go()
    assert outcome.wrong == []
    assert outcome.right
    assert [phase.acks > 0 for phase in outcome.phases[1:]] == [True] * 3
