"""What a node says of itself, each figure from its own source; and its defaults, tasks and error handlers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from liftpy.cluster.controller_list import ControllerList
from liftpy.errors import ConfigError
from liftpy.ingest.derived_budget import NodeDerived
from liftpy.replica.copying import CopyPace
from liftpy.wire.refusals import REFUSED
from sidecar.settings import NodeSettings, Target
from sidecar.status.desk import StatusDesk
from sidecar.status.metrics import exposition
from sidecar.status.report import Reporter
from sidecar.tasks import fatal_on, spawn_in, unexpected

SUMS = {
    "records_in": "liftpy_ingest_records_total",
    "bytes_in": "liftpy_ingest_bytes_total",
    "batches_in": "liftpy_ingest_batches_total",
    "overloaded": "liftpy_ingest_overloaded_total",
    "rejected": "liftpy_ingest_rejected_total",
    "duplicates": "liftpy_ingest_duplicates_total",
    "message_ids_forgotten": "liftpy_message_ids_forgotten_total",
    "message_ids_bytes": "liftpy_message_ids_bytes",
    "producers_forgotten": "liftpy_producers_forgotten_total",
    "producers_bytes": "liftpy_producers_bytes",
    "subjects_bytes": "liftpy_subjects_bytes",
    "replayed_bytes": "liftpy_replayed_bytes_total",
    "states_written": "liftpy_derived_states_written_total",
    "states_failed": "liftpy_derived_states_failed_total",
    "poison_envelopes": "liftpy_ingest_poison_envelopes_total",
    "refused_replies": "liftpy_refused_replies_total",
    "flushes": "liftpy_log_flushes_total",
    "held_bytes": "liftpy_held_bytes",
    "uncommitted_bytes": "liftpy_uncommitted_bytes",
    "waiting_readers_bytes": "liftpy_waiting_readers_bytes",
    "assembling_bytes": "liftpy_assembling_bytes",
    "waiting_acks": "liftpy_waiting_acks",
}
TRAFFIC = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects")


def a_partition(number: int, role: str, **more: Any) -> dict[str, Any]:
    given = {name: 1000 * number + at for at, name in enumerate(SUMS)}
    return {
        **given,
        "role": role,
        "phase": "-",
        "isr": ["a", "b", "c"],
        "replicas": ["a", "b", "c"],
        "target": [],
        "has_slow_disk": False,
        "paused": "",
        "followers": {},
        "dropped": {},
        "subjects_state": "full" if number == 3 else "ready",
        "standby": {"held_bytes": number, "appended": 10 * number, "lost": 20 * number},
        "newest_offset": 100 * number,
        "high_watermark": 99 * number,
        **more,
    }


def figures(report: dict[str, Any]) -> dict[tuple[str, ...], float]:
    text = exposition(SimpleNamespace(report=lambda: report)).decode()  # type: ignore[arg-type]
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_figure_is_shown_under_its_own_name() -> None:
    busy = {"lag": 2, "role": "LEADER", "output_backlog": 91, "since_output_s": 92.5, "since_snapshot_s": 93.5, "failing": True}
    busy |= {
        "fetched_bytes": 0,
        "given_bytes": 0,
        "snapshot_bytes": 10,
        "queries_waiting": 1,
        "queries_answered": 2,
        "queries_refused": 3,
    }
    partitions = [
        a_partition(
            1,
            "LEADER",
            isr=["a", "b"],
            has_slow_disk=True,
            paused="until resumed",
            dropped={"x": 2, "y": 1},
            services=[{"lag": n, "fetched_bytes": n * 10, "given_bytes": n * 100} for n in (3, 8)],
        ),
        a_partition(
            3, "LEADER", target=["a", "d"], services=[busy, {**busy, "role": "FOLLOWER", "output_backlog": 900, "lag": 1}]
        ),
        a_partition(4, "LEADER", gone_services=[{}, {}], services=[{**busy, "output_backlog": 0, "since_output_s": 99.0}]),
        a_partition(2, "LEADER", followers={"b": {"has_slow_disk": True}, "c": {"has_slow_disk": False}}, dropped={"x": 5}),
        a_partition(7, "FOLLOWER", isr=["a"]),
        a_partition(9, "FOLLOWER", phase="FOLLOWER_QUIET", target=["a"]),
        a_partition(11, "LEARNER"),
    ]
    link = {"connected": True, "send_buffer_bytes": 41, "reconnects": 42}
    losses = {"waiting_bytes": 44, "lost_with_connections": 45, "connections_with_unknown_loss": 46}
    report = {
        "partitions": partitions,
        "nats": {"connected": False, **{name: 10 + at for at, name in enumerate(TRAFFIC)}, "errors": {"slow": 3}},
        "connections": {"replication": link, "ingest": {**link, "connected": False, "send_buffer_bytes": 43, **losses}},
        "copies": {"bytes_per_second": 84, "copied_bytes": 85, "backlog_bytes": 86, "waited_s": 87.5, "yielded_s": 88.5},
        "derived": {"bound_bytes": 91, "held": {"ids": 92, "subjects": 93}, "refused": {"ids": 94}},
        "flush_times": {"p50_ms": 1.0, "p99_ms": 250.0, "max_ms": 3000.0},
        "flush_place": {"on_loop": True, "moves": 51, "done_on_loop": 52, "done_in_thread": 53, "probed": 54},
        "ticks": {"p50_ms": 2.0, "p99_ms": 4.0, "max_ms": 8.0, "late": 55},
        "coordinators": [
            {
                "role": "LEADER",
                "groups": 1,
                "members": 2,
                "queues": 3,
                "records_out": 4,
                "state_bytes": 5,
                "bound_bytes": 6,
                "problem": "",
            },
            {
                "role": "LEADER",
                "groups": 10,
                "members": 20,
                "queues": 30,
                "records_out": 40,
                "state_bytes": 50,
                "bound_bytes": 6,
                "problem": "",
            },
            {
                "role": "FOLLOWER",
                "groups": 7,
                "members": 7,
                "queues": 7,
                "records_out": 7,
                "state_bytes": 7,
                "bound_bytes": 6,
                "problem": "x",
            },
        ],
        "scrub": {"checked_bytes": 61, "findings": 62, "last_full_pass_s": 63},
        "descriptors": {"open": 71, "limit": 72, "partition_budget": 73, "maps": 74},
        "metadata_held": {"journal_bytes": 81},
        "refused": {"checksum": 82},
        "counters": {"elections": 83, f"{REFUSED}checksum": 82},
    }
    found = figures(report)
    assert found["liftpy_standby_bytes",] == 37
    assert (found["liftpy_standby_messages_total", "appended"], found["liftpy_standby_messages_total", "lost"]) == (370, 740)
    for name, metric in SUMS.items():
        assert found[metric,] == sum(p[name] for p in partitions), name
    expected: dict[tuple[str, ...], float] = {
        ("liftpy_partitions",): 7,
        ("liftpy_partitions_led",): 4,
        ("liftpy_partitions_quiet",): 1,
        ("liftpy_partitions_copied",): 1,
        ("liftpy_partitions_moving",): 1,
        ("liftpy_partitions_paused",): 1,
        ("liftpy_copied_bytes_total",): 85,
        ("liftpy_copied_backlog_bytes_total",): 86,
        ("liftpy_copies_put_off_seconds_total",): 87.5,
        ("liftpy_copies_yielded_seconds_total",): 88.5,
        ("liftpy_derived_bound_bytes",): 91,
        ("liftpy_derived_bytes", "ids"): 92,
        ("liftpy_derived_bytes", "subjects"): 93,
        ("liftpy_derived_refused_total", "ids"): 94,
        ("liftpy_partitions_under_replicated",): 1,
        ("liftpy_replicas_with_slow_disks",): 2,
        ("liftpy_partitions_with_too_many_subjects",): 1,
        ("liftpy_ingest_dropped_total", "x"): 7,
        ("liftpy_ingest_dropped_total", "y"): 1,
        ("liftpy_uncommitted_records",): 10,
        ("liftpy_coordinators", "leader"): 2,
        ("liftpy_coordinators", "follower"): 1,
        ("liftpy_coordinators", "failing"): 1,
        ("liftpy_groups",): 11,
        ("liftpy_group_members",): 22,
        ("liftpy_group_queues",): 33,
        ("liftpy_group_records_out",): 44,
        ("liftpy_coordinator_state_bytes",): 62,
        ("liftpy_coordinator_state_bound_bytes",): 6,
        ("liftpy_services",): 5,
        ("liftpy_services_gone",): 2,
        ("liftpy_services_failing",): 3,
        ("liftpy_service_output_backlog",): 91,
        ("liftpy_service_output_age_seconds",): 92.5,
        ("liftpy_service_snapshot_age_seconds",): 93.5,
        ("liftpy_service_state_bytes",): 30,
        ("liftpy_service_queries", "waiting"): 3,
        ("liftpy_service_queries", "answered"): 6,
        ("liftpy_service_queries", "refused"): 9,
        ("liftpy_service_lag_records",): 8,
        ("liftpy_service_snapshot_bytes", "fetched"): 110,
        ("liftpy_service_snapshot_bytes", "given"): 1100,
        ("liftpy_nats_connected",): 0,
        ("liftpy_nats_errors_total", "slow"): 3,
        ("liftpy_connection_up", "replication"): 1,
        ("liftpy_connection_up", "ingest"): 0,
        ("liftpy_connection_unsent_bytes", "ingest"): 43,
        ("liftpy_connection_reconnects_total", "replication"): 42,
        ("liftpy_ingest_buffer_bytes",): 44,
        ("liftpy_ingest_lost_with_connections_total",): 45,
        ("liftpy_ingest_unknown_losses_total",): 46,
        ("liftpy_log_flush_seconds", "p99"): 0.25,
        ("liftpy_log_flush_seconds", "max"): 3,
        ("liftpy_log_flushes_on_loop",): 1,
        ("liftpy_log_flush_moves_total",): 51,
        ("liftpy_log_flushes_by_place_total", "loop"): 52,
        ("liftpy_log_flushes_by_place_total", "thread"): 53,
        ("liftpy_log_flushes_by_place_total", "tried out"): 54,
        ("liftpy_metadata_tick_lateness_seconds", "max"): 0.008,
        ("liftpy_metadata_late_ticks_total",): 55,
        ("liftpy_scrub_bytes_total",): 61,
        ("liftpy_scrub_findings_total",): 62,
        ("liftpy_scrub_last_full_pass_seconds",): 63,
        ("liftpy_open_files",): 71,
        ("liftpy_open_files_limit",): 72,
        ("liftpy_partition_budget",): 73,
        ("liftpy_open_maps",): 74,
        ("liftpy_metadata_held", "journal_bytes"): 81,
        ("liftpy_frames_refused_total", "checksum"): 82,
        ("liftpy_events_total", "elections"): 83,
        **{(f"liftpy_nats_{name}_total",): 10 + at for at, name in enumerate(TRAFFIC)},
    }
    assert {name: found.get(name) for name in expected} == expected
    assert [name for name in found if name[0] == "liftpy_events_total"] == [("liftpy_events_total", "elections")]


def a_link(name: str, number: int, *, connected: bool = True) -> Any:
    cuts, overflow = SimpleNamespace(lost_messages=4, unknown=5), SimpleNamespace(backlog_bytes=6)
    return SimpleNamespace(
        name=name,
        is_connected=connected,
        connected_url=None,
        max_payload=1 << 20,
        unsent_bytes=number,
        stats={what: number * 10 + at for at, what in enumerate(TRAFFIC)},
        errors=Counter({"slow": number}),
        waiting_bytes=1,
        most_waiting_bytes=2,
        bursts=3,
        cuts=cuts,
        overflow=overflow,
        left_out=7,
    )


def a_reporter(tmp_path: Path, links: list[Any], failed: dict[str, str] | None = None) -> Reporter:
    class Partitions(list[Any]):
        failed: dict[str, str]
        copy_pace: CopyPace
        derived: NodeDerived

    partitions = Partitions()
    partitions.failed, partitions.copy_pace, partitions.derived = failed or {}, CopyPace(), NodeDerived()
    group: Any = SimpleNamespace(
        leader="n1",
        image=SimpleNamespace(index=5, controllers=ControllerList(("n1", "n2"), "n3", "n2", 4)),
        is_controller=True,
        held={"journal_bytes": 9},
        counters={f"{REFUSED}checksum": 2},
        ticks=lambda: {"late": 1},
    )
    all_links: Any = SimpleNamespace(all=lambda: links, replication=links[0], ingest=links[-1])
    counters = {"elections": 1, f"{REFUSED}sender": 3}
    return Reporter(
        settings=NodeSettings("n1", tmp_path),
        incarnation=4,
        group=group,
        links=all_links,
        partitions=partitions,
        counters=counters,
    )  # type: ignore[arg-type]


def test_the_connections_are_added_up_and_told_apart(tmp_path: Path) -> None:
    links = [a_link("replication", 3), a_link("clients", 5, connected=False), a_link("ingest", 7)]
    report = a_reporter(tmp_path, links, {"s/0": "its disk is gone"}).report()
    assert report["controllers"] == {
        "voters": ["n1", "n2"], "learner": "n3", "leaving": "n2", "index": 4, "differ_from_settings": True,
    }  # fmt: skip
    nats = report["nats"]
    assert {name: nats[name] for name in TRAFFIC} == {name: 150 + 3 * at for at, name in enumerate(TRAFFIC)}
    assert (nats["connected"], nats["send_buffer_bytes"], nats["errors"]) == (False, 15, {"slow": 15})
    assert a_reporter(tmp_path, links[::2]).nats()["connected"]
    each = report["connections"]
    assert {name: row["send_buffer_bytes"] for name, row in each.items()} == {"replication": 3, "clients": 5, "ingest": 7}
    assert {name: row["in_bytes"] for name, row in each.items()} == {"replication": 32, "clients": 52, "ingest": 72}
    assert [name for name, row in each.items() if not row["connected"]] == ["clients"]
    assert each["clients"]["errors"] == {"slow": 5}
    lost = ("waiting_bytes", "most_waiting_bytes", "bursts", "lost_with_connections", "connections_with_unknown_loss")
    assert [each["ingest"][name] for name in (*lost, "server_holds_bytes", "left_out")] == [1, 2, 3, 4, 5, 6, 7]
    assert report["failed_partitions"] == {"s/0": "its disk is gone"}
    assert report["refused"] == {"sender": 3, "metadata: checksum": 2}
    assert report["counters"]["elections"] == 1
    facts = ("node", "incarnation", "metadata_leader", "metadata_index", "metadata_held", "ticks", "controller")
    assert [report[name] for name in facts] == ["n1", 4, "n1", 5, {"journal_bytes": 9}, {"late": 1}, True]


def test_a_page_runs_nothing_that_stands_in_a_name(tmp_path: Path) -> None:
    facts = ("node", "version", "incarnation", "uptime_s", "metadata_leader", "metadata_index")
    page = {**dict.fromkeys(facts, "<script>"), "partitions": [], "more": False}
    service = StatusDesk(NodeSettings("n1", tmp_path))
    service.reporter = SimpleNamespace(page=lambda after, count: page)  # type: ignore[assignment]
    answer = service._respond(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"&lt;script&gt;" in answer
    assert b"<script>" not in answer


# ---- defaults and checks ------------------------------------------------------------------------------------------------
def test_what_nobody_said_is_the_safe_side(tmp_path: Path) -> None:
    settings = NodeSettings("n1", tmp_path)
    assert not settings.bootstrap_majority, "a group that can't be reached is not taken for a new one"
    assert settings.elections
    assert settings.status_port < 0, "no port is open that nobody asked for"
    assert not settings.is_controller
    assert NodeSettings("n1", tmp_path, controllers=("n1",)).is_controller


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "a.*"},
        {"namespace": ""},
        {"nats": ("http://here",)},
        {"controllers": ("n1", "n1")},
        {"controllers": ("n 1",)},
        {"rack": "a b"},
        {"weight": -0.1},
        {"weight": 1000.1},
        {"scrub_bytes_per_s": -1},
        {"scrub_bytes_per_s": (1 << 34) + 1},
        {"status_port": -2},
        {"status_port": 65_536},
        {"log_level": "loud"},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        NodeSettings("n1", tmp_path, **wrong)


@pytest.mark.parametrize("wrong", [{"namespace": "a.>"}, {"nats": ("http://here",)}], ids=str)
def test_targets_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Target(**wrong)


# ---- tasks --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [True, False])
async def test_a_loops_own_handler_is_told_as_before_and_comes_back(given: bool) -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler((lambda _, context: told.append(context)) if given else None)
    take_back = fatal_on(loop, lambda _: None)
    context = {"message": "somebody else's"}
    loop.call_exception_handler(context)
    assert told == ([context] if given else [])
    take_back()
    assert (loop.get_exception_handler() is None) is not given


async def test_an_end_in_the_background_is_the_nodes_and_not_the_loops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    by_default: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "default_exception_handler", by_default.append)
    loop.set_exception_handler(None)
    failures: list[Exception] = []
    take_back = fatal_on(loop, failures.append)
    unexpected("the feed", ValueError("bad"))
    assert ([str(failure) for failure in failures], by_default) == (["the feed has ended unexpectedly: ValueError('bad')"], [])
    loop.call_exception_handler({"message": "somebody else's"})
    assert (len(failures), by_default) == (1, [{"message": "somebody else's"}])
    take_back()


async def test_what_runs_on_another_thread_is_over_when_its_end_has_been_awaited() -> None:
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    began, over = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            over.set()

    try:
        end = spawn_in(other, work(), "work")
        assert await asyncio.to_thread(began.wait, 10)
        await end()
        assert over.is_set()
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()
