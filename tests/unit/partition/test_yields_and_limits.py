"""Test turns of the event loop between pieces of long work, and the clock of periodic stores."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from sidecar.metadata.member import TRANSFER_REQUEST_TIMEOUT_S
from sidecar.partition import leadership
from sidecar.partition import scrub as scrub_module
from tests.only_in import only_in
from tests.unit.partition.shell_parts import KEY
from tests.unit.partition.test_replica_manager import RecordingWorker, partitions
from tests.unit.partition.test_scrub import FAST, partition, scrub_of


# ---- the scrub -----------------------------------------------------------------------------------------------------------------
async def test_scrub_pauses_in_proportion_to_its_read_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000, 3))
    monkeypatch.setattr(scrub_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock)), time=time.time))
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    only_in(monkeypatch, scrub_module, "asyncio", sleep=rest)
    one = partition(tmp_path, "a")
    scrub, _ = scrub_of(tmp_path, one)
    await scrub._scan(one, one.log.segments[0], 0, FAST, 19)
    assert rested == [3.0 * 19], "a thread that works 5 % of the time, however fast the disk is"
    await scrub.close()


# ---- stepping aside ------------------------------------------------------------------------------------------------------------
async def test_resign_request_waits_no_longer_than_the_timeout_of_its_requester(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    one = RecordingWorker(KEY, leads=True)
    node = partitions(one)

    async def settled(timeout_s: float) -> None:
        waits.append(timeout_s)

    async def rest(seconds: float) -> None:
        waits.append(seconds)

    transfers = node.transfers
    node.links.wait_until_processed = settled
    only_in(monkeypatch, leadership, "asyncio", sleep=rest)
    transfers.begin(one, lambda: waits.append("done"))
    await transfers.tasks[KEY]
    aside_s, done, back_s = waits
    assert done == "done"
    assert one.asked == ["leave", "back"]
    assert 0.1 <= aside_s < 0.75 * TRANSFER_REQUEST_TIMEOUT_S, "a slow disk's flush has its time, and the answer is in time"
    assert TRANSFER_REQUEST_TIMEOUT_S <= aside_s + back_s <= 1.5 * ReplicationConfig().session_s
