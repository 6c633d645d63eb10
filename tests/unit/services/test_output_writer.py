"""Test the output writer over a partition that loses, delays and repeats messages: each output is stored once, in order."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.positions import Bounds
from liftpy.config import Codec
from liftpy.core.publish.message_decoder import body_to_store
from liftpy.core.services.outbox import Output, Route
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record, add_header, parse_batch
from liftpy.errors import ConfigError, LiftError, OffsetOutOfRangeError
from liftpy.nats.transport import RequestTimeoutError
from liftpy.service import DivergedError, Outbox, ServiceFailedError
from liftpy.service.output_writer import Destination, Emitter
from liftpy.service.settings import ServiceSettings
from sidecar.cli.service import exit_code
from tests.until import until

TOTAL = 120


class Partition:
    """An output partition. It accepts appends at its log end and commits them later. ``rng`` injects faults."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.log: list[Record] = []
        self.uncommitted = 0
        self.log_start = 0
        self.rng = rng
        self.writes = 0
        self.sizes: list[int] = []
        """Records of each write."""
        self.max_payload_bytes = 1 << 20
        self.config = SimpleNamespace(compaction=False)

    def append(self, frame: bytes) -> bytes:
        head, published = frames.decode_batch_publish(frame)
        assert (head.stream, head.partition, head.ackPolicy) == ("out", 0, client_pb2.ALL)
        batch = parse_batch(published)
        self.writes += 1
        self.sizes.append(batch.record_count)
        if head.expectedOffset != len(self.log):
            return frames.encode(client_pb2.Ack(stream="out", ackError=client_pb2.Ack.INCORRECT_OFFSET))
        self.log += parse_batch(
            add_header(body_to_store(published, "out", Codec.NONE)[0], base_offset=len(self.log), leader_epoch=1)
        ).records()
        return frames.encode(client_pb2.Ack(stream="out", offset=head.expectedOffset, recordCount=batch.record_count))

    # the transport
    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        assert subject == "out.here"
        rng = self.rng
        if rng is None:
            return self.append(payload)
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        fault = rng.random()
        if fault < 0.01:
            raise RequestTimeoutError("lost")
        answer = self.append(payload)
        if fault < 0.02:  # a repeated, late copy
            asyncio.get_running_loop().call_later(0.001 * rng.random(), self.append, payload)
        if fault < 0.03:
            raise RequestTimeoutError("the ack was lost")
        return answer

    # the client
    async def stream(self, name: str) -> Any:
        return SimpleNamespace(subject="out.here", uid="o1", partitions=[None], answers=True, config=self.config)

    async def bounds(self, stream: str, partition: int) -> Bounds:
        end = len(self.log) - (self.rng.randrange(3) if self.rng else 0)  # HW, a little behind
        return Bounds("o1", "n1", "n1", 1, self.log_start, max(end, 0) - 1)

    async def read_range(
        self, stream: str, partition: int, start: int, end: int, uid: str, exact: bool = False
    ) -> AsyncIterator[Any]:
        if start < self.log_start:
            raise OffsetOutOfRangeError("gone")
        records = self.log[start:end]
        yield SimpleNamespace(records=lambda: iter(records))


