"""Test how settings are divided between worker processes, and how their answers are merged."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.instruments import Histogram
from liftpy.core.base.worker_assignment import share_of
from liftpy.core.observe.node_health import HealthInput
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.worker_frames import FrameKind
from liftpy.errors import ConfigError, CorruptionError, LiftError, StorageError
from liftpy.nats.credentials import Credentials
from sidecar.runtime.restarts import is_temporary, prevents_restart
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import TaskSet
from sidecar.status.figures import MOST_ENDED, Figures
from sidecar.status.merged_status import (
    NodeStatus,
    WorkerStatus,
    add_figures,
    figures_to_json,
    joined_page,
    joined_rows,
)
from sidecar.status.metric_names import FIRST, HISTOGRAM, LARGEST, OLDEST, SMALLEST, SUM, TABLE
from sidecar.workers.workers import (
    DIVIDED_LIMITS,
    WorkerCombinedFetches,
    WorkerError,
    Workers,
    divided_settings,
    failure_of,
    settings_from_json,
    settings_to_json,
    split_by_process,
)
from tests.until import until


# ---- settings ----------------------------------------------------------------------------------------------------------------
def test_worker_process_settings_divide_node_limits_and_copy_other_settings() -> None:
    whole = NodeSettings("n1", Path("/d"), workers=4, memory_limit_bytes=1 << 30, scrub_bytes_per_s=1000)
    own = divided_settings(whole)
    for name in DIVIDED_LIMITS:
        assert getattr(own.replication, name) == getattr(whole.replication, name) // 4, name
    assert (own.memory_limit_bytes, own.scrub_bytes_per_s) == (1 << 28, 250)
    fields = vars(ReplicationConfig)["__dataclass_fields__"]
    changed = {name for name in fields if getattr(own.replication, name) != getattr(whole.replication, name)}
    assert changed == set(DIVIDED_LIMITS)
    single = NodeSettings("n1", Path("/d"))
    assert divided_settings(single) is single


def test_worker_process_settings_are_never_divided_below_their_minimums() -> None:
    replication = ReplicationConfig(
        ingest_buffer_bytes=8192, node_unreplicated_bytes=512, node_dedup_state_bytes=512, node_standby_bytes=512,
        copy_bytes_per_s=0, copy_min_bytes_per_s=1,
    )  # fmt: skip
    own = divided_settings(
        NodeSettings(
            "n1", Path("/d"), workers=64, memory_limit_bytes=LEAST_LIMIT_BYTES, scrub_bytes_per_s=0, replication=replication
        )
    )
    assert own.replication == replication
    assert (own.memory_limit_bytes, own.scrub_bytes_per_s) == (LEAST_LIMIT_BYTES, 0)


def test_worker_process_settings_decoded_from_json_are_equal(tmp_path: Path) -> None:
    settings = NodeSettings(
        "n1", tmp_path, nats=("nats://a:1", "nats://b:2"), controllers=("n1", "n2"), workers=2, metrics_streams=("a-*",),
        credentials=Credentials(user="u", password="p"), replication=ReplicationConfig(lease_s=1.5), local_file_reads=True,
    )  # fmt: skip
    assert settings_from_json(json.loads(json.dumps(settings_to_json(settings)))) == settings
    with pytest.raises(ConfigError):
        settings_from_json({})


# ---- joining --------------------------------------------------------------------------------------------------------------------
def test_metrics_gauges_declare_how_values_of_worker_processes_are_merged() -> None:
    """A new gauge needs a rule: a sum of ages would be wrong."""
    assert {row.rule for row in TABLE.values()} == {SUM, FIRST, LARGEST, SMALLEST, OLDEST}
    assert {row.rule for row in TABLE.values() if row.kind == HISTOGRAM} == {SUM, FIRST}
    once = [name for name in TABLE if name.startswith(("metadata_", "cluster_", "disk_", "feature_", "failover_"))]
    assert {TABLE[name].rule for name in once} == {FIRST}
    ages = [name for name in TABLE if name.endswith(("_seconds", "_age")) and TABLE[name].kind == "gauge"]
    assert {TABLE[name].rule for name in ages} <= {LARGEST, OLDEST}


def _figures(count: float) -> Figures:
    found = Figures()
    for name in ("ingest_records_total", "cluster_streams", "replica_lag_seconds", "nats_connected", "scrub_age_seconds"):
        found.put(name, count)
    found.put("partitions", count, "leader")
    for name in ("commit_duration_seconds", "failover_duration_seconds"):
        found.histograms[name] = {(): Histogram()}
        found.histograms[name][()].observe(0.001, int(count))
    return found


def test_worker_process_metrics_are_merged_by_the_rule_of_each_metric() -> None:
    found, held = _figures(3), _figures(3).histograms["commit_duration_seconds"][()]
    found.histograms["commit_duration_seconds"][()] = held
    add_figures(found, json.loads(json.dumps(figures_to_json(_figures(5)))))
    assert found.pids == [os.getpid()] * 2
    numbers = {name: sum(row.values()) for name, row in found.numbers.items()}
    assert numbers == {
        "ingest_records_total": 8, "cluster_streams": 3, "replica_lag_seconds": 5, "nats_connected": 3, "scrub_age_seconds": 5,
        "partitions": 8,
    }  # fmt: skip
    assert [sum(found.histograms[name][()].counts) for name in found.histograms] == [8, 3]
    assert sum(held.counts) == 3, "the process's own goes on by itself"
    larger = _figures(5)
    add_figures(larger, figures_to_json(_figures(3)))
    assert (sum(larger.numbers["replica_lag_seconds"].values()), sum(larger.numbers["nats_connected"].values())) == (5, 3)
    never = _figures(3)
    add_figures(never, figures_to_json(_figures(-1)))
    assert never.numbers["scrub_age_seconds"] == {(): -1}
    add_figures(found, {})
    assert sum(found.numbers["partitions"].values()) == 8


def _page(worker: int, *rows: tuple[str, int]) -> dict[str, Any]:
    traffic = {"connected": True, "max_payload_bytes": 100, "in_msgs": 1, "errors": {"late": 1}}
    return {
        "node": "n1", "partitions": [{"stream": stream, "partition": number} for stream, number in rows], "more": False,
        "process": {"pid": worker}, "counters": {"both": 1, f"own{worker}": 1}, "refused": {}, "coordinators": [{"partition": worker}],
        "failed_partitions": {f"s/{worker}": "why"}, "connections": {"reads": {}}, "flush_times": {"p50_ms": worker},
        "copies": {"copied_bytes": 2}, "flush_place": {"on_loop": True, "moves": 1}, "descriptors": {"open": 5, "partition_budget": 9},
        "scrub": {"findings": 1, "position": 7}, "derived": {"size_bytes": 3, "held": {"ids": 3}, "refused": {}}, "nats": traffic,
    }  # fmt: skip


def test_worker_process_status_pages_are_merged_in_order_and_limited() -> None:
    own, other = _page(0, ("a", 0), ("a", 2), ("b", 1)), _page(1, ("a", 1), ("a", 3))
    page = joined_page(own, [(1, {**other, "answers": True}), (2, {"answers": False})], ("a", 0), 3)
    assert [(row["stream"], row["partition"]) for row in page["partitions"]] == [("a", 1), ("a", 2), ("a", 3)]
    assert page["more"], "b/1 is left"
    assert page["workers"] == [
        {"worker": 0, "answers": True, "pid": 0}, {"worker": 1, "answers": True, "pid": 1}, {"worker": 2, "answers": False},
    ]  # fmt: skip
    assert page["counters"] == {"both": 2, "own0": 1, "own1": 1}
    assert (page["descriptors"], page["scrub"]) == ({"open": 10, "partition_budget": 9}, {"findings": 2, "position": 7})
    assert page["nats"] == {"connected": True, "max_payload_bytes": 100, "in_msgs": 2, "errors": {"late": 2}}
    assert (page["flush_times"], page["flush_place"]) == ({"p50_ms": 1}, {"on_loop": True, "moves": 2})
    assert set(page["failed_partitions"]) == {"s/0", "s/1"}
    assert set(page["connections"]) == {"reads", "reads.1"}


def test_worker_process_status_pages_merge_to_the_worst_state_of_all_workers() -> None:
    own, other = _page(0, ("a", 0)), _page(1, ("a", 1))
    for page in (own, other):
        page["copies"]["is_slow"] = True
    assert joined_page(own, [(1, other)], ("", -1), 9)["copies"] == {"copied_bytes": 4, "is_slow": True}
    other["nats"] = {**other["nats"], "connected": False}
    joined = joined_page(own, [(1, {**other, "more": True})], ("", -1), 9)
    assert (joined["nats"]["connected"], joined["more"]) == (False, True)


def test_partition_rows_of_worker_processes_are_merged_with_the_most_urgent_first() -> None:
    def told(*rows: tuple[int, int], more: bool = False) -> dict[str, Any]:
        listed = [{"urgency": rank, "stream": "s", "partition": number} for rank, number in rows]
        return {"rows": listed, "more": more, "count": len(rows) + 10, "problems": 1}

    found = joined_rows(told((1, 4), (5, 0)), [told((0, 3), (5, 1))], 3)
    assert [(row["urgency"], row["partition"]) for row in found["rows"]] == [(0, 3), (1, 4), (5, 0)]
    assert (found["more"], found["count"], found["problems"]) == (True, 24, 2)
    assert not joined_rows(told((1, 4)), [told((0, 3))], 3)["more"]
    assert joined_rows(told((1, 4)), [told((0, 3), more=True)], 3)["more"]


# ---- combined fetches ---------------------------------------------------------------------------------------------------------
class Talk:
    """The part of the first process. Fetches of the partitions in ``lost`` are not counted."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.answered = lost, list[tuple[bytes, list[int]]]()

    def decode_question(self, reply: bytes, body: Any) -> pb.QuietFetches:
        return pb.QuietFetches.FromString(bytes(body))

    def over(self, question: pb.QuietFetches) -> list[int]:
        return [place for place, fetch in enumerate(question.fetches) if fetch.partition in self.lost]

    def answer(self, reply: bytes, question: pb.QuietFetches, over: list[int]) -> None:
        self.answered.append((reply, over))


