"""Test what a follower buffers from the data subject, and what it does with the buffer as leader [A1-A4, A8]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.dedup_window import RecentIds, StoredId
from liftpy.core.publish.log_state_part import NewBatch
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.standby import (
    MESSAGE_BYTES,
    FailoverBacklog,
    NodeStandbyMemory,
    Standby,
    StandbyBuffer,
    StandbyReplayRules,
)
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.subjects import InboxRule
from liftpy.errors import LiftError
from tests.batches import build_batch

KEY = PartitionKey("s", "u1", 0)
MS, S = 1_000_000, 1_000_000_000


class FakeSubscription:
    def __init__(self, sink: Callable[..., None]) -> None:
        self.sink = sink
        self.behind: list[Callable[[], None]] = []
        self.closed = False
        self.soon_calls: list[Callable[[], None]] = []

    def when_settled(self, callback: Callable[[], None]) -> None:
        callback()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon_calls.append(callback)

    def call_after_read(self, callback: Callable[[], None]) -> None:
        self.behind.append(callback)

    def close(self) -> None:
        self.closed = True


class Bench:
    """A follower of "n2" at 1,000 s, with a real log."""

    def __init__(self, bound_bytes: int = 1 << 20, node_bytes: int = 1 << 20) -> None:
        self.now_ns = 1000 * S
        self.log = Log.open(MemoryStorage(), StreamConfig())[0]
        self.hearings: list[FakeSubscription] = []
        self.lost: list[int] = []
        self.live = {"n2": 5}
        self.replica = SimpleNamespace(
            is_standby=True, node_id="n1", longest_lease_ns=0, role=RoleName.FOLLOWER,
            live_incarnation=lambda node: self.live.get(node, 0),
            state=SimpleNamespace(status=PartitionStatus.ONLINE, leader="n2", leader_epoch=3, pauses=0),
        )  # fmt: skip
        self.ids = RecentIds(120 * S, 1 << 20, lambda: self.now_ns)
        self.partition: Any = SimpleNamespace(
            replica=self.replica, log=self.log, log_state=SimpleNamespace(ids=self.ids), now_ns=lambda: self.now_ns,
            publishes_dropped=lambda _, count: self.lost.append(count), mark_changed=lambda: None,
        )  # fmt: skip
        reader = MessageDecoder(KEY, "ev", AckPolicy.ALL, InboxRule(("_INBOX.",)))
        buffer = StandbyBuffer(NodeStandbyMemory(node_bytes), bound_bytes, 10 * S)
        rules = StandbyReplayRules(uncertainty_ns=1500 * MS)
        self.standby = Standby(self.partition, self, reader, buffer, rules, lambda: self.now_ns)
        self.standby.review()

    def subscribe(self, subject: str, sink: Callable[..., None], on_dropped: Callable[[int], None]) -> Any:
        assert subject == "ev"
        self.on_dropped = on_dropped
        self.hearings.append(FakeSubscription(sink))
        return self.hearings[-1]

    def heard(self, *payloads: bytes, reply: bytes = b"", headers: bytes = b"", after_ns: int = 0) -> None:
        """Together, in one read. ``reply`` b"_INBOX.c.": each has an inbox of its own below that."""
        self.now_ns += after_ns
        for number, payload in enumerate(payloads):
            inbox = b"%b%d" % (reply, self.now_ns + number) if reply else b""
            self.hearings[-1].sink(b"ev", inbox, payload, headers)
        behind, self.hearings[-1].behind = self.hearings[-1].behind, []
        for callback in behind:
            callback()

    def shows(self, *values: bytes, headers: Any = None, after_ns: int = 0) -> None:
        """A fetched batch is in the log."""
        self.now_ns += after_ns
        columns = {"headers": [headers] * len(values)} if headers else {}
        subjects = ["ev"] * len(values)
        self.log.append(build_batch(values, base_offset=self.log.log_end_offset, leader_epoch=1, subjects=subjects, **columns))
        self.standby.log_grew()

    def commits(self, high_watermark: int, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.log.raise_high_watermark(high_watermark)
        self.standby.committed(high_watermark)

    def begins_to_lead(self, *, gone: bool = True) -> list[FailoverBacklog | None]:
        """After a second, its leader's session having ended or not. What it takes over, once it has sorted it."""
        self.now_ns += S
        if gone:
            self.live.clear()
        self.replica.role = RoleName.LEADER
        self.standby.review()
        found: list[FailoverBacklog | None] = []
        self.standby.replay(found.append)
        return found

    def leads(self, *, gone: bool = True) -> FailoverBacklog:
        """And has sorted it."""
        found = self.begins_to_lead(gone=gone)
        self.go_on()
        (taken,) = found
        assert taken is not None
        return taken

    def go_on(self, slices: int = 1_000_000) -> None:
        """So many slices more of its sorting, or all."""
        while (calls := self.hearings[-1].soon_calls) and slices:
            calls.pop()()
            slices -= 1


