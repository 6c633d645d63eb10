"""Test reads at a replica: up to which offset, long polls, and which replica answers for the latest offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.log.log import Log, RecheckResult
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.partition import reads as module
from liftpy.core.partition.reads import (
    MAX_REQUEST_BYTES,
    MAX_WAIT_MS,
    WAITING_COST_BYTES,
    Chunks,
    PartitionFiles,
    ReadBudget,
    Reads,
    ReplicaSource,
)
from liftpy.core.replication.log_offsets import OffsetCheck, OffsetCheckResult
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import Assembly
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.unit.log.small_logs import a_log
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
        self.outcome = OffsetCheckResult(OffsetCheck.SAME)

    def append(self, count: int = 1, committed: bool = True) -> None:
        for _ in range(count):
            self.log.append(build_batch([b"x"], base_offset=self.log.log_end_offset, leader_epoch=1, timestamp_ns=1))
        if committed:
            self.high_watermark = self.log.newest_offset

    def may_answer_latest(self, now_ns: int) -> bool:
        return self.knows_latest

    def check_reader_offset(self, last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        return self.outcome


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
    source.outcome = OffsetCheckResult(OffsetCheck.CUT, 1)
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


# ---- fields, rejections and limits -----------------------------------------------------------------------------------------
E = client_pb2.ReadResponse


class TimestampedSource(Source):
    """Batches of two records, stamped 10, 20, ..., the last one not committed; the log begins at 2."""

    compacted, leader_epoch, leader = True, 7, "n9"

    def __init__(self, batches: int = 5, size: int = 1) -> None:
        super().__init__()
        self.log: Log = a_log(MemoryStorage())
        for number in range(batches):
            batch = build_batch([b"v" * size] * 2, base_offset=2 * number, leader_epoch=7, timestamp_ns=10 * (number + 1))
            self.log.append(batch)
        self.log.raise_high_watermark(2 * batches - 3)
        self.high_watermark = self.log.high_watermark
        self.log.drop_prefix(2)


class RawShell(Shell):
    """Keeps what is sent as it is."""

    def __init__(self, source: Source, **settings: Any) -> None:
        super().__init__(source)
        self.sent: list[tuple[client_pb2.ReadResponse, bytes]] = []
        if settings:
            self.reads = Reads[str](KEY, "n1", source, self, self.counters, **settings)

    def answer(self, asker: str, chunks: Chunks) -> None:
        head, body = frames.decode_read_response(b"".join(chunks))
        self.sent.append((head, bytes(body)))

    def one(self, **fields: Any) -> tuple[client_pb2.ReadResponse, list[int]]:
        self.sent.clear()
        self.ask(**fields)
        ((head, body),) = self.sent
        return head, [batch.base_offset for batch in split_batches(body)]


def refused(shell: RawShell, **fields: Any) -> tuple[int, str]:
    head, batches = shell.one(**fields)
    assert batches == []
    return head.error, head.detail


def test_read_by_time_returns_the_first_batch_at_or_after_the_time() -> None:
    shell = RawShell(TimestampedSource())
    for timestamp, base, at in ((0, 2, 20), (20, 2, 20), (21, 4, 30), (40, 6, 40)):
        head, offsets = shell.one(timestamp=timestamp, byTimestamp=True, maxBytes=1)
        assert (offsets, head.firstTimestamp, head.nextOffset) == ([base], at, base + 2)
    head, offsets = shell.one(timestamp=41, byTimestamp=True)
    assert (offsets, head.firstTimestamp, head.nextOffset, head.error) == ([], 0, 8, E.OK), "what is not committed is not shown"
    head, offsets = shell.one(timestamp=41, byTimestamp=True, isolation=UNCOMMITTED)
    assert (offsets, head.firstTimestamp, head.nextOffset) == ([8], 50, 10)
    assert shell.one(offset=2, maxBytes=1)[0].firstTimestamp == 0, "nobody has asked"


def test_bounds_read_returns_offsets_without_batches() -> None:
    shell = RawShell(TimestampedSource())
    for fields, next_offset in (
        ({"offset": 5}, 5),
        ({"timestamp": 30, "byTimestamp": True}, 4),
        ({"timestamp": 99, "byTimestamp": True}, 8),
    ):
        head, offsets = shell.one(boundsOnly=True, **fields)
        assert (offsets, head.nextOffset, head.highWatermark, head.logStartOffset) == ([], next_offset, 7, 2)


def test_read_rejection_contains_a_reason() -> None:
    source = TimestampedSource()
    shell = RawShell(source)
    assert refused(shell, streamUid="old") == (E.WRONG_STREAM, f"the stream of this name is {KEY.uid}, not 'old'")
    assert refused(shell, isolation=9) == (E.BAD_REQUEST, "isolation 9 is not known")
    for offset in (1, 9, 10):
        assert refused(shell, offset=offset) == (E.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside 2 to 8")
    assert refused(shell, offset=11, isolation=UNCOMMITTED) == (E.OFFSET_OUT_OF_RANGE, "offset 11 is outside 2 to 10")
    assert refused(shell, offset=8, minHighWatermark=8) == (E.NOT_READY, "the high watermark is 7, below the requested 8")
    assert shell.one(offset=6, minHighWatermark=7)[1] == [6]
    source.knows_latest = False
    assert refused(shell, boundsOnly=True) == (E.NOT_READY, "the new leader's HW has not reached its epoch's start yet")
    source.may_serve = False
    assert refused(shell, offset=6) == (E.NOT_READY, "this replica is not in sync yet")
    source.leads = False
    assert refused(shell, offset=6, isolation=UNCOMMITTED) == (E.NOT_LEADER, "uncommitted records are read from the leader")
    assert not shell.counters


@pytest.mark.parametrize(
    ("outcome", "error", "counted"),
    [(OffsetCheck.CUT, E.CUT, 1), (OffsetCheck.BEHIND, E.NOT_READY, 0), (OffsetCheck.SAME, E.OK, 0)],
)
def test_read_of_a_diverged_reader_returns_the_end_of_the_common_prefix(outcome: OffsetCheck, error: int, counted: int) -> None:
    source = TimestampedSource()
    asked: list[tuple[int, int]] = []

    def check_offset(last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        asked.append((last_offset, last_epoch))
        return OffsetCheckResult(outcome, 5)

    source.check_reader_offset = check_offset  # type: ignore[method-assign]
    shell = RawShell(source)
    head, offsets = shell.one(offset=6, lastOffset=5, lastEpoch=3)
    assert asked == [(5, 3)]
    assert (head.error, head.cutEndOffset, offsets) == (error, 0 if error == E.OK else 5, [6] if error == E.OK else [])
    assert head.detail == ("" if error == E.OK else "(offset 5, LeaderEpoch 3) is not on this log")
    assert shell.counters["reader_of_lost_records"] == counted
    shell.one(offset=6, lastOffset=5)
    assert len(asked) == 1, "who has read nothing is judged by nothing"


def test_read_of_a_damaged_log_is_rejected_and_counted() -> None:
    source = TimestampedSource()
    shell = RawShell(source)
    source.log.storage.files[f"{0:020d}.log"].data[-40] ^= 1  # type: ignore[attr-defined]
    source.log.segments[0].checked = False
    error, detail = refused(shell, offset=8, isolation=UNCOMMITTED, waitMs=5)
    assert error == E.UNKNOWN
    assert detail.startswith(f"{CorruptionError.code}: ")
    assert shell.counters == {"read_failed": 1}


def test_damage_report_of_a_reader_is_counted_by_the_result_of_its_recheck() -> None:
    shell = RawShell(TimestampedSource())
    assert shell.one(offset=2, maxBytes=1, badOffset=2)[1] == [2]
    assert shell.one(offset=2, maxBytes=1, badOffset=2)[1] == [2]
    assert shell.counters == {RecheckResult.SOUND.value: 1, RecheckResult.TOO_SOON.value: 1}
    shell.one(offset=2, badOffset=99)
    assert shell.counters[RecheckResult.NOT_HERE.value] == 1


def test_read_response_size_limit_is_the_requested_or_one_mebibyte() -> None:
    source = TimestampedSource(8, size=100_000)
    source.high_watermark = 15
    shell = RawShell(source)
    shell.max_payload = 64 << 20
    assert shell.one(offset=2)[1] == [2, 4, 6, 8, 10]
    assert shell.one(offset=2, maxBytes=3 << 20)[1] == [2, 4, 6, 8, 10, 12, 14]
    assert shell.one(offset=2, maxBytes=401_000)[1] == [2, 4]


# ---- who waits ---------------------------------------------------------------------------------------------------------------
def test_read_waits_for_records_only_if_requested_and_at_the_log_end() -> None:
    shell = RawShell(TimestampedSource())
    assert shell.one(offset=8)[0].nextOffset == 8
    assert shell.one(offset=6, waitMs=1000)[1] == [6]
    assert shell.one(boundsOnly=True, offset=7, waitMs=1000)[0].nextOffset == 7
    assert shell.one(boundsOnly=True, offset=8)[0].nextOffset == 8
    assert shell.one(boundsOnly=True, offset=2, rangeEnd=8, waitMs=1000)[0].rangeBytes
    assert shell.one(boundsOnly=True, timestamp=41, byTimestamp=True, waitMs=1000)[0].nextOffset == 8
    shell.sent.clear()
    shell.ask(offset=8, waitMs=1000)
    shell.ask(timestamp=41, byTimestamp=True, waitMs=1000)
    assert (shell.sent, shell.reads.waiting_count) == ([], 2)


def test_long_poll_bounds_read_is_answered_at_a_higher_watermark_or_its_timeout() -> None:
    source = TimestampedSource()
    shell = RawShell(source)
    shell.ask(boundsOnly=True, offset=8, waitMs=1000)
    source.high_watermark = 7
    shell.reads.advanced()
    assert (shell.sent, shell.reads.waiting_count) == ([], 1)
    source.high_watermark = 8
    shell.reads.advanced()
    ((head, body),) = shell.sent
    assert (head.highWatermark, head.error, body, shell.reads.waiting_count) == (8, E.OK, b"", 0)
    shell.sent.clear()
    shell.ask(boundsOnly=True, offset=9, waitMs=100)
    shell.pass_time(0.1)
    assert [told.highWatermark for told, _ in shell.sent] == [8]


def test_range_query_returns_file_names_only_if_enabled_and_requested() -> None:
    for files, told in ((PartitionFiles("h1", "/data/s"), "h1"), (None, "")):
        shell = RawShell(TimestampedSource(), files=files)
        asked = {"boundsOnly": True, "offset": 2, "rangeEnd": 8}
        head, _ = shell.one(**asked, asksFiles=True)
        assert (head.host, head.folder) == (told, "/data/s" if told else "")
        assert (list(head.fileBases), list(head.fileBegins)) == (([0], [head.fileBegins[0]]) if told else ([], []))
        if told:
            assert head.fileEnds[0] - head.fileBegins[0] == head.rangeBytes
        assert shell.counters[module.FILE_OFFERS] == (1 if told else 0)
        assert not shell.one(**asked)[0].host
        assert refused(shell, boundsOnly=True, offset=2, rangeEnd=9, asksFiles=True)[0] == E.OFFSET_OUT_OF_RANGE, (
            "not committed"
        )


def test_long_poll_reads_above_a_count_or_byte_limit_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    shell = RawShell(TimestampedSource())
    for _ in range(3):
        shell.ask(offset=8, waitMs=1000)
    assert (len(shell.sent), shell.reads.waiting_count) == (1, 2)
    assert shell.counters == {module.NOT_WAITED: 1}
    cost = WAITING_COST_BYTES + client_pb2.ReadRequest(offset=8, waitMs=1000).ByteSize() + 1
    for room, waiting in ((cost, 1), (cost - 1, 0)):
        shell = RawShell(TimestampedSource(), budget=ReadBudget(max_bytes=room))
        shell.ask(offset=8, waitMs=1000)
        assert shell.reads.waiting_count == waiting


def test_read_request_at_the_size_limit_is_answered_and_above_dropped() -> None:
    shell = RawShell(TimestampedSource())
    frame = frames.seal(client_pb2.ReadRequest(offset=6))
    padded = [
        frames.encode(client_pb2.ReadRequest(offset=6, streamUid="u" * size))
        for size in range(MAX_REQUEST_BYTES - 28, MAX_REQUEST_BYTES + 12)
    ]
    sizes = {len(each) for each in padded}
    assert MAX_REQUEST_BYTES in sizes
    for each in (*padded, frame):
        shell.sent.clear()
        shell.reads.answer_request(each, "r")
        assert len(shell.sent) == (len(each) <= MAX_REQUEST_BYTES)
    assert shell.counters == {module.TOO_LARGE: sum(len(each) > MAX_REQUEST_BYTES for each in padded)}
