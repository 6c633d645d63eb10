"""Test the pure functions for commit, lag, reconciliation, ISR changes, leases, backoff and waiting fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liftpy.core.replication.events import EpochQueryAnswered
from liftpy.core.replication.follower import LogReset, Truncation, reconcile
from liftpy.core.replication.isr import (
    isr_high_watermark,
)
from liftpy.core.replication.log_offsets import LogOffsets

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "high_watermark.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_isr_high_watermark_equals_the_published_test_vectors(vector: dict) -> None:
    isr = vector["isr"]
    assert isr_high_watermark(vector["newest"], isr, len(isr), vector["min_isr"], vector["hw_before"]) == vector["hw"]


def log(epochs: tuple[tuple[int, int], ...], end: int, start: int = 0) -> LogOffsets:
    opened = LogOffsets()
    opened.set_recovered(start, end, -1, epochs)
    return opened


def answer(epoch: int, last: int, start: int = 0) -> EpochQueryAnswered:
    return EpochQueryAnswered(request_id=1, leader_epoch=epoch, last_offset=last, current_epoch=9, log_start_offset=start)


def test_reconciliation_with_another_epoch_truncates_the_log_and_needs_a_second_epoch_query() -> None:
    own = log(((1, 0), (3, 10)), 14)
    assert reconcile(own, answer(2, 11)) == Truncation(10, agreed=False)
    own.cut(10)
    assert reconcile(own, answer(1, 7)) == Truncation(8, agreed=True)


def test_reconciliation_with_the_same_epoch_completes_after_one_epoch_query() -> None:
    assert reconcile(log(((1, 0),), 14), answer(1, 19)) == Truncation(14, agreed=True)
    assert reconcile(log(((1, 0),), 14), answer(1, 9)) == Truncation(10, agreed=True)


def test_reconciliation_with_an_epoch_unknown_to_the_leader_resets_the_log() -> None:
    assert reconcile(log(((1, 0),), 14), answer(0, -1)) == LogReset(0)
    assert reconcile(log(((1, 0),), 14), answer(0, -1, start=40)) == LogReset(40)
    assert reconcile(log(((3, 5),), 14, start=5), answer(2, 4)) == LogReset(0)