def fetches(count: int) -> pb.QuietFetches:
    question = pb.QuietFetches(replicaID="n2", incarnation=1, question=5)
    for number in range(count):
        question.fetches.add(stream="orders", partition=number)
    return question


def worker_that(answer: Callable[[pb.QuietFetches], pb.QuietFetchesAnswer | bytes | None]) -> Any:
    """Return the handle of a worker that gives this answer."""

    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> bytes | None:
        told = answer(pb.QuietFetches.FromString(body))
        return told if told is None or isinstance(told, bytes) else told.SerializeToString()

    return SimpleNamespace(ask=ask)


LOST = (2, 3, 7)


def count_fetches(question: pb.QuietFetches) -> pb.QuietFetchesAnswer:
    return pb.QuietFetchesAnswer(over=Talk(*LOST).over(question), count=len(question.fetches))


def answer_invalid_index(question: pb.QuietFetches) -> pb.QuietFetchesAnswer:
    return pb.QuietFetchesAnswer(over=[*count_fetches(question).over, 99], count=len(question.fetches))


@pytest.mark.parametrize(
    ("answer", "is_counted"),
    [
        (count_fetches, True),
        (answer_invalid_index, True),
        (lambda question: None, False),
        (lambda question: b"\xff", False),
        (lambda question: pb.QuietFetchesAnswer(count=1), False),
    ],
    ids=["right", "invalid index", "no answer", "no message", "of another request"],
)
async def test_idle_partition_fetches_are_divided_between_worker_processes_and_answered_once(
    answer: Callable[[pb.QuietFetches], Any], is_counted: bool
) -> None:
    """The fetches of a worker without a right answer count as lost."""
    question, talk = fetches(9), Talk(*LOST)
    parts = split_by_process(question, 3)
    assert {share: [share_of("orders", place, 3) for place in places] for share, places in parts.items()} == {
        share: [share] * 3 for share in range(3)
    }
    shared: Any = WorkerCombinedFetches(talk, [worker_that(count_fetches), worker_that(answer)], TaskSet())  # type: ignore[arg-type]
    shared.answer_question(b"reply", question.SerializeToString())
    await until(lambda: talk.answered)
    assert talk.answered == [(b"reply", sorted({*LOST} | (set() if is_counted else set(parts[2]))))]