def values(taken: FailoverBacklog) -> list[bytes]:
    return [message[2] for message in taken.fresh]


def test_standby_takeover_appends_missing_messages_in_arrival_order() -> None:
    bench = Bench()
    bench.heard(b"a", b"b", reply=b"_INBOX.c.")
    bench.shows(b"a", after_ns=MS)
    bench.heard(b"c", after_ns=MS)
    taken = bench.leads()
    assert values(taken) == [b"b", b"c"]
    assert [(stored, publishers.replies) for stored, publishers in taken.known] == [
        (StoredId(0, 0), [b"_INBOX.c.1000000000000"])
    ]
    assert taken.subscription is bench.hearings[0]
    assert not bench.hearings[0].closed, "it goes on with it"
    counters = bench.standby.counters
    assert (counters.appended, counters.recognised, counters.answered) == (2, 1, 1)
    assert bench.standby.buffer.size_bytes == bench.standby.buffer.node.size_bytes == 0


def test_standby_takeover_acks_records_committed_in_the_last_lease_of_a_dead_leader() -> None:
    for gone, answered in ((True, [1, 2]), (False, [2])):
        bench = Bench()
        for number in range(3):
            bench.heard(b"%d" % number, reply=b"_INBOX.c%d." % number, after_ns=2 * S)
            bench.shows(b"%d" % number, after_ns=MS)
            if number < 2:
                bench.commits(number, after_ns=MS)
        taken = bench.leads(gone=gone)
        assert [stored.offset for stored, _ in taken.known] == answered
        assert values(taken) == []


@pytest.mark.parametrize(("lease_s", "answered"), [(0, [1, 2]), (3, [0, 1, 2]), (1, [1, 2])])
def test_standby_takeover_acks_records_committed_within_the_longest_lease_of_the_cluster(
    lease_s: int, answered: list[int]
) -> None:
    bench = Bench()
    bench.replica.longest_lease_ns = lease_s * S
    bench.standby.review()
    for number in range(3):
        bench.heard(b"%d" % number, reply=b"_INBOX.c%d." % number, after_ns=2 * S)
        bench.shows(b"%d" % number, after_ns=MS)
        if number < 2:
            bench.commits(number, after_ns=MS)
    assert [stored.offset for stored, _ in bench.leads(gone=True).known] == answered


def test_standby_with_a_longer_lease_remembers_commit_times_longer() -> None:
    bench = Bench()
    before = bench.standby._high_watermarks.reach_ns
    bench.replica.longest_lease_ns = 60 * S
    bench.standby.review()
    assert bench.standby._high_watermarks.reach_ns == bench.standby._log_ends.reach_ns == before - 1500 * MS + 60 * S


def test_standby_takeover_treats_a_restarted_leader_as_dead() -> None:
    bench = Bench()
    bench.heard(b"a", reply=b"_INBOX.c.")
    bench.shows(b"a", after_ns=MS)
    bench.commits(0, after_ns=MS)
    bench.live["n2"] = 6
    assert len(bench.leads(gone=False).known) == 1


def test_standby_takeover_sends_no_acks_for_publishes_without_reply() -> None:
    bench = Bench()
    bench.heard(b"a")
    bench.shows(b"a", after_ns=MS)
    taken = bench.leads()
    assert (taken.known, taken.fresh, bench.standby.counters.recognised) == ([], [], 1)


def test_standby_message_equal_to_a_record_logged_long_before_is_appended() -> None:
    """The log had this message before the standby buffered it."""
    bench = Bench()
    bench.shows(b"on")
    bench.heard(b"on", after_ns=300 * MS)
    assert values(bench.leads()) == [b"on"]


