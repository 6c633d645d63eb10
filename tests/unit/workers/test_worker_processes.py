"""Test worker processes without processes: their limits, frames and merged reports."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.instruments import Histogram
from liftpy.core.base.worker_assignment import WorkerShare, share_of
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.observe.node_health import HealthInput
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire._pb import cluster_pb2 as cluster
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from liftpy.errors import ConfigError, CorruptionError, LiftError, ProtocolError, StorageError
from liftpy.nats.credentials import Credentials
from sidecar.node.worker_node import EXIT_NODE_ENDED, Channel, RelayedGroup
from sidecar.runtime.restarts import momentary, prevents_restart
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import TaskSet
from sidecar.status.figures import Figures
from sidecar.status.merged_status import AGES, LEAST, MOST, OWN, add_figures, figures_to_json, joined_page, joined_rows
from sidecar.status.metric_names import TABLE
from sidecar.workers import workers as handles
from sidecar.workers.workers import (
    DIVIDED_LIMITS,
    WorkerCombinedFetches,
    WorkerError,
    WorkerHandle,
    Workers,
    divided_settings,
    failure_of,
    settings_from_json,
    settings_to_json,
    split_by_process,
)


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
    named = OWN | MOST | LEAST | AGES
    assert named <= set(TABLE)
    once = {name for name in TABLE if name.startswith(("metadata_", "cluster_", "disk_", "feature_", "failover_"))}
    assert once <= OWN
    ages = {name for name in TABLE if name.endswith(("_seconds", "_age")) and TABLE[name].kind == "gauge"}
    assert ages <= MOST | AGES


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


# ---- quiet fetches ------------------------------------------------------------------------------------------------------------
class _Talk:
    """Stand in for ``QuietTalk``. Fetches in ``lost`` are not counted."""

    def __init__(self, lost: set[int]) -> None:
        self.lost, self.answered = lost, list[list[int]]()

    def decode_question(self, reply: bytes, body: Any) -> pb.QuietFetches:
        return pb.QuietFetches.FromString(bytes(body))

    def over(self, question: pb.QuietFetches) -> list[int]:
        return [place for place, fetch in enumerate(question.fetches) if fetch.partition in self.lost]

    def answer(self, reply: bytes, question: pb.QuietFetches, over: list[int]) -> None:
        self.answered.append(over)


class _Hand:
    """Stand in for a WorkerHandle in this process."""

    def __init__(self, talk: _Talk | None) -> None:
        self._talk = talk

    async def ask(self, kind: FrameKind, body: bytes, timeout_s: float) -> bytes | None:
        if self._talk is None:
            return None
        question = pb.QuietFetches.FromString(body)
        return pb.QuietFetchesAnswer(over=self._talk.over(question), count=len(question.fetches)).SerializeToString()


@pytest.mark.parametrize("silent", [False, True])
async def test_idle_partition_fetches_are_divided_between_worker_processes_and_answered_once(silent: bool) -> None:
    question = pb.QuietFetches(replicaID="n2", incarnation=1, question=5)
    for number in range(9):
        question.fetches.add(stream="orders", partition=number)
    parts = split_by_process(question, 3)
    assert {share: [share_of("orders", place, 3) for place in places] for share, places in parts.items()} == {
        share: [share] * 3 for share in range(3)
    }
    lost = {2, 3, 7}
    talk = _Talk(lost)
    shared: Any = WorkerCombinedFetches(talk, [_Hand(_Talk(lost)), _Hand(None if silent else _Talk(lost))], TaskSet())  # type: ignore[arg-type, list-item]
    shared.answer_question(b"reply", question.SerializeToString())
    async with asyncio.timeout(30):
        while not talk.answered:
            await asyncio.sleep(0)
    assert talk.answered == [sorted(lost | (set(parts[2]) if silent else set()))], "who is silent has counted nothing"


# ---- the worker's end ---------------------------------------------------------------------------------------------------------
class _Ended(BaseException):
    pass


def _leave(code: int) -> None:
    raise _Ended(code)


def test_worker_channel_answers_pings_while_the_event_loop_runs_and_ends_with_the_node() -> None:
    ours, theirs = socket.socketpair()
    left, on_loop = threading.Event(), list[tuple[Callable[[Frame], None], Frame]]()
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    channel = Channel(theirs, leave)
    ours.sendall(encode(FrameKind.SETUP, 0, b"{}") + encode(FrameKind.HEARD, 3))
    assert channel.setup() == b"{}"
    heard: list[Frame] = []
    channel.start(30.0, lambda call, frame: on_loop.append((call, frame)), heard.append)
    reader = FrameReader()

    def said(count: int) -> list[FrameKind]:
        found: list[FrameKind] = []
        while len(found) < count:
            found += [frame.kind for frame in reader.feed(ours.recv(1000))]
        return found

    assert said(1) == [FrameKind.HELLO]
    ours.sendall(encode(FrameKind.PING))
    assert said(1) == [FrameKind.PONG]
    for call, frame in on_loop:
        call(frame)
    assert heard == [Frame(FrameKind.HEARD, 3, b"")]
    channel._session_s = 0.0  # the loop has not turned for a session
    ours.sendall(encode(FrameKind.PING) + encode(FrameKind.PING))
    channel.send(FrameKind.SETTLED)
    assert said(1) == [FrameKind.SETTLED], "and no pong: the node must not take it for well"
    ours.close()
    assert left.wait(30)
    assert codes[0] == EXIT_NODE_ENDED, "whatever its loop does"


def test_worker_channel_ends_on_invalid_frames_and_an_unread_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"x" * 100)
    with pytest.raises(_Ended, match=str(EXIT_NODE_ENDED)):
        Channel(theirs, _leave).setup()
    monkeypatch.setattr("sidecar.node.worker_node.MOST_UNSENT_BYTES", 1000)
    channel = Channel(theirs, _leave)
    for _ in range(8):
        channel.send(FrameKind.SIGNS, 0, bytes(100))
    with pytest.raises(_Ended):
        channel.send(FrameKind.SIGNS, 0, bytes(300))
    for one in (ours, theirs):
        one.close()


async def test_worker_process_metadata_applies_only_consecutive_feed_entries() -> None:
    said: list[tuple[FrameKind, int, bytes]] = []
    group = RelayedGroup(lambda kind, token, body: said.append((kind, token, body)))
    shown: list[int] = []
    group.watch(lambda old, new: shown.append(new.index))
    group.apply_entry(cluster.FeedEntry(previousIndex=0, index=4).SerializeToString())
    for wrong in (3, 5):
        with pytest.raises(ProtocolError):
            group.apply_entry(cluster.FeedEntry(previousIndex=wrong, index=9).SerializeToString())
    assert (shown, group.image.index) == ([4], 4)
    asking = asyncio.ensure_future(group.propose(cluster.ControlRequest(barrier=cluster.Barrier()), 2.5))
    await asyncio.sleep(0)
    ((kind, token, body),) = said
    assert (kind, body[:4]) == (FrameKind.PROPOSE, (2500).to_bytes(4, "big"))
    group.process_answer(token + 1, b"")
    group.process_answer(token, cluster.ControlResponse(index=8).SerializeToString())
    assert (await asking).index == 8
    assert not group.decides, "data is deleted only when a controller says so"


# ---- the node's end -----------------------------------------------------------------------------------------------------------
class _Node:
    """Stand in for ``Workers``."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    def fatal(self, error: Exception) -> None:
        self.failures.append(error)


