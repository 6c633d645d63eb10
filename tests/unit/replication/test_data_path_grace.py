"""Test which lost NATS connections make a leader resign, and after which time."""

from __future__ import annotations

from liftpy.core.replication.lease import INGEST, INGEST_GRACE_NS, REPLICATION, DataPath


def test_data_path_is_down_at_once_without_the_replication_connection() -> None:
    path = DataPath()
    assert path.link_changed(REPLICATION, False, 100) is False
    assert path.link_changed(REPLICATION, False, 200) is None
    assert path.link_changed(REPLICATION, True, 300) is True


def test_data_path_is_down_after_a_grace_time_without_the_ingest_connection() -> None:
    path = DataPath()
    assert path.link_changed(INGEST, False, 100) is None
    assert path.next_ns(100) == 100 + INGEST_GRACE_NS
    assert path.check_timeout(99 + INGEST_GRACE_NS) is None
    assert path.check_timeout(100 + INGEST_GRACE_NS) is False
    assert path.next_ns(100 + INGEST_GRACE_NS) is None
    assert path.link_changed(INGEST, True, 200 + INGEST_GRACE_NS) is True


def test_data_path_stays_up_when_the_ingest_connection_returns_within_the_grace_time() -> None:
    path = DataPath()
    for turn in range(100):
        at_ns = turn * INGEST_GRACE_NS
        assert path.link_changed(INGEST, False, at_ns) is None
        assert path.link_changed(INGEST, True, at_ns + INGEST_GRACE_NS - 1) is None
        assert path.next_ns(at_ns + INGEST_GRACE_NS - 1) is None


def test_data_path_is_up_only_with_the_replication_and_the_ingest_connection() -> None:
    path = DataPath()
    assert path.link_changed(INGEST, False, 0) is None
    assert path.link_changed(REPLICATION, False, 5) is False
    assert path.check_timeout(INGEST_GRACE_NS) is None
    assert path.link_changed(REPLICATION, True, INGEST_GRACE_NS) is None
    assert path.link_changed(INGEST, True, INGEST_GRACE_NS) is True