def test_standby_message_received_shortly_after_its_log_record_is_not_appended() -> None:
    bench = Bench()
    bench.shows(b"on")
    bench.heard(b"on", after_ns=200 * MS)
    assert values(bench.leads()) == []
    assert bench.standby.counters.ambiguous == 0


def test_standby_with_more_equal_messages_than_log_records_appends_only_the_excess() -> None:
    bench = Bench()
    bench.shows(b"on")
    bench.heard(b"on", b"on", b"on", after_ns=MS)
    bench.shows(b"on", b"on", after_ns=MS)
    taken = bench.leads()
    assert values(taken) == [b"on"]
    assert bench.standby.counters.ambiguous == 2


def test_standby_message_with_another_key_header_or_subject_than_the_record_is_appended() -> None:
    bench = Bench()
    bench.heard(b"a", headers=b"NATS/1.0\r\nk: 1\r\n\r\n")
    bench.heard(b"a", headers=b"NATS/1.0\r\nk: 2\r\n\r\n", after_ns=MS)
    bench.shows(b"a", headers=(("k", b"2"),), after_ns=MS)
    taken = bench.leads()
    assert [message[3] for message in taken.fresh] == [b"NATS/1.0\r\nk: 1\r\n\r\n"]


def test_standby_message_older_than_a_logged_one_of_its_publisher_is_not_appended() -> None:
    bench = Bench()
    bench.heard(b"lost of c", reply=b"_INBOX.c.")
    bench.heard(b"lost of d", reply=b"_INBOX.d.")
    bench.heard(b"of c", reply=b"_INBOX.c.", after_ns=MS)
    bench.shows(b"of c", after_ns=MS)
    assert values(bench.leads()) == [b"lost of d"]
    assert bench.standby.counters.passed_over == 1


@pytest.mark.parametrize(("after_ms", "taken"), [(99, [b"plain"]), (100, [])])
def test_standby_messages_without_reply_are_ordered_by_arrival_time(after_ms: int, taken: list[bytes]) -> None:
    bench = Bench()
    bench.heard(b"plain")
    bench.heard(b"later", after_ns=after_ms * MS)
    bench.shows(b"later", after_ns=MS)
    assert values(bench.leads()) == taken


@pytest.mark.parametrize(("after_ms", "taken"), [(100, [b"plain"]), (101, [])])
def test_standby_message_much_older_than_an_unmatched_log_record_is_not_appended(after_ms: int, taken: list[bytes]) -> None:
    bench = Bench()
    bench.heard(b"plain")
    bench.shows(b"never heard", after_ns=after_ms * MS)
    assert values(bench.leads()) == taken


def test_standby_messages_after_a_record_that_the_leader_logged_late_are_appended() -> None:
    """The backlog of the leader comes before them in the log, however late."""
    bench = Bench()
    bench.heard(b"first")
    bench.heard(b"second", after_ns=MS)
    bench.shows(b"first", after_ns=5 * S)
    assert values(bench.leads()) == [b"second"]