class _Channel:
    def __init__(self) -> None:
        self.said: list[Frame] = []
        self.waiting = 0

    def write(self, data: bytes) -> None:
        self.said += FrameReader().feed(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.waiting


class _Process:
    pid, killed = 7, 0

    def kill(self) -> None:
        self.killed += 1


def _hand(max_unanswered_pings: int = 3) -> tuple[WorkerHandle, _Node, Any, _Process]:
    node, channel, process = _Node(), _Channel(), _Process()
    hand = WorkerHandle(WorkerShare(1, 2), node, max_unanswered_pings)  # type: ignore[arg-type]
    hand._process = process  # type: ignore[assignment]
    hand.connection_made(channel)  # type: ignore[arg-type]
    return hand, node, channel, process


def test_worker_process_that_answers_no_pings_is_killed_and_ends_the_node() -> None:
    hand, node, channel, process = _hand()
    for _ in range(10):
        hand.beat()
    assert channel.said == [], "one that starts can't answer yet"
    hand.data_received(encode(FrameKind.HELLO))
    for _ in range(3):
        for _ in range(3):
            hand.beat()
        hand.data_received(encode(FrameKind.PONG))
    assert (len(channel.said), node.failures) == (9, [])
    for _ in range(4):
        hand.beat()
    (failure,) = node.failures
    assert ") is blocked" in str(failure)
    assert process.killed == 1, "it must not speak for the node when it goes on"
    hand.beat()
    hand.connection_lost(None)
    assert len(node.failures) == 1


def test_worker_process_that_exits_or_sends_invalid_frames_ends_the_node() -> None:
    hand, node, _, process = _hand()
    hand.connection_lost(None)
    assert [str(error) for error in node.failures] == [
        "Worker 1 (process 7) ended unexpectedly. The node stops with exit code 1."
    ]
    for wrong in (b"x" * 50, encode(FrameKind.STOP), encode(FrameKind.SIGNS, 0, b"no JSON")):
        hand, node, _, process = _hand()
        hand.data_received(wrong)
        assert (len(node.failures), process.killed) == (1, 1), wrong


def test_worker_process_that_does_not_read_its_channel_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, node, channel, process = _hand()
    channel.waiting = handles.MOST_UNSENT_BYTES
    hand.send(FrameKind.HEARD, 1)
    assert not node.failures
    channel.waiting += 1
    hand.send(FrameKind.HEARD, 1)
    assert (len(node.failures), process.killed) == (1, 1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(StorageError("full"), "momentary"), (CorruptionError("damaged"), "never"), (LiftError("a bug"), "a restart may help")],
)
def test_worker_process_failure_has_the_restart_policy_of_its_error(error: LiftError, kind: str) -> None:
    body = json.dumps({"text": str(error), "momentary": momentary(error), "prevents_restart": prevents_restart(error)}).encode()
    made = failure_of(2, body)
    assert (momentary(made), prevents_restart(made)) == (kind == "momentary", kind == "never")
    assert "worker 2" in str(made)
    assert isinstance(made, WorkerError) == (kind == "a restart may help")


# ---- all of them ----------------------------------------------------------------------------------------------------------------
class _Group:
    def __init__(self) -> None:
        self.image = ClusterImage(index=3)
        self.watchers: list[Any] = []

    def watch(self, watcher: Any) -> None:
        self.watchers.append(watcher)


def test_worker_process_receives_a_lease_after_the_image_of_the_lease() -> None:
    """A slow worker receives lost leaderships before the extended lease."""
    workers = Workers(NodeSettings("n1", Path("/d"), workers=2), lambda error: None, lambda reason: None)
    (hand,) = workers.handles
    channel = _Channel()
    hand.connection_made(channel)  # type: ignore[arg-type]
    workers.heartbeat_answered(1, 7)
    assert channel.said == [], "before it knows of anything there are no leases"
    group: Any = _Group()
    workers.begin(9, group)
    (watcher,) = group.watchers
    watcher(group.image, ClusterImage(index=5))
    workers.heartbeat_answered(2, 7)
    watcher(None, ClusterImage(index=4))
    said = [(frame.kind, frame.token) for frame in channel.said]
    assert said == [
        (FrameKind.IMAGE, 0),
        (FrameKind.BEGIN, 9),
        (FrameKind.ENTRY, 0),
        (FrameKind.HEARD, 2),
        (FrameKind.IMAGE, 0),
    ]
    entry = cluster.FeedEntry.FromString(channel.said[2].body)
    assert (entry.previousIndex, entry.index) == (3, 5)


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


def test_worker_processes_receive_their_share_of_changed_settings() -> None:
    settings = NodeSettings("n1", Path("/d"), workers=3)
    workers = Workers(settings, lambda error: None, lambda reason: None)
    channels = [_Channel(), _Channel()]
    for handle, channel in zip(workers.handles, channels, strict=True):
        handle.connection_made(channel)  # type: ignore[arg-type]
    changed = replace(settings, log_level="debug", dashboard_hostnames=("a",))
    workers.change_settings(changed)
    for channel in channels:
        (frame,) = channel.said
        assert frame.kind is FrameKind.SETTINGS
        assert settings_from_json(json.loads(frame.body)) == changed