async def test_idle_partition_fetches_above_a_bound_of_waiting_requests_are_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sidecar.workers.workers.MAX_WAITING_FETCHES", 2)
    gate = asyncio.Event()

    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> None:
        await gate.wait()

    talk, frame = Talk(), fetches(4).SerializeToString()
    shared: Any = WorkerCombinedFetches(talk, [SimpleNamespace(ask=ask)], TaskSet())  # type: ignore[arg-type, list-item]
    for number in range(4):
        shared.answer_question(b"%d" % number, frame)
    gate.set()
    await until(lambda: len(talk.answered) == 2 and not shared._waiting)
    shared.answer_question(b"4", frame)
    await until(lambda: len(talk.answered) == 3)
    assert [reply for reply, _ in talk.answered] == [b"0", b"1", b"4"]


async def test_workers_stop_ends_combined_fetches_and_starts_no_others() -> None:
    asked: list[FrameKind] = []

    async def ask(kind: FrameKind, body: bytes, timeout_s: float) -> None:
        asked.append(kind)
        await asyncio.Event().wait()

    async def stop(timeout_s: float, longest_s: float) -> bool:
        return True

    workers = Workers(NodeSettings("n1", Path("/d")), pytest.fail, pytest.fail)
    workers.handles = [SimpleNamespace(ask=ask, stop=stop)]  # type: ignore[list-item]
    talk, frame = Talk(), memoryview(fetches(4).SerializeToString())
    answer = workers.answer_combined_fetches(talk)  # type: ignore[arg-type]
    answer(b"1", frame)
    await until(lambda: asked)
    assert await workers.stop(20)
    answer(b"2", frame)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (len(asked), talk.answered) == (1, [])