class Sender:
    """The output writer of one node."""

    def __init__(self, partition: Partition, *, leads: bool = True, values: str = "v") -> None:
        self.outbox = Outbox("u/0")
        self.leads = leads
        self.failed: list[LiftError] = []
        settings = ServiceSettings(
            "s", "in", "n1", Path("/nowhere"), output_stream="out", emit_poll_interval_s=0.01, emit_window=16
        )
        anything: Any = partition
        own: Any = self
        self.emitter = Emitter(anything, anything, settings, self.outbox, own)
        self.values = values
        self.disproven = 0
        self.known = 0
        self.ends: list[int] = []
        self.fail = self.failed.append

    def outputs_known(self) -> None:
        self.known += 1

    def outputs_written(self) -> None:
        self.ends.append(self.outbox.emitted_end)

    def outputs_disproven(self) -> None:
        self.disproven += 1

    def produce(self, end: int) -> None:
        for number in range(self.outbox.output_count, end):
            self.outbox.add(Output(number, 7 + number, 0, f"{self.values}{number}".encode(), None, ()))
        self.emitter.wake()


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.service.output_writer._AGAIN_S", 0.002)
    monkeypatch.setattr("liftpy.service.output_writer._BATCH_RECORDS", 4)


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    tasks: list[asyncio.Task[None]] = []

    def begin(sender: Sender) -> Sender:
        tasks.append(asyncio.create_task(sender.emitter.run()))
        return sender

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_service_output_writer_of_the_leader_writes_outputs_and_a_follower_reads_them(start: Any) -> None:
    partition = Partition()
    leader, follower = start(Sender(partition)), start(Sender(partition, leads=False))
    for sender in (leader, follower):
        sender.produce(40)
    await until(lambda: follower.outbox.emitted_end == 40)
    assert (len(partition.log), partition.sizes, follower.outbox.waiting_count) == (40, [4] * 10, 0)


