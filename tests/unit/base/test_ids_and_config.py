"""Test names of streams and nodes, subjects, and the validation of settings."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import FlushMode, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import check_data_subject, check_name
from liftpy.core.base.invariants import check
from liftpy.core.wire.subjects import Subjects, data_subject
from liftpy.errors import ConfigError, InvalidNameError, InvariantError
from tests.each import each


@each("name", ["", "a.b", "a/b", "..", "a b", "*", ">", "ä", "x" * 65, "a\n", "a\x00"])
def test_stream_or_node_name_that_is_unsafe_as_a_path_or_subject_token_is_rejected(name: str) -> None:
    with pytest.raises(InvalidNameError, match="stream name"):
        check_name(name, "stream name")
    with pytest.raises(InvalidNameError):
        Subjects(name)


@pytest.mark.parametrize("name", ["orders", "A-1_b", "x" * 64])
def test_stream_or_node_name_of_a_single_subject_token_is_accepted(name: str) -> None:
    assert check_name(name, "stream name") == name


@pytest.mark.parametrize("subject", ["orders", "orders.eu.>", "orders.*.new", "ordrés.x"])
def test_data_subject_of_one_or_more_tokens_is_accepted(subject: str) -> None:
    assert check_data_subject(subject, "liftpy") == subject


@each("subject", ["", ".", "a..b", "a.", ">", "*.x", "liftpy.x", "_INBOX.x", "$JS.API", "a b", "a.>.b", "a*", "x" * 256])
def test_data_subject_that_is_malformed_or_reserved_is_rejected(subject: str) -> None:
    with pytest.raises(InvalidNameError):
        check_data_subject(subject, "liftpy")


def test_subjects_of_a_namespace_equal_the_subjects_in_the_protocol() -> None:
    subjects = Subjects("ns")
    assert subjects.replicate("s", 0) == "ns.s.0.replicate"
    assert subjects.offset("s", 1) == "ns.s.1.offset"
    assert subjects.notify("b") == "ns.notify.b"
    assert subjects.read_from("s", 0, "b") == "ns.s.0.read.b"
    assert subjects.raft("to", "me") == "ns.raft.to.me"
    assert (data_subject("x", 0), data_subject("x", 3)) == ("x", "x.3")


@pytest.mark.parametrize("text", ["always", "none", "interval:250"])
def test_flush_policy_after_format_and_parse_is_equal(text: str) -> None:
    assert str(FlushPolicy.parse(text)) == text


@pytest.mark.parametrize(("text", "interval_s"), [("interval:250", 0.25), ("interval:250ms", 0.25), ("interval:1.5s", 1.5)])
def test_flush_policy_interval_with_and_without_unit_is_parsed_to_seconds(text: str, interval_s: float) -> None:
    assert FlushPolicy.parse(text) == FlushPolicy(FlushMode.INTERVAL, interval_s)


def test_flush_policy_stored_with_a_unit_is_rejected() -> None:
    with pytest.raises(ConfigError, match="flush policy"):
        FlushPolicy.decode("interval:250ms")


@each(
    "text",
    ["", "sometimes", "interval", "interval:0", "interval:x", "interval:60001", "interval:61s", "always:1", "interval:²"],
)
def test_flush_policy_with_unknown_text_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="flush policy"):
        FlushPolicy.parse(text)


def test_config_with_contradicting_settings_raises_with_the_setting_names() -> None:
    with pytest.raises(ConfigError, match="segment_bytes"):
        StreamConfig(segment_bytes=1)
    with pytest.raises(ConfigError, match="max_idle_wait_s must be below max_leader_timeout_s"):
        ReplicationConfig(max_idle_wait_s=1.0, max_leader_timeout_s=1.0)
    with pytest.raises(ConfigError, match="heartbeat_interval_s < lease_s < session_s"):
        ReplicationConfig(lease_s=2.5)
    with pytest.raises(ConfigError, match="max_idle_wait_s"):
        ReplicationConfig(max_idle_wait_s=6.0)
    with pytest.raises(ConfigError, match="fetch_timeout_s"):
        ReplicationConfig(fetch_timeout_s=float("nan"))


_YEAR_S = 366 * 86_400.0
_BOUNDS: dict[type[StreamConfig] | type[ReplicationConfig], dict[str, tuple[float | None, float | None]]] = {
    StreamConfig: {
        "min_isr": (0, 32), "segment_bytes": (4096, 2 << 30), "segment_age_s": (0, _YEAR_S), "retention_age_s": (0, 100 * _YEAR_S),
        "retention_bytes": (0, 1 << 62), "retention_records": (0, 1 << 62), "delete_retention_s": (0, 100 * _YEAR_S),
        "dedup_window_s": (0, 86_400.0),
    },
    ReplicationConfig: {
        "heartbeat_interval_s": (0.001, None), "session_s": (None, 3600.0), "max_lag_time_s": (None, 3600.0),
        "max_leader_timeout_s": (None, 3600.0),
        "max_idle_wait_s": (0.001, None), "fetch_timeout_s": (0.001, 3600.0), "candidate_timeout_s": (0.001, 3600.0),
        "hw_checkpoint_interval_s": (0.001, 3600.0), "notice_interval_s": (0.001, 3600.0), "min_leadership_s": (0.001, 3600.0),
        "hung_flush_s": (0.001, 3600.0),
        "service_grace_s": (0.001, 3600.0), "replacement_grace_s": (0, 30 * 86_400.0), "max_copies": (1, 10_000),
        "max_copies_per_node": (1, 1000), "max_lag_records": (0, 1 << 62), "slow_flush_factor": (0, 1e6),
        "follower_ping_delay_s": (0, 3600.0),
        "idle_polls_before_quiet": (1, 1 << 20), "replication_max_bytes": (4096, 64 << 20), "ingest_buffer_bytes": (8192, 16 << 30),
        "ingest_queue_bytes": (512, 4 << 30), "unreplicated_bytes": (512, 4 << 30), "node_unreplicated_bytes": (512, 16 << 30),
        "ingest_queue_records": (16, 1 << 26), "copy_bytes_per_s": (0, 64 << 30), "copy_duty_cycle": (0.001, 1.0),
        "copy_min_bytes_per_s": (0, 64 << 30), "copy_fetch_bytes": (4096, 64 << 20), "partition_message_id_bytes": (4096, 16 << 30),
        "batch_max_bytes": (4096, 64 << 20), "batch_max_records": (1, 65_536), "preferred_leader_interval_s": (0, 86_400.0),
    },
}  # fmt: skip
"""Setting -> least and largest; None where another setting bounds it first."""


@each(("kind", "name"), [(kind, name) for kind, bounds in _BOUNDS.items() for name in bounds])
def test_config_with_a_setting_outside_its_bounds_is_rejected(kind: Any, name: str) -> None:
    low, high = _BOUNDS[kind][name]
    step = 1 if isinstance(getattr(kind(), name), int) else 0.0005
    for bound, beyond in ((low, -step), (high, 1024 * step)):
        if bound is not None:
            assert getattr(kind(**{name: bound}), name) == bound
            with pytest.raises(ConfigError, match=f"^{name} = .* is outside "):
                kind(**{name: bound + beyond})


@pytest.mark.parametrize(("configured", "replicas", "effective"), [(0, 3, 2), (0, 1, 1), (3, 3, 3), (3, 2, 2), (1, 3, 1)])
def test_effective_min_isr_is_limited_by_the_replicas(configured: int, replicas: int, effective: int) -> None:
    assert StreamConfig(min_isr=configured).effective_min_isr(replicas) == effective


def test_invariant_check_that_fails_raises_with_the_invariant_code() -> None:
    check(True, "D7")
    with pytest.raises(InvariantError, match="D7 does not hold: hw 5"):
        check(False, "D7", "hw", 5)