# ---- the node ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "kind"),
    [(StorageError("full"), "temporary"), (CorruptionError("damaged"), "never"), (LiftError("a bug"), "a restart may help")],
)
def test_worker_process_failure_has_the_restart_policy_of_its_error(error: LiftError, kind: str) -> None:
    body = json.dumps(
        {"text": str(error), "is_temporary": is_temporary(error), "prevents_restart": prevents_restart(error)}
    ).encode()
    made = failure_of(2, body)
    assert (is_temporary(made), prevents_restart(made)) == (kind == "temporary", kind == "never")
    assert "worker 2" in str(made)
    assert isinstance(made, WorkerError) == (kind == "a restart may help")


def test_worker_process_health_is_merged_into_the_health_of_the_node() -> None:
    workers = Workers(NodeSettings("n1", Path("/d"), workers=3), lambda error: None, lambda reason: None)
    own = HealthInput(nats=True, opened=True, registered=True, longest_flush_s=1.0, opening=1, stopped_for_space=1)
    starting = workers.merged_health_input(own)
    assert (starting.nats, starting.opened) == (False, False), "who has said nothing yet is not ready"
    assert workers.unsynced == "worker 1: it starts"
    well = {"longest_flush_s": 4.0, "nats": True, "opening": 2, "opened": True, "stopped_for_space": 3, "unsynced": ""}
    workers.handles[0].health_report, workers.handles[1].health_report = well, {**well, "unsynced": "1 of 2"}
    joined = workers.merged_health_input(own)
    assert (joined.longest_flush_s, joined.opening, joined.stopped_for_space) == (4.0, 5, 7)
    assert (joined.nats, joined.opened, joined.registered) == (True, True, True)
    assert workers.unsynced == "worker 2: 1 of 2"
    workers.handles[0].health_report = {**well, "nats": False}
    assert not workers.merged_health_input(own).nats


def test_node_with_a_single_process_has_no_worker_processes() -> None:
    own = HealthInput(nats=True)
    workers = Workers(NodeSettings("n1", Path("/d")), lambda error: None, lambda reason: None)
    assert (workers.handles, workers.merged_health_input(own), workers.unsynced) == ([], own, "")
    with pytest.raises(ConfigError, match=r"outside 1\.\.64"):
        NodeSettings("n1", Path("/d"), workers=65)
    with pytest.raises(ConfigError, match="workers"):
        NodeSettings("n1", Path("/d"), workers=0)


class Reporter:
    """Status of the partitions of one process."""

    def __init__(self, *rows: tuple[str, int]) -> None:
        self._rows = [{"stream": stream, "partition": partition} for stream, partition in rows]
        self.partitions = type("Partitions", (list,), {"led_partitions": lambda _: []})(rows)

    def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        behind = [row for row in self._rows if (row["stream"], row["partition"]) > after]
        return {"partitions": behind[:count], "more": len(behind) > count}

    def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        return [row for row in self._rows if row["stream"] == stream][:count]


def a_node(own: Reporter, *workers: Reporter, silent: int = 0) -> NodeStatus:
    """Return the status of a node. The last ``silent`` workers do not answer."""

    def handle(part: WorkerStatus, answers: bool) -> Any:
        async def request_status(asked: dict[str, Any]) -> dict[str, Any]:
            return {**await part.answer(asked), "answers": True} if answers else {"answers": False}

        return SimpleNamespace(request_status=request_status)

    parts = [WorkerStatus(one, None) for one in workers]  # type: ignore[arg-type]
    return NodeStatus(own, [handle(part, number < len(parts) - silent) for number, part in enumerate(parts)])  # type: ignore[arg-type]


async def test_status_of_one_stream_contains_the_partitions_of_all_processes_in_order() -> None:
    node = a_node(Reporter(("s", 2), ("t", 0)), Reporter(("s", 1), ("s", 4)), Reporter(("s", 0), ("u", 3)))
    assert [row["partition"] for row in await node.of_stream("s", 9)] == [0, 1, 2, 4]
    assert [row["partition"] for row in await node.of_stream("s", 2)] == [0, 1]


async def test_status_of_one_stream_without_the_answer_of_a_process_has_the_other_partitions() -> None:
    node = a_node(Reporter(("s", 2)), Reporter(("s", 1)), Reporter(("s", 0)), silent=1)
    assert [row["partition"] for row in await node.of_stream("s", 9)] == [1, 2]


async def test_status_page_of_a_worker_process_begins_after_the_requested_partition_and_names_the_process() -> None:
    worker = WorkerStatus(Reporter(("s", 0), ("s", 1), ("s", 2)), None)  # type: ignore[arg-type]
    page = await worker.answer({"what": "page", "after": ["s", 0], "count": 1})
    assert ([row["partition"] for row in page["partitions"]], page["more"]) == ([1], True)
    assert (page["process"]["partitions"], page["process"]["leads"]) == (3, 0)


def test_ended_services_of_all_processes_are_in_the_status_up_to_a_limit() -> None:
    found, told = Figures(), Figures()
    found.ended_services, told.ended_services = ["a"], [f"b{number}" for number in range(MOST_ENDED)]
    add_figures(found, figures_to_json(told))
    assert found.ended_services == ["a", *told.ended_services[: MOST_ENDED - 1]]