async def test_service_output_writer_batches_outputs_up_to_the_maximum_message_size(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.service.output_writer._BATCH_RECORDS", 1000)
    partition = Partition()
    partition.max_payload_bytes = 5000
    ours, sent = partition.append, []
    monkeypatch.setattr(partition, "append", lambda frame: (sent.append(len(frame)), ours(frame))[1])
    sender = start(Sender(partition))
    many = tuple((chr(0x41 + place), b"") for place in range(200))
    for number, size_bytes in enumerate((10, 10, 2300, 2300, 4000, *[1] * 10)):
        sender.outbox.add(Output(number, number, 0, b"x" * size_bytes, None, many if size_bytes == 1 else ()))
    sender.emitter.wake()
    await until(lambda: sender.outbox.emitted_end == 15)
    assert max(sent) <= 5000
    assert partition.sizes[:4] == [2, 1, 1, 1], "half a message, as the outputs count themselves; one that is larger goes alone"
    assert set(partition.sizes[4:]) == {1, 2}, (
        "headers cost more than they count: what does not fit is cut in two until it does"
    )


@pytest.mark.parametrize("seed", range(6))
async def test_service_output_writers_of_two_overlapping_leaders_write_each_output_once(start: Any, seed: int) -> None:
    rng = random.Random(seed)
    partition = Partition(rng)
    senders = [start(Sender(partition, leads=False)) for _ in range(3)]
    deadline = asyncio.get_running_loop().time() + 20
    while len(partition.log) < TOTAL:
        state = [
            (s.outbox.output_count, s.outbox.emitted_end, s.outbox.oldest_number, s.emitter.problem, s.failed) for s in senders
        ]
        assert asyncio.get_running_loop().time() < deadline, (len(partition.log), state)
        for sender in senders:
            sender.produce(min(TOTAL, len(partition.log) + rng.randrange(10, 60)))
            sender.leads = rng.random() < 0.6  # also two at once, also none
            sender.emitter.reread_end()
        await asyncio.sleep(0.005)
    assert [r.value for r in partition.log] == [b"v%d" % number for number in range(TOTAL)]
    assert not any(sender.failed for sender in senders)


async def test_service_output_writer_of_a_follower_with_a_different_output_raises_diverged(start: Any) -> None:
    partition = Partition()
    start(Sender(partition)).produce(5)
    wrong = start(Sender(partition, leads=False, values="w"))
    wrong.produce(5)
    await until(lambda: wrong.failed)
    assert isinstance(wrong.failed[0], DivergedError)


async def test_service_output_writer_with_a_foreign_record_in_the_output_stream_writes_no_outputs(start: Any) -> None:
    partition = Partition()
    partition.log.append(Record(0, 0, None, b"foreign", (), "", None, 1))
    sender = start(Sender(partition))
    sender.produce(3)
    await until(lambda: "OUTPUT_CONFLICT" in sender.emitter.problem)
    assert (len(partition.log), sender.failed) == (1, [])


async def test_service_output_writer_treats_outputs_deleted_by_retention_as_written(start: Any) -> None:
    partition = Partition()
    start(Sender(partition)).produce(20)
    await until(lambda: len(partition.log) == 20)
    partition.log_start = 15
    late = start(Sender(partition, leads=False))
    late.produce(22)
    await until(lambda: late.outbox.emitted_end == 20)
    assert late.outbox.oldest_number == 20


async def test_service_output_writer_of_a_leader_without_the_next_output_requests_a_rewind(start: Any) -> None:
    partition = Partition()
    sender = Sender(partition)
    sender.outbox.restart(10)  # from a snapshot after ten outputs, of which nobody has written any
    start(sender)
    sender.produce(15)
    await until(lambda: sender.outbox.must_rewind)
    await asyncio.sleep(0.03)
    assert partition.writes == 0


async def test_service_output_writer_ignores_an_ack_of_another_stream(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stream answers first, while the output was lost [A9]."""
    partition = Partition()
    ours, lost = partition.append, set[int]()

    def both(frame: bytes) -> bytes:
        number = len(partition.log)
        if number % 8 == 0 and number not in lost:
            lost.add(number)
            return frames.encode(client_pb2.Ack(stream="audit", offset=number))
        return ours(frame)

    monkeypatch.setattr(partition, "append", both)
    sender = start(Sender(partition))
    sender.produce(20)
    await until(lambda: sender.outbox.emitted_end == 20)
    assert ([r.value for r in partition.log], sender.failed) == ([b"v%d" % number for number in range(20)], [])
    assert lost == {0, 8, 16}


async def written_by_another(start: Any, partition: Partition, count: int, values: str = "v") -> Outbox:
    sender = start(Sender(partition, values=values))
    sender.produce(count)
    await until(lambda: len(partition.log) == count and sender.outbox.emitted_end == count)
    sender.leads = False
    outbox: Outbox = sender.outbox
    return outbox


@pytest.mark.parametrize("values", ["v", "w"])
async def test_service_output_writer_after_a_restore_compares_snapshot_outputs_before_sending(start: Any, values: str) -> None:
    partition = Partition()
    await written_by_another(start, partition, 20)
    copy = Outbox("u/0")
    for number in range(12):
        copy.add(Output(number, 7 + number, 0, f"{values}{number}".encode(), None, ()))
    again = Sender(partition)
    again.outbox.restart(12, copy.digest)
    again.produce(25)  # 12 and on: as the right service
    start(again)
    if values == "v":
        await until(lambda: len(partition.log) == 25)
        again.emitter.reread_end()
        again.produce(30)
        await until(lambda: again.outbox.compared_end == 30)  # after the sending, when the answer has been looked at
        assert (again.known, again.disproven, len(partition.log)) == (1, 0, 30)
    else:
        writes = partition.writes
        await until(lambda: again.disproven > 1)
        assert (again.known, partition.writes, again.failed) == (0, writes, [])
        assert "SERVICE_DIVERGED" in again.emitter.problem


async def test_service_output_writer_after_a_truncation_of_the_output_stream_writes_outputs_again(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election truncated it. A new leader reports less for a moment, so the emitter waits."""
    monkeypatch.setattr("liftpy.service.output_writer._LOST_AFTER_S", 0.05)
    partition = Partition()
    sender = start(Sender(partition))
    sender.produce(20)
    await until(lambda: sender.outbox.emitted_end == 20)
    del partition.log[15:]
    sender.emitter.reread_end()
    began_s = asyncio.get_running_loop().time()
    await until(lambda: sender.outbox.must_rewind)  # 15 to 19 are kept no more
    assert asyncio.get_running_loop().time() - began_s >= 0.04
    assert sender.outbox.emitted_end == 15
    sender.outbox.restart(0)
    sender.produce(23)
    await until(lambda: len(partition.log) == 23)
    assert [r.value for r in partition.log] == [b"v%d" % number for number in range(23)]
    assert not sender.failed


@pytest.mark.parametrize("purged", [range(5, 8), range(6, 10), range(10)])
async def test_service_output_writer_resumes_after_purged_outputs(start: Any, purged: range) -> None:
    partition = Partition()
    start(Sender(partition)).produce(10)
    await until(lambda: len(partition.log) == 10)
    whole = list(partition.log)

    async def without(stream: str, number: int, first: int, end: int, uid: str, exact: bool = False) -> AsyncIterator[Any]:
        records = [record for record in partition.log[first:end] if record.offset not in purged or record not in whole]
        yield SimpleNamespace(records=lambda: iter(records))

    partition.read_range = without  # type: ignore[method-assign]
    late = start(Sender(partition))
    late.produce(12)
    await until(lambda: len(partition.log) == 12)
    assert (late.emitter.problem, late.failed) == ("", [])


async def test_service_output_writer_raises_stream_replaced_if_the_output_stream_was_recreated(start: Any) -> None:
    partition = Partition()
    sender = start(Sender(partition))
    sender.produce(3)
    await until(lambda: len(partition.log) == 3)

    async def bounds(stream: str, number: int) -> Bounds:
        return Bounds("o2", "n1", "n1", 1, 0, -1)

    partition.bounds = bounds  # type: ignore[method-assign]
    sender.emitter.reread_end()
    await until(lambda: sender.failed)
    assert exit_code(sender.failed[0]) == 75


async def test_service_output_writer_ends_the_service_if_on_role_change_raises(start: Any) -> None:
    """A service with outputs becomes LEADER when the output writer knows the end of the output stream."""
    sender = Sender(Partition())

    def become_leader() -> None:
        raise ServiceFailedError("on_role_change: KeyError: 'cache'")

    sender.outputs_known = become_leader  # type: ignore[method-assign]
    start(sender)
    await until(lambda: sender.failed)
    assert "on_role_change" in str(sender.failed[0])


@pytest.mark.parametrize(
    ("stream", "partition", "error"),
    [
        ({}, 1, None), ({}, 2, "Output stream out has 2 partitions, but partition 2 is needed. Add partitions (liftpy stream add-partitions)."),  # noqa: E501
        ({}, 9, "Output stream out has 2 partitions, but partition 9 is needed. Add partitions (liftpy stream add-partitions)."),
        ({"subject": "shop.*.out"}, 1, "has the subject shop.*.out.1 with wildcards"),
        ({"subject": "shop.>"}, 0, "without wildcards"), ({"answers": False}, 1, "ack policy none"),
        ({"compaction": True}, 1, "is compacted"), ({"max_per_subject": 1}, 1, "so a route would miss outputs"),
    ],
)  # fmt: skip
async def test_service_output_destination_with_a_missing_or_unsuitable_partition_raises_config_error(
    stream: dict[str, Any], partition: int, error: str | None
) -> None:
    given = {"subject": "shop.out", "answers": True, "compaction": False, "max_per_subject": 0} | stream

    async def described(name: str) -> Any:
        assert name == "out"
        return SimpleNamespace(
            subject=given["subject"], uid="o1", partitions=[None, None], answers=given["answers"],
            config=SimpleNamespace(compaction=given["compaction"], max_per_subject=given["max_per_subject"]),
        )  # fmt: skip

    client: Any = SimpleNamespace(stream=described)
    settings = ServiceSettings(
        "s", "in", "n1", Path("/nowhere"), partition=partition, output_stream="out", routes=(Route("r", "other"),)
    )
    nothing: Any = None
    emitter = Emitter(client, nothing, settings, Outbox("u/0"), nothing)
    if error is None:
        await emitter._open()
        assert emitter._address == Destination("out", "o1", partition, f"shop.out.{partition}")
    else:
        with pytest.raises(ConfigError, match=re.escape(error)):
            await emitter._open()