def test_standby_takeover_never_appends_a_conditional_message() -> None:
    bench = Bench()
    bench.heard(b"a", reply=b"_INBOX.c.", headers=b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n")
    taken = bench.leads()
    assert (taken.fresh, [message[2] for message in taken.undecided], bench.standby.counters.undecided) == ([], [b"a"], 1)


def test_standby_message_with_a_stored_message_id_is_passed_on_to_deduplication() -> None:
    bench = Bench()
    bench.ids.begin(0)
    bench.heard(b"again", reply=b"_INBOX.c.", headers=b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n")
    bench.heard(b"later", reply=b"_INBOX.c.", after_ns=MS)
    bench.shows(b"later", after_ns=MS)
    bench.ids.add_batch(NewBatch(0, 0, bench.now_ns, 1, {0: b"x"}))
    assert values(bench.leads()) == [b"again"]


def test_standby_takeover_passes_an_invalid_message_to_ingest_with_the_messages_around_it() -> None:
    bench = Bench()
    bench.heard(b"good", reply=b"_INBOX.c.")
    bench.hearings[0].sink(b"ev", b"_INBOX.d.1", b"ttl", b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n")
    bench.heard(b"fine", reply=b"_INBOX.e.")
    bench.shows(b"good", after_ns=MS)
    taken = bench.leads()
    assert values(taken) == [b"ttl", b"fine"]
    assert len(taken.known) == 1


def test_standby_batch_publish_is_matched_as_a_single_message() -> None:
    head = client_pb2.BatchPublish(stream="s", correlationId="7", ackInbox="_INBOX.c.1")
    batch = build_batch([b"x", b"y"])
    bench = Bench()
    payload = frames.batch_publish(head, batch)
    bench.heard(payload)
    bench.heard(payload, after_ns=MS)
    bench.shows(b"x", b"y", after_ns=MS)
    taken = bench.leads()
    assert values(taken) == [payload], "equal ones are counted"
    ((stored, publishers),) = taken.known
    assert (stored, publishers.replies, publishers.batch_records) == (StoredId(0, 1), [b"_INBOX.c.1"], 2)


def test_standby_message_deleted_by_retention_is_not_appended_again() -> None:
    bench = Bench()
    bench.heard(b"a")
    bench.shows(b"a", after_ns=MS)
    bench.commits(0, after_ns=MS)
    bench.heard(b"b", after_ns=S)
    bench.log.drop_prefix(1)
    assert values(bench.leads()) == [b"a", b"b"], "it may be another one that came in the same moment: rather twice than never"
    bench = Bench()
    bench.heard(b"a")
    bench.shows(b"a", after_ns=101 * MS)
    bench.commits(0, after_ns=MS)
    bench.heard(b"b", after_ns=S)
    bench.log.drop_prefix(1)
    assert values(bench.leads()) == [b"b"]


def test_standby_treats_records_deleted_by_retention_as_old_as_the_last_deleted() -> None:
    bench = Bench()
    bench.heard(b"a")
    bench.shows(b"a", after_ns=MS)
    bench.commits(0, after_ns=MS)
    bench.heard(b"waits in its backlog", b"new", after_ns=MS)
    bench.shows(b"waits in its backlog", after_ns=200 * MS)
    bench.log.drop_prefix(1)
    assert values(bench.leads()) == [b"a", b"new"]


def test_standby_takeover_acks_records_that_were_committed_after_its_own_election() -> None:
    for gone in (False, True):
        bench = Bench()
        bench.heard(b"a", reply=b"_INBOX.c.")
        bench.shows(b"a", after_ns=MS)
        bench.now_ns += 2 * S
        bench.replica.role = RoleName.LEADER
        bench.commits(0)
        assert [stored for stored, _ in bench.leads(gone=gone).known] == [StoredId(0, 0)]


# ---- in slices ---------------------------------------------------------------------------------------------------------------
def long_heard(count: int = 100) -> Bench:
    """Each second one of them is in the log; everything else on the node has a turn after each piece."""
    bench = Bench()
    bench.standby.rules = replace(bench.standby.rules, slice_ns=0, step_messages=10)
    bench.heard(*(b"%d" % number for number in range(count)))
    bench.shows(*(b"%d" % number for number in range(0, count, 2)), after_ns=MS)
    return bench


def test_standby_messages_received_during_takeover_matching_are_appended_last() -> None:
    bench = long_heard()
    found = bench.begins_to_lead()
    for number in range(1000, 1010):
        bench.go_on(2)
        assert found == []
        bench.heard(b"%d" % number, after_ns=S)
    bench.go_on()
    (taken,) = found
    assert taken is not None
    assert values(taken) == [b"%d" % number for number in (*range(1, 100, 2), *range(1000, 1010))]
    assert (bench.standby.counters.recognised, bench.standby.counters.appended) == (50, 50)
    assert bench.standby.buffer.size_bytes == bench.standby.buffer.node.size_bytes == 0


def test_standby_takeover_matching_yields_after_its_time_slice() -> None:
    bench = long_heard()
    bench.standby.rules = replace(bench.standby.rules, slice_ns=5 * MS)

    def now_ns() -> int:
        bench.now_ns += MS
        return bench.now_ns

    bench.standby.now_ns = now_ns
    found, slices = bench.begins_to_lead(), 1
    while not found:
        bench.go_on(1)
        slices += 1
    assert 5 < slices < 20, "some 40 pieces and 5 in a slice"


def test_standby_demoted_during_takeover_matching_still_has_its_buffered_messages() -> None:
    bench = long_heard()
    held = bench.standby.buffer.size_bytes
    found = bench.begins_to_lead()
    bench.go_on(7)
    assert bench.standby.buffer.size_bytes == 0, "there is room for what comes meanwhile"
    bench.heard(b"later")
    bench.standby.cancel()
    bench.go_on()
    assert found == []
    assert bench.standby.buffer.size_bytes == bench.standby.buffer.node.size_bytes == held + MESSAGE_BYTES + len(b"later")
    assert values(bench.leads()) == [*(b"%d" % number for number in range(1, 100, 2)), b"later"]


def test_standby_messages_discarded_during_takeover_matching_are_not_appended() -> None:
    bench = long_heard()
    found = bench.begins_to_lead()
    bench.go_on(7)
    bench.log.config = replace(bench.log.config, read_only=True)
    bench.standby.review()
    bench.heard(b"later")
    bench.go_on()
    (taken,) = found
    assert taken is not None
    assert (values(taken), taken.known) == ([b"later"], [])
    assert bench.standby.counters.appended == 0


def test_standby_that_unsubscribes_during_takeover_matching_appends_nothing() -> None:
    bench = long_heard()
    found = bench.begins_to_lead()
    bench.go_on(7)
    bench.replica.is_standby = False
    bench.standby.review()
    bench.go_on()
    assert found == [None]


def test_standby_takeover_with_an_unreadable_log_reports_it_and_appends_nothing() -> None:
    bench, told = long_heard(), list[LiftError]()
    bench.partition.standby_unreadable = told.append
    found = bench.begins_to_lead()
    bench.log.close()
    bench.go_on()
    assert found == [None]
    assert len(told) == 1
    assert bench.hearings[0].closed


# ---- while it follows --------------------------------------------------------------------------------------------------------
def test_standby_subscribes_only_while_its_replica_may_lead_next() -> None:
    bench = Bench()
    bench.heard(b"a")
    bench.replica.is_standby = False
    bench.standby.review()
    assert bench.hearings[0].closed
    assert bench.standby.report()["held_bytes"] == 0
    bench.replica.role = RoleName.LEADER
    assert bench.begins_to_lead() == [None]
    bench.replica.role = RoleName.FOLLOWER
    bench.replica.is_standby = True
    bench.standby.review()
    assert len(bench.hearings) == 2
    bench.hearings[-1].sink(b"ev", b"", b"not read yet", b"")
    bench.replica.is_standby = False
    bench.standby.review()
    bench.replica.is_standby = True
    bench.standby.review()
    bench.heard(b"b")
    assert len(bench.standby.buffer.blocks) == 1, "that of before is not in its way"
    assert values(bench.leads()) == [b"b"]


def test_standby_of_a_node_that_already_leads_has_no_backlog_to_append() -> None:
    bench = Bench()
    bench.leads()
    bench.standby.review()
    assert (len(bench.hearings), bench.begins_to_lead()) == (1, [None])


def test_standby_messages_whose_records_were_truncated_are_appended() -> None:
    bench = Bench()
    bench.heard(b"a", b"b")
    bench.shows(b"a", after_ns=MS)
    bench.shows(b"b", after_ns=MS)
    bench.log.truncate_to(1)
    bench.standby.log_was_truncated()
    assert values(bench.leads()) == [b"b"]


@pytest.mark.parametrize("changed", [{"read_only": True}, {"max_message_bytes": 9}, {"optimistic_concurrency": True}])
def test_standby_buffer_after_a_settings_change_discards_earlier_messages(changed: dict[str, Any]) -> None:
    bench = Bench()
    bench.heard(b"1")
    bench.log.config = replace(bench.log.config, retention_age_s=5.0)
    bench.standby.review()
    bench.heard(b"2")
    assert len(bench.standby.buffer.blocks) == 2, "retention refuses nobody"
    bench.log.config = replace(bench.log.config, **changed)
    bench.hearings[-1].sink(b"ev", b"", b"of a read that is not over", b"")
    bench.standby.review()
    assert not bench.standby.buffer.blocks
    bench.heard(b"3")
    bench.standby.review()
    assert values(bench.leads()) == [b"3"]


def test_standby_message_sent_during_a_settings_change_is_neither_stored_nor_rejected() -> None:
    bench = Bench()
    bench.log.config = replace(bench.log.config, read_only=True)
    bench.standby.review()
    bench.log.config = replace(bench.log.config, read_only=False)
    bench.standby.review()
    bench.heard(b"rejected as read-only", reply=b"_INBOX.a.")
    bench.heard(b"plain")
    bench.heard(b"a lease later", reply=b"_INBOX.b.", after_ns=1500 * MS)
    taken = bench.leads()
    assert values(taken) == [b"plain", b"a lease later"]
    assert [message[2] for message in taken.undecided] == [b"rejected as read-only"]


def test_standby_that_missed_a_pause_of_the_stream_discards_earlier_messages() -> None:
    bench = Bench()
    bench.heard(b"1")
    bench.standby.review()
    assert bench.standby.buffer.blocks
    bench.replica.state.pauses = 1  # it is over already: this node was told of both together
    bench.standby.review()
    bench.heard(b"2")
    bench.standby.review()
    assert values(bench.leads()) == [b"2"]


def test_standby_buffer_drops_messages_older_than_nine_seconds() -> None:
    bench = Bench()
    bench.heard(b"a")
    bench.heard(b"b", after_ns=9 * S + 1)
    assert values(bench.leads()) == [b"b"]


SIZE = MESSAGE_BYTES + 10


def test_standby_full_buffer_while_the_log_advances_drops_the_oldest_messages() -> None:
    bench = Bench(bound_bytes=2 * SIZE)
    for number in range(4):
        bench.heard(b"%010d" % number, after_ns=2 * MS)
        bench.shows(b"other %d" % number, after_ns=2 * MS)
    assert [message[2] for block in bench.standby.buffer.blocks for message in block.messages] == [b"0000000002", b"0000000003"]
    assert (bench.standby.report()["displaced_count"], bench.lost) == (2, [])
    assert bench.standby.buffer.size_bytes == 2 * SIZE


def test_standby_full_buffer_while_the_log_stalls_drops_and_reports_the_newest_messages() -> None:
    bench = Bench(bound_bytes=2 * SIZE)
    for number in range(5):
        bench.heard(b"%010d" % number, after_ns=2 * MS)
    assert values(bench.leads()) == [b"0000000000", b"0000000001"]
    assert (bench.lost, bench.standby.report()["lost"]) == ([1, 1, 1], 3)


def test_standby_buffers_of_all_partitions_of_a_node_share_one_size_limit() -> None:
    bench = Bench(node_bytes=3 * SIZE)
    bench.standby.buffer.node.size_bytes = 2 * SIZE
    bench.heard(b"%010d" % 0, after_ns=MS)
    bench.heard(b"%010d" % 1, after_ns=MS)
    assert bench.lost == [1]
    assert bench.standby.buffer.node.size_bytes == 3 * SIZE


def test_standby_messages_dropped_by_its_connection_are_reported_as_lost() -> None:
    bench = Bench()
    bench.on_dropped(7)
    assert (bench.lost, bench.standby.report()["lost"]) == ([7], 7)


def test_standby_matches_messages_with_records_of_compressed_batches() -> None:
    bench = Bench()
    bench.heard(b"a" * 200)
    bench.now_ns += MS
    bench.log.append(build_batch([b"a" * 200], base_offset=0, leader_epoch=1, subjects=["ev"], codec=Codec.LZ4))
    bench.standby.log_grew()
    assert values(bench.leads()) == []


def test_standby_producer_batches_are_passed_on_to_the_sequence_check() -> None:
    head = client_pb2.BatchPublish(stream="s", correlationId="7", ackInbox="_INBOX.c.1")
    numbered = frames.batch_publish(head, build_batch([b"x"], producer_id=7, producer_epoch=1))
    asked = frames.batch_publish(client_pb2.BatchPublish(ackInbox="_INBOX.c.2", askedProducer=7, producerInstance=9), b"")
    bench = Bench()
    bench.heard(numbered, asked)
    bench.heard(b"later", after_ns=S)
    bench.shows(b"x", b"later", after_ns=MS)
    assert values(bench.leads()) == [numbered, asked]
