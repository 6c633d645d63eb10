"""The control plane's tables, rules and bounds, each value of each driven: codecs, elections, feeds, sessions, windows, subjects."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from liftpy.cluster import codec, election
from liftpy.cluster import feed as feed_module
from liftpy.cluster.accusations import ANSWER_NS, Accusations, Said
from liftpy.cluster.batches import SENT_TOGETHER, decide_batch
from liftpy.cluster.deletion import may_go
from liftpy.cluster.doors import Door, refusal
from liftpy.cluster.draft import Draft, Rules, refuse
from liftpy.cluster.duties import MetadataDuties
from liftpy.cluster.election_timers import ElectionTimers
from liftpy.cluster.feed import FeedProducer
from liftpy.cluster.feed_subscription import FeedSubscription
from liftpy.cluster.image import ClusterImage, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.cluster.operations import MAX_STEP_NS, Operation, OperationWindow
from liftpy.cluster.pages import MAX_PAGE_BYTES, page_bytes
from liftpy.cluster.preferred import misplaced
from liftpy.cluster.records import CountersMoved, PartitionStateChanged, StreamCreated, record_from_pb, record_to_pb
from liftpy.cluster.replay import replay, replay_all
from liftpy.cluster.session import NodeSessions
from liftpy.cluster.snapshot import decode_snapshot, encode_snapshot
from liftpy.cluster.starts import MAX_EARLIER_NONCES, Descent, FolderStarts, descent
from liftpy.cluster.stream_config import config_from_pb, config_to_pb
from liftpy.cluster.subject_index import SubjectIndex
from liftpy.cluster.trail import Trail
from liftpy.cluster.wishes import Wishes
from liftpy.config import AckPolicy, Codec, CommitPolicy, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.errors import CorruptionError
from liftpy.ids import PartitionKey
from liftpy.partition import PartitionState, PartitionStatus
from liftpy.wire._pb import cluster_pb2 as pb
from tests.unit.cluster.cluster_driver import Driver

S = 1_000_000_000
KEY = PartitionKey("s", "u1", 0)


def a_partition(**more: Any) -> PartitionState:
    given: dict[str, Any] = {
        "partition": 0,
        "replicas": ("a", "b", "c"),
        "isr": ("a", "b", "c"),
        "leader": "a",
        "leader_epoch": 5,
        "epoch": 6,
        "status": PartitionStatus.ONLINE,
        "last_leader": "a",
        "leaderships": 2,
    }
    return PartitionState(**(given | more))


def a_stream(*partitions: PartitionState, **config: Any) -> StreamImage:
    return StreamImage("s", "u1", "shop", StreamConfig(**config), partitions or (a_partition(),), 7)


def an_image(stream: StreamImage | None = None, nodes: str = "abc", fenced: str = "") -> ClusterImage:
    made = ClusterImage(index=3, time_ns=9).with_streams((stream,) if stream else ())
    table = made.nodes
    for number, name in enumerate(nodes, 1):
        table = table.set(name, NodeImage(node_id=name, incarnation=number, fenced=name in fenced))
    return dataclasses.replace(made, nodes=table, counters=Counters(11, 12, 13, 14, 15))


# ---- codecs ------------------------------------------------------------------------------------------------------------------
def test_every_field_of_every_state_comes_back() -> None:
    node = NodeImage(
        node_id="n",
        incarnation=2,
        rack="r",
        weight=3.0,
        version="v",
        status_address="a",
        fenced=True,
        session_time_ns=4,
        previous_incarnation=5,
        folder_id="f",
        start=6,
        nonce=7,
        earlier_nonces=(8, 9),
        partition_budget=10,
    )
    state = a_partition(
        unclean_elected=True,
        passed_over=("b",),
        incomplete=("c",),
        deposed="b",
        complete=("c",),
        isr=("a", "b"),
        leaderships=11,
    )
    report = LeaderReport(
        witness="b",
        witness_incarnation=1,
        leader="a",
        leader_epoch=2,
        last_epoch=3,
        newest_offset=4,
        high_watermark=5,
        time_ns=6,
        stamp_ns=7,
        stamp_term=8,
    )
    operation = Operation(b"0123456789abcdef", 5, b"answer", 6)
    counters = Counters(1, 2, 3, 4, 5)
    codecs: tuple[tuple[Any, Any, Any], ...] = (
        (node, codec.node_to_pb, codec.node_from_pb),
        (state, codec.partition_to_pb, codec.partition_from_pb),
        (operation, codec.operation_to_pb, codec.operation_from_pb),
        (counters, codec.counters_to_pb, codec.counters_from_pb),
        (a_stream(state), codec.stream_to_pb, codec.stream_from_pb),
    )
    for value, there, back in codecs:
        assert back(there(value)) == value
        for field in dataclasses.fields(value):
            if field.name not in ("partition", "candidate", "status"):
                assert getattr(value, field.name), f"{field.name} has to be something, or it shows nothing"
    assert codec.report_from_pb(codec.report_to_pb("u1", 3, report)) == report
    image = an_image(a_stream(state))
    image = dataclasses.replace(
        image,
        reports=image.reports.set(("u1", 0), (report, dataclasses.replace(report, witness="c"))),
        operations=image.operations.with_operation(operation),
    )
    again = decode_snapshot(encode_snapshot(image))
    assert (again, again.reports["u1", 0]) == (image, image.reports["u1", 0])
    assert len(decode_snapshot(encode_snapshot(image, operations=False)).operations) == 0


CONFIGS = [
    StreamConfig(
        ack_policy=AckPolicy.LEADER,
        min_isr=3,
        flush=FlushPolicy.parse("interval:70"),
        commit_policy=CommitPolicy.QUORUM,
        segment_bytes=5000,
        segment_age_s=1.5,
        retention_age_s=2.5,
        retention_bytes=3,
        retention_records=4,
        compaction=True,
        delete_retention_s=5.5,
        codec=Codec.ZSTD,
        failover_standby=False,
        dedup_window_s=6.5,
    ),
    StreamConfig(delete_retention_s=0.0, dedup_window_s=0.0, segment_age_s=0.0),
    StreamConfig(),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_survives_the_way(config: StreamConfig) -> None:
    assert config_from_pb(config_to_pb(config)) == config
    assert config_from_pb(pb.StreamConfig()) == StreamConfig()


@pytest.mark.parametrize("position", [4, 6, 8, 15, 16, 23, 24, 30, -1])
def test_a_flip_anywhere_in_a_snapshot_is_found(position: int) -> None:
    data = bytearray(encode_snapshot(an_image(a_stream())))
    data[position] ^= 1
    with pytest.raises(Exception, match="snapshot"):
        decode_snapshot(bytes(data))
    with pytest.raises(CorruptionError):
        decode_snapshot(b"")


# ---- deletion, doors, drafts ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("response", "allowed"),
    [
        ({"error": pb.ControlResponse.NOT_FOUND}, True),
        ({"error": pb.ControlResponse.UNAVAILABLE}, None),
        ({"error": pb.ControlResponse.OUTCOME_UNKNOWN}, None),
        ({"error": pb.ControlResponse.INVALID}, None),
        ({}, None),
        ({"uid": "u2", "replicas": "bc"}, None),
        ({"uid": "u1", "replicas": "bc"}, True),
        ({"uid": "u1", "replicas": "ab"}, False),
        ({"uid": "u1", "replicas": "ab", "partition": 1}, None),
    ],
)
def test_data_may_go_when_the_controllers_say_so(response: dict[str, Any], allowed: bool | None) -> None:
    made = pb.ControlResponse(error=response.get("error", pb.ControlResponse.OK))
    if "uid" in response:
        made.stream.uid = response["uid"]
        made.stream.partitions.add(partition=response.get("partition", 0), replicas=list(response["replicas"]))
    assert may_go(made, KEY, "a") is allowed


def fence(node: str) -> pb.ControlRequest:
    return pb.ControlRequest(fenceNode=pb.FenceNode(nodeId=node))


@pytest.mark.parametrize("others", [0, 1, 2])
def test_each_request_of_a_batch_is_in_the_askers_own_name(others: int) -> None:
    requests = [pb.BatchedRequest(request=pb.ControlRequest(leaveIsr=pb.LeaveIsr(node="n1"))) for _ in range(3)]
    if others:
        requests[others].request.leaveIsr.node = "n2"
    assert bool(refusal(Door.NODE, "n1", pb.ControlRequest(batch=pb.Batch(requests=requests)))) is bool(others)


@pytest.mark.parametrize(
    ("door", "request_", "fits"),
    [
        (Door.NODE, fence("n1"), True),
        (Door.NODE, fence("n2"), False),
        (Door.ADMIN, fence("n1"), False),
        (Door.INFO, fence("n1"), False),
    ],
)
def test_a_node_asks_at_its_own_door(door: Door, request_: pb.ControlRequest, fits: bool) -> None:
    assert (refusal(door, "n1", request_) == "") is fits


def test_a_leadership_is_counted_when_it_begins() -> None:
    stream = a_stream()
    for change, counted in (
        ({"isr": ("a", "b")}, 2),
        ({"leader": "b", "leader_epoch": 8}, 3),
        ({"leader": ""}, 2),
        ({"leader_epoch": 9}, 3),
    ):
        draft = Draft(an_image(stream), 1, Rules())
        changed = draft.change(stream, dataclasses.replace(stream.partitions[0], **change))
        assert changed.leaderships == counted, change
        assert changed.last_leader == (change.get("leader") or "a")
        assert changed.epoch == 14
    assert len(refuse(pb.ControlResponse.INVALID, "x" * 10_000).response.detail) < 700


def test_a_batch_takes_what_may_be_in_one_and_gives_each_number_once() -> None:
    image = an_image(a_stream(a_partition(), a_partition(partition=1)))
    requests = [
        pb.BatchedRequest(
            number=n,
            request=pb.ControlRequest(leaveIsr=pb.LeaveIsr(stream="s", uid="u1", partition=n, node="b", incarnation=2)),
        )
        for n in range(2)
    ] + [pb.BatchedRequest(number=7, request=pb.ControlRequest(deleteStream=pb.DeleteStream(name="s")))]
    after, records, response, failures = decide_batch(image, pb.Batch(requests=requests), 5, Rules(elections=True))
    assert [(a.number, a.error) for a in response.batch.answers] == [(0, 0), (1, 0), (7, pb.ControlResponse.INVALID)]
    assert failures == 0
    assert "s" in after.streams
    assert replay_all(image, records) == after, "who follows the records gets the same"
    (moved,) = [record for record in records if isinstance(record, CountersMoved)]
    assert moved.counters.next_epoch == 14 + sum(isinstance(record, PartitionStateChanged) for record in records)


# ---- elections -----------------------------------------------------------------------------------------------------------------
def elect(partition: PartitionState, fenced: str = "", **config: Any) -> tuple[str, ...]:
    stream = a_stream(partition, **config)
    return election.eligible(Draft(an_image(stream, fenced=fenced), 1, Rules()), stream, partition)


@pytest.mark.parametrize(
    ("more", "fenced", "able"),
    [
        ({}, "", "abc"),
        ({"deposed": "a"}, "", "bc"),
        ({"passed_over": ("b",)}, "", "ac"),
        ({}, "c", "ab"),
        ({"isr": ("a", "b")}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "ab", "c"),
        ({"incomplete": ("b",)}, "", "ac"),
        ({"deposed": "a", "passed_over": ("b",)}, "c", ""),
    ],
)
def test_who_may_be_elected(more: dict[str, Any], fenced: str, able: str) -> None:
    assert elect(a_partition(**more), fenced) == tuple(able)


def chosen(
    reports: dict[str, tuple[int, int]], *, replicas: str = "abc", incarnations: dict[str, int] | None = None, **config: Any
) -> PartitionState:
    """Who is proposed when an election ends on ``reports`` (last epoch, newest offset)."""
    partition = a_partition(replicas=tuple(replicas), isr=tuple(replicas), leader="", status=PartitionStatus.ELECTION)
    stream = a_stream(partition, **config)
    image = an_image(stream, replicas)
    told = tuple(
        LeaderReport(
            witness=node,
            witness_incarnation=(incarnations or {}).get(node, replicas.index(node) + 1),
            leader="a",
            leader_epoch=5,
            last_epoch=epoch,
            newest_offset=offset,
            high_watermark=0,
            time_ns=0,
        )
        for node, (epoch, offset) in reports.items()
    )
    image = dataclasses.replace(image, reports=image.reports.set(("u1", 0), told))
    return election.conclude(Draft(image, 1, Rules()), stream, partition)


QUORUM: dict[str, Any] = {"commit_policy": CommitPolicy.QUORUM}


@pytest.mark.parametrize(
    ("reports", "leader"),
    [
        ({"b": (3, 9), "c": (3, 8)}, "b"),
        ({"b": (3, 9), "c": (4, 1)}, "c"),
        ({"a": (3, 7), "b": (3, 8), "c": (3, 8)}, "b"),
        ({"c": (1, 1)}, "a"),
    ],
)
def test_the_longest_log_of_the_latest_epoch_leads(reports: dict[str, tuple[int, int]], leader: str) -> None:
    assert chosen(reports, **QUORUM).candidate == leader


@pytest.mark.parametrize(
    ("replicas", "count", "decided"),
    [("abc", 1, False), ("abc", 2, True), ("abcd", 2, False), ("abcd", 3, True), ("abcde", 2, False)],
)
def test_a_quorum_has_to_be_heard(replicas: str, count: int, decided: bool) -> None:
    heard = dict.fromkeys(replicas[-count:], (3, 9))
    assert (chosen(heard, replicas=replicas, **QUORUM).candidate in heard) is decided


def test_a_report_of_the_process_before_is_none() -> None:
    assert chosen({"b": (9, 9), "c": (1, 1)}, incarnations={"b": 1}, **QUORUM).candidate == "a"


def test_an_unclean_leader_begins_alone() -> None:
    partition = a_partition(leader="", candidate="c", status=PartitionStatus.CANDIDATE_FOUND, incomplete=("c",), deposed="a")
    found = election.finish(a_stream(partition), partition)
    assert (found.isr, found.unclean_elected, found.incomplete) == (("c",), True, ())
    clean = dataclasses.replace(partition, incomplete=())
    found = election.finish(a_stream(clean), clean)
    assert (found.isr, found.unclean_elected, found.leader) == (("b", "c"), False, "c")


# ---- timers, duties, accusations -----------------------------------------------------------------------------------------------
def timers(status: PartitionStatus = PartitionStatus.CANDIDATE_FOUND) -> tuple[ElectionTimers, ReplicationConfig]:
    config = ReplicationConfig()
    found = status is PartitionStatus.CANDIDATE_FOUND
    partition = a_partition(leader="", candidate="b" if found else "", status=status, deposed="a")
    made = ElectionTimers(config)
    made.lead(an_image(a_stream(partition)), 0)
    return made, config


def test_a_candidate_that_gets_nowhere_is_passed_over() -> None:
    made, _ = timers()

    def progress(replayed: int, newest: int) -> bool:
        report = pb.ReportPromotion(
            stream="s", uid="u1", candidate="b", leaderEpoch=5, replayedEndOffset=replayed, newestOffset=newest
        )
        return made.progress(report, 1)

    assert [progress(*at) for at in ((0, 5), (0, 5), (3, 5), (3, 5), (3, 6), (2, 6))] == [True, False, True, False, True, False]


def test_patience_with_who_gets_on_elsewhere_has_an_end() -> None:
    made, config = timers()
    passed = []
    for tenth in range(3000):
        now_ns = tenth * S // 10
        made._got_on_ns["b"] = now_ns
        passed += [now_ns for proposal in made.due(now_ns) if isinstance(proposal, pb.PassOver)]
    assert passed
    assert passed[0] <= 16 * config.candidate_timeout_s * S


def test_only_replicas_are_waited_for() -> None:
    made, _ = timers(PartitionStatus.ELECTION)
    for witness in ("b", "x"):
        made.told(pb.ReportLeader(stream="s", uid="u1", witness=witness), 5)
    assert set(made._got_on_ns) == {"b"}


@pytest.mark.parametrize("count", [1, SENT_TOGETHER, SENT_TOGETHER + 1, 3 * SENT_TOGETHER])
def test_all_that_is_due_is_sent(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    duties = MetadataDuties(ReplicationConfig())
    messages = [pb.PassOver(stream="s", partition=n) for n in range(count)]
    monkeypatch.setattr(duties._timers, "due", lambda now_ns: messages)
    sent = duties.due(0)
    flat: list[Any] = []
    for request in sent:  # a last one alone is sent without a batch
        flat += [item.request for item in request.batch.requests] if request.HasField("batch") else [request]
    assert [request.passOver.partition for request in flat] == list(range(count))


def leading(now_ns: int = 0) -> MetadataDuties:
    duties = MetadataDuties(ReplicationConfig(), Rules())
    duties.lead(an_image(a_stream(), fenced="c"), now_ns, 4)
    return duties


def test_what_changes_nothing_is_told_on_a_majoritys_word_and_not_while_it_is_logged() -> None:
    image = an_image(a_stream(), fenced="c")
    request = pb.ControlRequest(operationId=bytes(16), deleteStream=pb.DeleteStream(name="none"))
    assert leading().answer(request, image, 100, 100) is not None
    assert leading().answer(request, image, S, 0) is None, "who knows who leads"
    duties = leading()
    duties.logged(bytes(16))
    assert duties.answer(request, image, 100, 100) is None
    duties.not_logged(bytes(16))
    assert duties.answer(request, image, 100, 100) is not None


def test_a_node_that_runs_is_not_removed_by_what_was_said_of_it() -> None:
    duties = leading()
    remove = pb.ControlRequest(operationId=bytes(16), removeNode=pb.RemoveNode(nodeId="c"))
    duties.answer(pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="c", incarnation=3)), duties._image, 10, 10)
    found = duties.answer(remove, duties._image, 20, 20)
    assert found is not None
    assert found.error == pb.ControlResponse.INVALID


@pytest.mark.parametrize(
    ("said", "proven", "closed"),
    [
        ({"a": Said.SERVES}, 0, True),
        ({"a": Said.DOES_NOT, "b": Said.DOES_NOT}, 1, True),
        ({"a": Said.ABSENT, "b": Said.SERVES}, 1, True),
        ({"b": Said.ABSENT}, 0, True),
        ({"a": Said.DOES_NOT}, 0, False),
        ({"b": Said.DOES_NOT}, 0, False),
    ],
)
def test_an_accusation_needs_a_witness_and_an_accused(said: dict[str, Said], proven: int, closed: bool) -> None:
    cases, image = Accusations(), an_image(a_stream(a_partition(isr=("a", "b"))))
    cases.lead(7)
    report = pb.ReportLeader(stream="s", uid="u1", witness="b", leader="a", leaderEpoch=5)
    assert cases.reported(report, image, 100)
    assert (report.stampNs, report.stampTerm) == (100, 7)
    questions = {question.node: question for question in cases.questions()}
    for node, word in said.items():
        cases.testified(dataclasses.replace(questions[node], leader_epoch=4), Said.SERVES)
        cases.testified(questions[node], word)
    assert len(cases.due(101)) == proven
    assert (not cases._cases) is closed
    late = len(cases.due(100 + ANSWER_NS))
    assert late == (1 if said == {"b": Said.DOES_NOT} else 0)


# ---- the feed ------------------------------------------------------------------------------------------------------------------
def created(number: int, partitions: int = 1) -> StreamCreated:
    made = tuple(a_partition(partition=n) for n in range(partitions))
    return StreamCreated(StreamImage(f"s{number}", f"u{number}", f"shop.{number}", StreamConfig(), made))


def test_a_feed_keeps_a_bound_of_entries_and_records_and_leads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_HELD_RECORDS", 10)
    producer = FeedProducer()
    for index in range(1, 30):
        producer.applied(index, (created(index), created(index + 100)))
        assert producer._held_records == sum(len(records) for _, _, records in producer._held) <= 10
    assert [entry.previousIndex for entry in producer.take()][:1] == [24]
    producer.snapshot_is_ready(29, b"image")
    producer.applied(30, ())
    assert 29 in producer._snapshots
    producer.applied(31, (created(1, 20_000),))  # more than an entry holds: a gap for everyone
    assert not producer._held
    assert producer._snapshots == {}, "nothing leads on from it any more"
    producer.lead()
    assert producer.take() == [], "who comes to lead does not say it all again"
    producer.fit(1000)
    assert producer.answer(pb.FeedSnapshotRequest(afterIndex=5)) is None


def entries(count: int) -> list[pb.FeedEntry]:
    producer = FeedProducer()
    found = []
    for index in range(1, count + 1):
        producer.applied(index, (created(index),))
        found += producer.take()
    return found


def subscribed() -> FeedSubscription:
    made = FeedSubscription("n9")
    data = encode_snapshot(dataclasses.replace(an_image(), index=0))
    del data
    made.synced = True
    return made


def test_a_feed_that_contradicts_itself_is_not_believed() -> None:
    made = subscribed()
    one, two, three = entries(3)
    assert made.entry_received(one)
    assert made.entry_received(two)
    made.entry_received(one)
    assert made.resync_count == 0, "the same again"
    forged = pb.FeedEntry()
    forged.CopyFrom(two)
    forged.records[0].streamCreated.subject = "other"
    made.entry_received(forged)
    assert made.resync_count == 1
    del three


def test_what_waits_for_a_gap_has_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, several = subscribed(), entries(12)
    size = max(entry.ByteSize() for entry in several)
    monkeypatch.setattr("liftpy.cluster.feed_subscription.MAX_WAITING_BYTES", 3 * size)
    for entry in several[1:]:
        made.entry_received(entry)
        assert sum(held.ByteSize() for held in made._waiting.values()) <= 3 * size
    assert made.entry_received(several[0])
    assert made.image.index >= 3


def test_snapshots_come_in_checked_chunks_and_never_go_back() -> None:
    producer = FeedProducer()
    image = dataclasses.replace(an_image(a_stream()), index=5)
    producer.applied(5, ())
    producer.fit(1024)
    producer.snapshot_is_ready(5, encode_snapshot(image))
    made, turns = FeedSubscription("n9"), 0
    while not made.synced:
        turns += 1
        request = made.request(turns * 10 * S)
        assert request is not None
        response = producer.answer(request)
        assert response is not None
        if turns % 2:
            spoilt = pb.FeedSnapshotResponse()
            spoilt.CopyFrom(response)
            spoilt.chunk = bytes([response.chunk[0] ^ 1]) + response.chunk[1:]
            made.response_received(spoilt)
        else:
            made.response_received(response)
        assert turns < 20
    assert made.image == image
    made.image = dataclasses.replace(image, index=9)
    made._take_snapshot(encode_snapshot(image))
    assert made.image.index == 9


# ---- windows, sessions, starts -------------------------------------------------------------------------------------------------
def test_a_window_of_operations_is_bounded_and_no_clock_empties_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.cluster.operations.MAX_SIZE_BYTES", 5000)
    window = OperationWindow()
    for number in range(40):
        window = window.with_operation(Operation(number.to_bytes(16, "big"), number, b"x" * 100))
        assert window.size_bytes == sum(len(o.response) + 400 for o in window) <= 5500
        assert window.get(number.to_bytes(16, "big")) is not None
    before = len(window)
    window = window.with_operation(Operation(b"y" * 16, 10**18, b""))
    assert len(window) >= before - 1, "a clock that leapt"
    assert next(reversed(list(window))).age_ns <= 40 + MAX_STEP_NS


@pytest.mark.parametrize(
    ("asked", "payload", "size"),
    [(0, 1 << 20, 128 << 10), (1 << 30, 1 << 21, MAX_PAGE_BYTES), (1 << 30, 100_000, 50_000), (1, 1 << 20, 512)],
)
def test_pages_fit_a_message(asked: int, payload: int, size: int) -> None:
    assert page_bytes(asked, payload) == size


def test_a_lease_is_shorter_than_a_session_and_ends_are_asked_for_now_and_then() -> None:
    config = ReplicationConfig()
    sessions = NodeSessions(config)
    sessions.lead(an_image(fenced="c"), 0)
    assert sessions.due(2 * S) == [], "everybody may be starting"
    lease = sessions.heartbeat("a", 1, 3 * S, 3 * S)
    assert (lease.granted, lease.duration_ns) == (True, round(config.lease_s * S))
    assert not sessions.heartbeat("a", 2, 3 * S, 3 * S).granted
    assert not sessions.heartbeat("a", 1, 3 * S, 0).granted, "no majority has confirmed"
    now = 3 * S + round(config.session_s * S)
    overdue = list(sessions.overdue(now + S))
    assert "a" in overdue
    assert "c" not in overdue, "a node that is fenced holds no session"
    found = [now + ms * S // 100 for ms in range(300) if sessions.due(now + ms * S // 100)]
    assert 2 <= len(found) <= 8, "again and again, but not with every tick"


def test_a_node_that_is_gone_keeps_its_lease() -> None:
    config = ReplicationConfig()
    sessions = NodeSessions(config)
    sessions.lead(an_image(), 0)
    sessions.heartbeat("a", 1, 10 * S, 10 * S)
    sessions.gone("a")
    lease_ns = round(config.lease_s * S)
    ended = [
        now
        for now in range(10 * S, 14 * S, S // 100)
        if any(isinstance(p, pb.FenceNode) and p.nodeId == "a" for p in sessions.due(now))
    ]
    assert 10 * S + lease_ns <= ended[0] <= 10 * S + 2 * lease_ns


def test_a_folder_remembers_the_process_that_registered_last() -> None:
    starts = FolderStarts("f").next(100).taken()
    for nonce in range(101, 101 + 3 * MAX_EARLIER_NONCES):
        starts = starts.next(nonce)
        assert len(starts.earlier) <= MAX_EARLIER_NONCES
        request = pb.RegisterNode()
        starts.tell(request)
        known = NodeImage(node_id="a", incarnation=1, folder_id="f", start=1, nonce=100)
        assert descent(known, request) is Descent.FOLLOWS, nonce


@pytest.mark.parametrize(
    ("request_", "how"),
    [
        ({"start": 6, "nonce": 60, "earlierNonces": [40, 50]}, Descent.FOLLOWS),
        ({"start": 5, "nonce": 50}, Descent.SAME),
        ({"start": 4, "nonce": 40}, Descent.OUTLIVED),
        ({"start": 4, "nonce": 41}, Descent.WENT_BACK),
        ({"start": 6, "nonce": 60, "earlierNonces": [40]}, Descent.WENT_BACK),
        ({"start": 5, "nonce": 51}, Descent.WENT_BACK),
        ({"start": 6, "nonce": 60, "earlierNonces": [50], "folderId": "g"}, Descent.WENT_BACK),
        ({"folderId": ""}, Descent.FOLLOWS),
    ],
)
def test_whose_process_it_is(request_: dict[str, Any], how: Descent) -> None:
    known = NodeImage(node_id="a", incarnation=3, folder_id="f", start=5, nonce=50, earlier_nonces=(30, 40))
    assert descent(known, pb.RegisterNode(**({"nodeId": "a", "folderId": "f"} | request_))) is how


# ---- subjects, trails, wishes, places ------------------------------------------------------------------------------------------
def listens(subject: str, partitions: int) -> set[tuple[str, ...]]:
    """Over an alphabet of tokens: all that a stream hears."""
    heard: set[tuple[str, ...]] = set()
    for own in [subject] + [f"{subject}.{n}" for n in range(1, partitions)]:
        pattern = own.split(".")
        for length in range(1, 5):
            for tokens in itertools.product(("a", "b", "1", "2"), repeat=length):
                fits = all(i < len(tokens) and (p in ("*", ">") or p == tokens[i]) for i, p in enumerate(pattern))
                if fits and (len(pattern) == length or (pattern[-1] == ">" and length >= len(pattern))):
                    heard.add(tokens)
    return heard


SUBJECTS = [
    ("a", 1),
    ("a", 3),
    ("a.1", 1),
    ("a.2", 1),
    ("a.*", 1),
    ("*.1", 1),
    ("a.>", 1),
    ("a.b", 3),
    ("a.b.1", 1),
    ("a.*.2", 1),
    ("b", 2),
    ("*.*", 2),
    (">", 1),
]


@pytest.mark.parametrize("one", SUBJECTS)
def test_two_streams_overlap_where_a_message_reaches_both(one: tuple[str, int]) -> None:
    index = SubjectIndex().with_stream("one", *one)
    for other in SUBJECTS:
        assert bool(index.overlapping(*other)) is bool(listens(*one) & listens(*other)), other
    assert index.without_stream("one", one[0]) == SubjectIndex()


def test_a_trail_is_of_one_image() -> None:
    trail = Trail()
    later = trail.step("x").step("y")
    assert later.since(trail) == {"x", "y"}
    assert later.since(Trail()) is None
    assert trail.since(later) is None


def test_wishes_are_all_sent_answered_and_bounded() -> None:
    wishes, told = Wishes(), list[Any]()
    for number in range(3 * SENT_TOGETHER):
        key = PartitionKey("s", "u", number)
        wishes.put(key, pb.ControlRequest(leaveIsr=pb.LeaveIsr(partition=number, reason="x" * 700)), told.append)
    wishes.put(PartitionKey("s", "u", 0), pb.ControlRequest(leaveIsr=pb.LeaveIsr(partition=0)), told.append)
    assert told.pop().error == pb.ControlResponse.STALE, "who was superseded is told"
    sent = []
    while (batch := wishes.take()) is not None:
        assert batch.ByteSize() <= 49 * 1024
        assert len(batch.batch.requests) <= SENT_TOGETHER
        sent += [item.request.leaveIsr.partition for item in batch.batch.requests]
        errors = (pb.ControlResponse.OK, pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.STALE)
        answers = [pb.BatchedAnswer(number=item.number, error=errors[item.number % 3]) for item in batch.batch.requests]
        told.clear()
        wishes.answered(pb.ControlResponse(batch=pb.BatchAnswers(answers=answers)))
        assert [given is None for given in told] == [n % 3 == 1 for n in range(len(told))]
    assert sorted(sent) == list(range(3 * SENT_TOGETHER))


@pytest.mark.parametrize(
    ("more", "fenced", "count"),
    [
        ({"leader": "b"}, "", 1),
        ({}, "", 0),
        ({"leader": "b"}, "a", 0),
        ({"leader": "b", "isr": ("b", "c")}, "", 0),
        ({"leader": "b", "incomplete": ("a",)}, "", 0),
    ],
)
def test_a_preferred_leader_is_there_and_has_all(more: dict[str, Any], fenced: str, count: int) -> None:
    assert len(misplaced(an_image(a_stream(a_partition(**more)), fenced=fenced))) == count


@pytest.mark.parametrize(
    ("uid", "number", "there"), [("u1", 0, True), ("", 0, True), ("u2", 0, False), ("u1", 1, False), ("u1", -1, False)]
)
def test_a_partition_is_found_by_its_stream_and_number(uid: str, number: int, there: bool) -> None:
    assert (an_image(a_stream()).find("s", uid, number) is not None) is there


def test_counts_follow_streams_and_records_come_back() -> None:
    image = an_image()
    after = replay(image, StreamCreated(a_stream()))
    assert dict(after.replica_counts) == {"a": 1, "b": 1, "c": 1}
    assert dict(after.without_stream("s").replica_counts) == {}
    record = PartitionStateChanged("s", "u1", a_partition())
    assert record_from_pb(record_to_pb(record)) == record


# ---- the state machine ---------------------------------------------------------------------------------------------------------
def test_an_entry_is_applied_once_and_a_retry_is_told_the_same() -> None:
    driver = Driver(("a", "b", "c"))
    request = pb.ControlRequest(
        operationId=b"o" * 16, timeNs=driver.now_ns, createStream=pb.CreateStream(name="s", subject="x")
    )
    first = driver.apply(request.SerializeToString())
    image = driver.fsm.image
    again = pb.ControlResponse.FromString(driver.fsm.apply(request.SerializeToString(), driver.index))
    assert again.error == pb.ControlResponse.INVALID
    assert driver.fsm.image == image
    retried = driver.apply(request.SerializeToString())
    assert (retried.error, retried.stream.uid) == (first.error, first.stream.uid)
    before = driver.fsm.image.time_ns
    driver.apply(pb.ControlRequest(operationId=b"p" * 16, barrier=pb.Barrier()).SerializeToString())
    assert driver.fsm.image.time_ns == before, "a request without a time"


@pytest.mark.parametrize("reporters", [1, 2, 3])
@pytest.mark.parametrize("apart_s", [0, 3, 5])
def test_a_leader_of_many_is_deposed_by_most_within_a_window(reporters: int, apart_s: int) -> None:
    driver = Driver(("a", "b", "c", "d", "e"), elections=True)
    driver.ask(createStream=pb.CreateStream(name="s", subject="x", replicationFactor=5))
    partition = driver.fsm.image.streams["s"].partitions[0]
    witnesses = [node for node in partition.replicas if node != partition.leader]
    for number, witness in enumerate(witnesses[:reporters]):
        driver.ask(
            reportLeader=pb.ReportLeader(
                stream="s",
                witness=witness,
                witnessIncarnation=driver.fsm.image.nodes[witness].incarnation,
                leader=partition.leader,
                leaderEpoch=partition.leader_epoch,
                stampNs=number * apart_s * S + 1,
                stampTerm=1,
            )
        )
    deposed = driver.fsm.image.streams["s"].partitions[0].status is not PartitionStatus.ONLINE
    together = min(reporters, 1 + (4 // apart_s if apart_s else reporters))
    assert deposed is (2 * together > 4)


def test_a_leader_of_two_is_not_deposed_by_one_report() -> None:
    driver = Driver(("a", "b"), elections=True)
    driver.ask(createStream=pb.CreateStream(name="s", subject="x", replicationFactor=2))
    partition = driver.fsm.image.streams["s"].partitions[0]
    (witness,) = [node for node in partition.replicas if node != partition.leader]
    incarnation = driver.fsm.image.nodes[witness].incarnation
    report = pb.ReportLeader(
        stream="s", witness=witness, witnessIncarnation=incarnation, leader=partition.leader, leaderEpoch=partition.leader_epoch
    )
    driver.ask(reportLeader=report)
    assert driver.fsm.image.streams["s"].partitions[0].leader == partition.leader


def test_names_of_the_protocol_are_no_streams() -> None:
    driver = Driver(("a",))
    for name in ("info", "control", "feed", "raft", "status"):
        assert driver.ask(createStream=pb.CreateStream(name=name, subject="x")).error == pb.ControlResponse.INVALID
    driver.ask(createStream=pb.CreateStream(name="s", subject="x"))
    assert driver.ask(deleteStream=pb.DeleteStream(name="s", uid="other")).error == pb.ControlResponse.NOT_FOUND
    assert driver.ask(removeNode=pb.RemoveNode(nodeId="a")).error == pb.ControlResponse.INVALID


def test_leaders_of_streams_made_one_after_another_are_spread() -> None:
    driver = Driver(("a", "b", "c"))
    for number in range(6):
        driver.ask(createStream=pb.CreateStream(name=f"s{number}", subject=f"x{number}", replicationFactor=1))
    leaders = [driver.fsm.image.streams[f"s{n}"].partitions[0].leader for n in range(6)]
    assert sorted(leaders) == list("aabbcc")


@pytest.mark.parametrize(
    ("previous", "clean", "always", "complete"),
    [(1, True, False, True), (1, False, True, True), (1, False, False, False), (0, True, True, False), (7, True, True, False)],
)
def test_who_comes_back_with_all_that_it_acknowledged(previous: int, clean: bool, always: bool, complete: bool) -> None:
    from liftpy.cluster.decisions.nodes import holds_all_it_acknowledged

    known = NodeImage(node_id="a", incarnation=1)
    if previous == 7:
        known = NodeImage(node_id="a", incarnation=9, previous_incarnation=5)
    request = pb.RegisterNode(nodeId="a", previousIncarnation=previous, cleanStop=clean, flushedAlways=always)
    assert holds_all_it_acknowledged(known, request) is complete
