"""Test reads at a replica: up to which offset, long polls, and which replica answers for the latest offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.partition import reads as module
from liftpy.core.partition.reads import MAX_WAIT_MS, Chunks, Reads, ReplicaSource
from liftpy.core.replication.log_offsets import EpochVerdict, OffsetCheck
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import build_batch, split_batches
from liftpy.core.wire.chunking import Assembly
from tests.unit.replication.stepping import KEY, S, Stepped, state

OK, NOT_READY = client_pb2.ReadResponse.OK, client_pb2.ReadResponse.NOT_READY
UNCOMMITTED = client_pb2.ReadRequest.UNCOMMITTED


class Source:
    """A leader that has committed all but the last record."""

    compacted, leader_epoch, leader, leads, may_serve = False, 1, "a", True, True

    def __init__(self) -> None:
        self.log, _ = Log.open(MemoryStorage(), StreamConfig())
        self.high_watermark = -1
        self.knows_latest = True
        self.lineage = EpochVerdict(OffsetCheck.SAME)

    def append(self, count: int = 1, committed: bool = True) -> None:
        for _ in range(count):
            self.log.append(build_batch([b"x"], base_offset=self.log.log_end_offset, leader_epoch=1, timestamp_ns=1))
        if committed:
            self.high_watermark = self.log.newest_offset

    def may_answer_latest(self, now_ns: int) -> bool:
        return self.knows_latest

    def judge_reader(self, last_offset: int, last_epoch: int, now_ns: int) -> EpochVerdict:
        return self.lineage


class Shell:
    max_payload, has_room = 1 << 20, True

    def __init__(self, source: Source | ReplicaSource) -> None:
        self.source = source
        self.time_ns = self.next_timer = 0
        self.timers: dict[int, tuple[int, Callable[[], None]]] = {}
        self.answers: list[tuple[str, client_pb2.ReadResponse, list[int]]] = []
        self.counters: Counter[str] = Counter()
        self.reads = Reads[str](KEY, "a", source, self, self.counters)

    def now_ns(self) -> int:
        return self.time_ns

    def has_room_for(self, _: str) -> bool:
        return self.has_room

    def answer(self, asker: str, chunks: Chunks) -> None:
        head, body = frames.decode_read_response(b"".join(chunks))
        self.answers.append((asker, head, [batch.base_offset for batch in split_batches(body)]))

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        number = self.next_timer = self.next_timer + 1
        self.timers[number] = (at_ns, callback)

        def cancel() -> None:
            self.timers.pop(number, None)

        return cancel

    def pass_time(self, seconds: float) -> None:
        self.time_ns += round(seconds * S)
        for number, (at_ns, callback) in list(self.timers.items()):
            if at_ns <= self.time_ns:
                del self.timers[number]
                callback()

    def ask(self, asker: str = "r", **fields: object) -> None:
        self.reads.answer_request(frames.encode(client_pb2.ReadRequest(**fields)), asker)  # type: ignore[arg-type]

    def take(self) -> tuple[str, client_pb2.ReadResponse, list[int]]:
        (answer,) = self.answers
        self.answers.clear()
        return answer


@pytest.fixture
def source() -> Source:
    source = Source()
    source.append(3)
    return source


@pytest.fixture
def shell(source: Source) -> Shell:
    return Shell(source)


def test_long_poll_read_is_answered_once_at_the_commit(shell: Shell, source: Source) -> None:
    shell.ask("committed", offset=3, waitMs=1000)
    shell.ask("uncommitted", offset=3, waitMs=1000, isolation=UNCOMMITTED)
    assert (shell.answers, shell.reads.waiting_count) == ([], 2)
    source.append(committed=False)
    shell.reads.advanced()
    assert shell.take()[::2] == ("uncommitted", [3])
    source.append()
    shell.reads.advanced()
    assert shell.take()[::2] == ("committed", [3, 4])
    assert not shell.timers
    assert shell.reads.waiting_count == 0


def test_long_poll_read_timeout_is_capped_at_the_maximum(shell: Shell) -> None:
    shell.ask(offset=3, waitMs=1 << 31)
    shell.pass_time(MAX_WAIT_MS / 1000 + 0.01)
    assert shell.take()[1].error == OK


def test_long_poll_read_whose_reader_diverges_while_it_waits_gets_the_truncation_offset(shell: Shell, source: Source) -> None:
    shell.ask(offset=3, waitMs=1000, lastOffset=2, lastEpoch=1)
    source.lineage = EpochVerdict(OffsetCheck.CUT, 1)
    source.append()
    shell.reads.advanced()
    _, head, _ = shell.take()
    assert (head.error, head.cutEndOffset) == (client_pb2.ReadResponse.CUT, 1)


def test_invalid_read_request_is_rejected_and_counted(shell: Shell) -> None:
    shell.reads.answer_request(b"\x00\xff", "r")
    assert shell.take()[1].error == client_pb2.ReadResponse.BAD_REQUEST
    shell.ask(isolation=7)
    assert shell.take()[1].error == client_pb2.ReadResponse.BAD_REQUEST
    assert shell.counters["refused: no envelope"] == 1


def test_corrupted_read_request_is_not_answered(shell: Shell) -> None:
    """Its reply subject is that of a reader who waits for an answer to something else, and would take it for his."""
    request = bytearray(frames.seal(client_pb2.ReadRequest(offset=0, streamUid="u" * 10, lastOffset=5, lastEpoch=9)))
    request[-1] ^= 1
    shell.reads.answer_request(bytes(request), "r")
    assert shell.answers == []
    assert shell.counters == {"refused: checksum": 1}


# ---- the rule of a real replica ----------------------------------------------------------------------------------------------
def _source(stepped: Stepped, *, failed: bool = False, heard: bool = True) -> ReplicaSource:
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    partition: Any = SimpleNamespace(
        replica=stepped.replica, log=log, storage_failed=failed, ingest=SimpleNamespace(is_subscribed=heard)
    )
    return ReplicaSource(partition)


def test_replica_source_of_a_leader_with_a_lease_answers_latest_reads() -> None:
    leader = Stepped("a").leads()
    assert _source(leader).leads
    assert _source(leader).may_serve
    assert _source(leader).may_answer_latest(leader.now_ns)
    assert not _source(leader, heard=False).may_answer_latest(leader.now_ns), "a publish can't reach it yet"
    assert not _source(leader).may_answer_latest(leader.now_ns + 60 * S), "its lease is over"
    assert not _source(leader, failed=True).may_serve


def test_replica_source_of_a_follower_answers_reads_only_after_reconciliation() -> None:
    follower = Stepped("b").opened(3, 2, ((1, 0),))
    follower.told(state(leader_epoch=2))
    source = _source(follower)
    assert (source.leads, source.leader) == (False, "a")
    assert not source.may_serve, "nothing is known of the leader's log yet"
    assert source.may_answer_latest(follower.now_ns), "the answer says that it does not lead"


def test_replica_source_of_a_candidate_answers_reads() -> None:
    candidate = Stepped("b").opened(3, 2, ((1, 0),))
    candidate.told(state("", leader_epoch=1, candidate="b", status=PartitionStatus.CANDIDATE_FOUND))
    assert candidate.replica.role == "CANDIDATE"
    assert _source(candidate).may_serve


# ---- whom a request is for, and what waiting readers cost --------------------------------------------------------------------------
def test_read_request_for_another_partition_is_dropped() -> None:
    source = Source()
    shell = Shell(source)
    for named in ({"stream": KEY.stream, "partition": KEY.partition + 1}, {"stream": "t", "partition": KEY.partition}):
        shell.reads.answer_request(frames.seal(client_pb2.ReadRequest(**named)), "x")  # type: ignore[arg-type]
    assert shell.answers == []
    assert shell.counters == {"refused: addressee": 2}
    right = client_pb2.ReadRequest(stream=KEY.stream, partition=KEY.partition, requestId=9, minHighWatermark=-1)
    shell.reads.answer_request(frames.seal(right), "x")
    shell.reads.answer_request(frames.seal(client_pb2.ReadRequest()), "older")
    right.waitMs = 50
    shell.reads.answer_request(frames.seal(right), "waits")
    shell.pass_time(1)
    heads = {asker: (head.stream, head.HasField("partition"), head.requestId) for asker, head, _ in shell.answers}
    assert heads == {"x": (KEY.stream, True, 9), "older": ("", False, 0), "waits": (KEY.stream, True, 9)}


def test_long_poll_reads_of_all_partitions_share_one_byte_budget() -> None:
    budget = module.ReadBudget(max_bytes=3 * module.WAITING_COST_BYTES)
    shells = [Shell(Source()), Shell(Source())]
    for shell in shells:
        shell.reads = Reads[str](KEY, "a", shell.source, shell, shell.counters, budget)
    wait = frames.seal(client_pb2.ReadRequest(waitMs=1000, minHighWatermark=-1))
    for number in range(3):
        shells[number % 2].reads.answer_request(wait, f"_INBOX.{number}")
    assert [shell.reads.waiting_count for shell in shells] == [1, 1], (
        "the third has no room: what they ask and where counts too"
    )
    assert [head.error for _, head, _ in shells[0].answers] == [OK], "it is answered at once"
    assert shells[0].counters == {module.NOT_WAITED: 1}
    assert budget.used_bytes == sum(shell.reads.waiting_bytes for shell in shells) > 2 * module.WAITING_COST_BYTES
    shells[0].pass_time(2)
    shells[1].reads.close()
    assert budget.used_bytes == 0
    shells[0].reads.answer_request(wait, "_INBOX.9")
    assert shells[0].reads.waiting_count == 1


def test_read_request_while_the_send_buffer_is_full_does_not_read_the_log() -> None:
    source = Source()
    source.append(3)
    shell = Shell(source)
    shell.has_room = False
    read = frames.seal(client_pb2.ReadRequest(offset=0))
    shell.reads.answer_request(read, "x")
    assert (shell.answers, shell.counters) == ([], {module.NOT_SERVED: 1})
    shell.has_room = True
    shell.reads.answer_request(read, "x")
    assert [offsets for _, _, offsets in shell.answers] == [[0, 1, 2]]


# ---- filters, and backwards --------------------------------------------------------------------------------------------
def keyed(source: Source, *keys: bytes) -> None:
    for key in keys:
        source.log.append(build_batch([b"v"], keys=[key], base_offset=source.log.log_end_offset, leader_epoch=1))
    source.high_watermark = source.log.newest_offset


def test_filtered_read_returns_matching_records_and_the_offset_it_has_scanned_to(shell: Shell, source: Source) -> None:
    keyed(source, b"a", b"b", b"a", b"c")
    shell.ask(offset=0, filterKeys=[b"a"])
    _, head, bases = shell.take()
    assert (head.error, head.selected, head.nextOffset, bases) == (OK, True, 7, [3, 5])
    shell.ask(offset=0, filterKeys=[b"x"])
    _, head, bases = shell.take()
    assert (head.error, head.selected, head.nextOffset, bases) == (OK, True, 7, [])
    shell.ask(offset=0)
    assert not shell.take()[1].selected


def test_filtered_long_poll_read_is_answered_even_without_matching_records(shell: Shell, source: Source) -> None:
    shell.ask(offset=3, filterKeys=[b"a"], waitMs=1000)
    assert not shell.answers
    keyed(source, b"b")
    shell.reads.advanced()
    _, head, bases = shell.take()
    assert (head.selected, head.nextOffset, bases) == (True, 4, [])  # its position goes on
    shell.ask(offset=4, filterKeys=[b"a"], waitMs=1000)
    shell.pass_time(1.1)
    _, head, bases = shell.take()
    assert (head.selected, head.nextOffset, bases) == (True, 4, [])


def test_backward_read_returns_records_below_its_offset_down_to_the_log_start(shell: Shell, source: Source) -> None:
    keyed(source, b"a", b"b", b"a")
    source.log.append(build_batch([b"not committed"], base_offset=6, leader_epoch=1))
    shell.ask(offset=6, backwards=True, maxBytes=250, waitMs=1000)
    _, head, bases = shell.take()
    assert (head.selected, head.nextOffset, bases) == (True, 4, [4, 5])
    shell.ask(offset=6, backwards=True, filterKeys=[b"a"])
    _, head, bases = shell.take()
    assert (head.nextOffset, bases) == (0, [3, 5])
    source.log.log_start_offset = 2
    shell.ask(offset=4, backwards=True)
    _, head, bases = shell.take()
    assert (head.nextOffset, bases[-1]) == (2, 3)
    shell.ask(offset=2, backwards=True, waitMs=1000)
    _, head, bases = shell.take()
    assert (head.error, head.nextOffset, bases) == (OK, 2, [])
    for outside in (1, 7):
        shell.ask(offset=outside, backwards=True)
        assert shell.take()[1].error == client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE


def test_backward_read_with_a_time_returns_records_before_that_time(shell: Shell) -> None:
    source = shell.source
    assert isinstance(source, Source)
    for number in range(3):
        source.log.append(build_batch([b"t"], base_offset=3 + number, leader_epoch=1, timestamp_ns=100 * (number + 1)))
    source.high_watermark = 5
    shell.ask(byTimestamp=True, timestamp=200, backwards=True)
    _, head, bases = shell.take()
    assert (head.nextOffset, bases[-1]) == (0, 3)


@pytest.mark.parametrize("wrong", [{"filterSubjects": ["a..b"]}, {"filterSubjects": ["s"] * 65}, {"filterKeys": [b"k"] * 257}])
def test_read_with_an_invalid_filter_is_rejected(shell: Shell, wrong: dict[str, object]) -> None:
    shell.ask(offset=0, waitMs=1000, **wrong)
    _, head, bases = shell.take()
    assert (head.error, bases) == (client_pb2.ReadResponse.BAD_REQUEST, [])
    assert head.detail


def test_filtered_large_batch_is_sent_in_fragments(shell: Shell) -> None:
    source = shell.source
    assert isinstance(source, Source)
    shell.max_payload = 5000  # type: ignore[misc]
    values, keys = [b"x" * 1000] * 30, [b"a", b"b"] * 15
    source.log.append(build_batch(values, keys=keys, base_offset=3, leader_epoch=1))
    source.high_watermark = 32
    sent: list[bytes] = []
    shell.answer = lambda asker, chunks: sent.append(b"".join(chunks))  # type: ignore[method-assign]
    for where in ({"offset": 3}, {"offset": 33, "backwards": True}):
        assembly = Assembly()
        whole = None
        while whole is None:
            held = assembly.held
            shell.ask(**where, filterKeys=[b"a"], position=held.position, batchCrc=held.crc)
            head, body = frames.decode_read_response(sent.pop())
            assert len(body) < 5000
            piece = frames.piece_in(head, body)
            assert piece is not None
            whole = assembly.add_piece(piece)
        assert [record.offset for record in split_batches(whole)[0].records()] == list(range(3, 33, 2))


def test_range_read_returns_the_batches_whose_last_record_is_in_the_range(shell: Shell, source: Source) -> None:
    for _ in range(4):
        source.log.append(build_batch([b"v"] * 10, base_offset=source.log.log_end_offset, leader_epoch=1))
    source.high_watermark = source.log.newest_offset
    first = source.log.log_end_offset - 40
    for offset, end, expected in ((0, 15, [0]), (15, 25, [10]), (25, 28, []), (28, 40, [20, 30])):
        shell.ask(offset=first + offset, endOffset=first + end)
        _, head, bases = shell.take()
        assert (head.error, bases) == (OK, [first + base for base in expected])
    shell.ask(offset=first, leftOut=128, endOffset=first + 20)
    _, head, bases = shell.take()
    assert (bases, head.lookedBytes > 0) == ([first, first + 10], True)


def test_range_query_returns_committed_size_split_offsets_and_epochs() -> None:
    source = Source()
    for epoch in (1, 1, 3, 3):
        source.log.append(build_batch([b"x"] * 10, base_offset=source.log.log_end_offset, leader_epoch=epoch))
    source.high_watermark = 29
    source.log.raise_high_watermark(29)
    shell = Shell(source)
    size = source.log.size_bytes // 4
    shell.ask(boundsOnly=True, offset=5, rangeEnd=30, borderBytes=size)
    head = shell.answers[-1][1]
    assert (head.rangeBytes, list(head.borders), list(head.borderPositions)) == (3 * size, [10, 20], [size, 2 * size])
    assert (head.beforeEpoch, head.endEpoch) == (1, 3)
    shell.ask(boundsOnly=True, offset=0, rangeEnd=20, borderRecords=10)
    head = shell.answers[-1][1]
    assert (list(head.borders), head.beforeEpoch, head.endEpoch) == ([10], 0, 1)
    shell.ask(boundsOnly=True)
    head = shell.answers[-1][1]
    assert (head.endEpoch, head.HasField("rangeBytes")) == (3, False)
    for low, high in ((0, 31), (20, 10), (-1, 5)):
        shell.ask(boundsOnly=True, offset=low, rangeEnd=high)
        assert shell.answers[-1][1].error == client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE
    source.log.drop_prefix(20)
    shell.ask(boundsOnly=True, offset=20, rangeEnd=20)
    assert (shell.answers[-1][1].beforeEpoch, shell.answers[-1][1].endEpoch) == (1, 1)
    shell.ask(boundsOnly=True, offset=10, rangeEnd=30)
    assert shell.answers[-1][1].error == client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE
