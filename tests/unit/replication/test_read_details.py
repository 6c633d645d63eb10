"""Test each field of a read response, each rejection and each limit of long-poll reads [R4, R6, R7]."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.log.log import Log, RecheckResult
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.partition import reads as module
from liftpy.core.partition.reads import MAX_REQUEST_BYTES, WAITING_COST_BYTES, Chunks, PartitionFiles, ReadBudget, Reads
from liftpy.core.replication.log_offsets import EpochVerdict, OffsetCheck
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import build_batch, split_batches
from liftpy.errors import CorruptionError
from tests.unit.log.small_logs import a_log
from tests.unit.replication.stepping import KEY
from tests.unit.replication.test_reads import Shell, Source

E = client_pb2.ReadResponse
UNCOMMITTED = client_pb2.ReadRequest.UNCOMMITTED


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
    ("lineage", "error", "counted"),
    [(OffsetCheck.CUT, E.CUT, 1), (OffsetCheck.BEHIND, E.NOT_READY, 0), (OffsetCheck.SAME, E.OK, 0)],
)
def test_read_of_a_diverged_reader_returns_the_end_of_the_common_prefix(lineage: OffsetCheck, error: int, counted: int) -> None:
    source = TimestampedSource()
    asked: list[tuple[int, int]] = []

    def judge(last_offset: int, last_epoch: int, now_ns: int) -> EpochVerdict:
        asked.append((last_offset, last_epoch))
        return EpochVerdict(lineage, 5)

    source.judge_reader = judge  # type: ignore[method-assign]
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
