"""Test requests for stored events: from the local replica, the newest first, filtered and in bounded steps."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.wire.subjects import EVENTS_STREAM
from sidecar.status import answers as module
from sidecar.status.answers import stored_events
from tests.batches import build_batch
from tests.each import each
from tests.unit.log.small_logs import a_log

S = 10**9


def an_event(index: int, **more: Any) -> dict[str, Any]:
    kind = "isr_changed" if index % 3 else "election"
    return {"index": index, "number": 0, "time_ns": index * S, "kind": kind, "stream": "st"[index % 2], "now": "n1", **more}


def a_store(count: int, per_batch: int = 7, *, committed: int = 1 << 60) -> Log:
    """Provide a stream with event N at offset N. ``committed`` is the number of committed events."""
    log = a_log()
    for start in range(0, count, per_batch):
        numbers = range(start, min(start + per_batch, count))
        values = [json.dumps(an_event(number)).encode() for number in numbers]
        log.append(build_batch(values, base_offset=start, leader_epoch=1, timestamp_ns=start * S))
        if start > count // 2 and len(log.segments) == 1:
            log.roll()
    log.flush()
    log.raise_high_watermark(min(committed, log.log_end_offset) - 1)
    return log


def a_reporter(log: Log | None, **more: Any) -> Any:
    stream = SimpleNamespace(uid="u1", partitions=[SimpleNamespace(isr=("n1", "n2", "n3"))])
    worker = SimpleNamespace(key=PartitionKey(EVENTS_STREAM, "u1", 0), is_in_sync=True, log=log, **more)
    if log is not None:
        worker.high_watermark = log.high_watermark
    group = SimpleNamespace(image=SimpleNamespace(streams={EVENTS_STREAM: stream}))
    return SimpleNamespace(group=group, partitions=[worker] if log is not None else [], node_id="n1")


def asked(reporter: Any, limit: int = 500, **kept: Any) -> Any:
    return asyncio.run(stored_events(reporter, {"kept": kept, "limit": limit}))


def indices(said: Any) -> list[int]:
    return [event["index"] for event in said["kept"]]


def test_events_request_returns_pages_with_the_newest_event_first() -> None:
    reporter = a_reporter(a_store(40))
    first = asked(reporter, 15)
    assert (indices(first), first["more"], first["last"]) == ([*range(39, 24, -1)], True, (25, 0, 25))
    second = asked(reporter, 15, before=first["last"])
    assert indices(second) == [*range(24, 9, -1)]
    assert indices(asked(reporter, 15, before=first["last"][:2])) == [*range(24, 9, -1)], "where its offset is not known"
    last = asked(reporter, 15, before=second["last"])
    assert (indices(last), last["more"]) == ([*range(9, -1, -1)], False)


def test_events_request_returns_only_committed_events() -> None:
    assert indices(asked(a_reporter(a_store(21, committed=14)))) == [*range(13, -1, -1)]


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ({"kind": "election"}, [n for n in range(99, -1, -1) if n % 3 == 0]),
        ({"stream": "t"}, [*range(99, -1, -2)]),
        ({"node": "n2"}, []),
        ({"since_ns": 90 * S}, [*range(99, 89, -1)]),
        ({"until_ns": 10 * S}, [*range(9, -1, -1)]),
    ],
)
def test_events_request_with_filters_returns_only_matching_events(only: dict[str, Any], wanted: list[int]) -> None:
    assert indices(asked(a_reporter(a_store(100)), **only)) == wanted


def test_events_request_for_an_old_time_starts_its_scan_at_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCANNED_RECORDS", 100)
    reporter = a_reporter(a_store(2000))
    assert indices(asked(reporter, until_ns=200 * S))[:2] == [199, 198], "within a minute of it, by the batches' stamps"


def test_events_request_scans_a_bounded_number_of_records_and_returns_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCANNED_RECORDS", 100)
    monkeypatch.setattr(module, "STEP", 30)
    reporter, found, before = a_reporter(a_store(400)), [], None
    for questions in range(1, 10):  # noqa: B007
        said = asked(reporter, before=before, node="nobody")
        assert said["kept"] == []
        found.append(before := said["last"])
        if not said["more"]:
            break
    assert questions in (4, 5), "a hundred at once, and what is left of a batch"
    assert before == (0, 0, 0)


def test_events_request_omits_operator_requests_and_invalid_records() -> None:
    log = a_log()
    values = [
        b"{",
        b"7",
        None,
        json.dumps(an_event(1, kind="request")).encode(),
        b'{"index": 1}',
        json.dumps(an_event(2)).encode(),
    ]
    log.append(build_batch(values, base_offset=0, leader_epoch=1))
    log.flush()
    log.raise_high_watermark(5)
    assert indices(asked(a_reporter(log))) == [2]


def test_events_request_to_a_node_without_replica_returns_the_nodes_with_a_replica() -> None:
    assert asked(a_reporter(None)) == {"at": ["n2", "n3"]}
    behind = a_reporter(a_store(5))
    behind.partitions[0].is_in_sync = False
    assert asked(behind) == {"at": ["n2", "n3"]}
    behind.group.image.streams = {}
    assert asked(behind) is None
    closed = a_reporter(a_store(5))
    closed.partitions[0].log.close()
    assert asked(closed) is None


WRONG = [
    *({"before": place} for place in (7, [1], [1, 0, 2, 3], [1, 0, -1], [1, "2"], [-1, 0])),
    *({"before": place} for place in ([(1 << 63) + 1, 0], [1, (1 << 31) + 1], [1, 0, (1 << 63) + 1])),
    {"since_ns": 1.5},
    {"until_ns": (1 << 63) + 1},
    {"kind": 7},
]


@each("wrong", WRONG)
def test_events_request_with_invalid_arguments_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        asked(a_reporter(a_store(5)), **wrong)
    for limit in (0, 501, "5"):
        with pytest.raises(ValueError, match="limit"):
            asked(a_reporter(a_store(5)), limit)  # type: ignore[arg-type]


def test_events_request_by_time_skips_invalid_records_and_tolerates_clock_skew() -> None:
    log = a_log()
    for number, value in enumerate([json.dumps(an_event(1)).encode(), b"{", json.dumps(an_event(2)).encode()]):
        stamp = 30 * S + number * S  # the stream's leader is half a minute ahead of who wrote the events
        log.append(build_batch([value], base_offset=number, leader_epoch=1, timestamp_ns=stamp))
    log.flush()
    log.raise_high_watermark(2)
    assert indices(asked(a_reporter(log))) == [2, 1]
    assert indices(asked(a_reporter(log), until_ns=3 * S)) == [2, 1]
