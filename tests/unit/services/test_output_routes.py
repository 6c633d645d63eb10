"""Test routes of a service: each output is copied to another stream once, in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.positions import Bounds
from liftpy.config import Codec
from liftpy.core.publish.message_decoder import body_to_store
from liftpy.core.services.outbox import (
    OutputConflictError,
    Route,
    headers_of,
    number_of,
    partitions_of,
    place_of,
)
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record, add_header, parse_batch
from liftpy.core.wire.partitioner import murmur2
from liftpy.errors import ConfigError, LiftError
from liftpy.nats.transport import RequestTimeoutError
from liftpy.service import Identity, Outbox, Role, Service, ServiceFailedError, ServiceMachine
from liftpy.service.output_writer import Router
from liftpy.service.settings import ServiceSettings
from tests.until import until

ALERTS = Route("alerts", "warnings")
SOURCE = "u1/0"


def output(number: int, to: str = "alerts", key: bytes | None = None) -> Record:
    headers = [("Lift-Output", f"{SOURCE}/{number}/0".encode()), ("Lift-Output-Number", b"%d" % number), ("x", b"y"),
               ("Lift-Output-Digest", b"00" * 16), ("Lift-Output-Service", b"bank")]  # fmt: skip
    if to:
        headers.append(("Lift-Output-To", to.encode()))
    return Record(number, 0, key, b"v%d" % number, tuple(headers), "out", None, 1)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
     (b"abc", 479470107)],
)  # fmt: skip
def test_service_output_route_partition_of_a_key_equals_the_murmur2_partition_of_kafka(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % (1 << 32)
    assert place_of(key, range(7)) == (hashed & 0x7FFF_FFFF) % 7


def test_service_output_route_assigns_disjoint_target_partitions_to_service_partitions() -> None:
    assert [partitions_of(p, 2, 4, ALERTS) for p in (0, 1)] == [(0, 2), (1, 3)]
    assert partitions_of(0, 1, 3, ALERTS) == (0, 1, 2)
    with pytest.raises(ConfigError, match="partitions cannot be shared by"):
        partitions_of(0, 2, 3, ALERTS)
    assert place_of(None, (1, 3)) == 1


def test_service_output_route_copy_headers_contain_the_output_number() -> None:
    copy = output(7)._replace(offset=0, headers=headers_of(output(7)))
    assert [name for name, _ in copy.headers] == ["Lift-Output", "Lift-Output-Number", "x", "Lift-Output-Service"]
    assert number_of(copy, SOURCE, "bank", ALERTS) == 7
    for source, service in ((SOURCE, "till"), ("u2/0", "bank"), ("u1/1", "bank"), ("u1/", "till")):
        with pytest.raises(OutputConflictError):
            number_of(copy, source, service, ALERTS)
    with pytest.raises(OutputConflictError):
        number_of(copy._replace(headers=()), SOURCE, "bank", ALERTS)


class World:
    """An input partition, an output stream and a target stream of two partitions in memory. ``rng`` injects faults."""

    max_payload_bytes = 1 << 20

    def __init__(self, rng: random.Random | None = None, subject: str = "warn") -> None:
        self.rng = rng
        self.logs: dict[tuple[str, int], list[Record]] = {("out", 0): [], ("warnings", 0): [], ("warnings", 1): []}
        self.starts: dict[str, int] = {}
        self.subject = subject
        self.partitions = 2

    async def stream(self, name: str) -> Any:
        count = {"in": 1, "warnings": self.partitions}[name]
        config = SimpleNamespace(compaction=False, retention_age_s=60.0)
        return SimpleNamespace(
            name=name, uid=f"{name}-uid", subject=self.subject, partitions=[None] * count, answers=True, config=config
        )

    async def bounds(self, stream: str, partition: int) -> Bounds:
        await asyncio.sleep(0)
        log_start = self.starts.get(stream, 0) if partition == 0 else 0
        return Bounds(f"{stream}-uid", "n1", "n1", 1, log_start, len(self.logs[stream, partition]) - 1)

    async def read_range(
        self, stream: str, partition: int, start: int, end: int, uid: str, exact: bool = False
    ) -> AsyncIterator[Any]:
        assert uid == f"{stream}-uid"
        records = self.logs[stream, partition][start:end]
        yield SimpleNamespace(records=lambda: iter(records))

    def append(self, subject: str, frame: bytes) -> bytes:
        head, published = frames.decode_batch_publish(frame)
        assert subject == ("warn" if head.partition == 0 else f"warn.{head.partition}")
        log = self.logs[head.stream, head.partition]
        named = {"stream": head.stream, "partition": head.partition, "streamUid": head.streamUid}
        if head.expectedOffset != len(log):
            return frames.encode(client_pb2.Ack(**named, ackError=client_pb2.Ack.INCORRECT_OFFSET))
        batch = parse_batch(add_header(body_to_store(published, subject, Codec.NONE)[0], base_offset=len(log), leader_epoch=1))
        log += batch.records()
        return frames.encode(client_pb2.Ack(**named, offset=head.expectedOffset, recordCount=batch.record_count))

    async def request(self, subject: str, frame: bytes, timeout_s: float) -> bytes:
        for _ in range(self.rng.randrange(4) if self.rng else 0):
            await asyncio.sleep(0)
        fault = self.rng.random() if self.rng else 1.0
        if fault < 0.1:
            raise RequestTimeoutError("lost")
        answer = self.append(subject, frame)
        if fault < 0.2:  # a repeated, late copy
            asyncio.get_running_loop().call_later(0.002, self.append, subject, frame)
        if fault < 0.3:
            raise RequestTimeoutError("the ack was lost")
        return answer


class Copier:
    def __init__(self, world: Any) -> None:
        self.is_leader = True
        self.failed: list[LiftError] = []
        settings = ServiceSettings(
            "bank", "in", "n1", Path("/nowhere"), output_stream="out", routes=(ALERTS,), emit_poll_interval_s=0.01
        )
        self.asked = 0
        self.fail = self.failed.append
        own: Any = self
        self.router = Router(world, world, settings, ALERTS, source=SOURCE, instance=own)

    @property
    def leads(self) -> bool:
        self.asked += 1
        return self.is_leader


def numbers(world: World, partition: int) -> list[int]:
    return [int(record.header("Lift-Output-Number") or b"") for record in world.logs["warnings", partition]]


@pytest.mark.parametrize("seed", range(6))
async def test_service_output_router_with_overlapping_leaders_copies_each_output_once(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    copiers = [Copier(world) for _ in range(3)]
    tasks = [asyncio.create_task(copier.router.run()) for copier in copiers]
    keys = [rng.choice((None, b"k1", b"k2", b"k3", b"k4")) for _ in range(120)]
    outputs = [output(number, rng.choice(("alerts", "alerts", "", "other")), key) for number, key in enumerate(keys)]
    routed = [o for o in outputs if o.header("Lift-Output-To") == b"alerts"]
    wanted = {p: [o.offset for o in routed if place_of(o.key, (0, 1)) == p] for p in (0, 1)}
    try:
        async with asyncio.timeout(30):
            while any(numbers(world, p) != wanted[p] for p in (0, 1)):
                world.logs["out", 0] = outputs[: len(world.logs["out", 0]) + rng.randrange(6)]
                for copier in copiers:
                    copier.is_leader = rng.random() < 0.6
                    copier.router.wake()
                await asyncio.sleep(0.003)
                for p in (0, 1):
                    assert numbers(world, p) == wanted[p][: len(numbers(world, p))], "one is missing, twice, or out of order"
    finally:
        for task in tasks:
            task.cancel()
    assert min(map(len, wanted.values())) > 10
    assert [copier.failed for copier in copiers] == [[], [], []]
    assert {name for record in world.logs["warnings", 0] for name, _ in record.headers} == {
        "Lift-Output", "Lift-Output-Number", "Lift-Output-Service", "x"
    }  # fmt: skip


async def test_service_output_router_of_a_follower_copies_nothing() -> None:
    world = World()
    world.logs["out", 0] = [output(0)]
    copier = Copier(world)
    copier.is_leader = False
    task = asyncio.create_task(copier.router.run())
    await until(lambda: copier.asked >= 3)
    assert world.logs["warnings", 0] == []
    copier.is_leader = True
    copier.router.wake()
    await until(lambda: numbers(world, 0) == [0])
    task.cancel()


async def test_service_output_router_buffers_at_most_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit, 4,096 outputs may use a gigabyte."""
    world = World()
    world.logs["out", 0] = [output(number) for number in range(30)]
    written: list[int] = []

    async def read_range(
        stream: str, partition: int, start: int, end: int, uid: str, exact: bool = False
    ) -> AsyncIterator[Any]:
        for first in range(start, end, 10):
            written.append(len(world.logs["warnings", 0]))
            yield SimpleNamespace(records=lambda first=first: iter(world.logs[stream, partition][first : first + 10]))

    monkeypatch.setattr(world, "read_range", read_range)
    task = asyncio.create_task(Copier(world).router.run())
    await until(lambda: len(world.logs["warnings", 0]) >= 30)
    task.cancel()
    assert written == [0, 10, 20]


@pytest.mark.parametrize(("subject", "foreign", "error"), [("warn.*", False, ConfigError), ("warn", True, OutputConflictError)])
async def test_service_output_router_with_an_unusable_target_stream_ends_the_service(
    subject: str, foreign: bool, error: type[LiftError]
) -> None:
    world = World(subject=subject)
    world.logs["out", 0] = [output(0)]
    if foreign:
        world.logs["warnings", 1] = [Record(0, 0, None, b"mine", (), "warn.1", None, 1)]
    copier = Copier(world)
    async with asyncio.timeout(30):
        await copier.router.run()
    assert [type(failed) for failed in copier.failed] == [error]
    assert world.logs["warnings", 0] == []


async def test_service_output_router_logs_outputs_deleted_by_retention_before_the_copy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.logs["out", 0] = [output(number) for number in range(6)]
    world.starts["out"] = 4
    task = asyncio.create_task(Copier(world).router.run())
    await until(lambda: numbers(world, 0) == [4, 5])
    task.cancel()
    assert "outputs deleted before they were copied route=alerts stream=out log_start=4: continuing there" in caplog.text


async def test_service_output_router_copies_an_old_output_to_a_partition_that_retention_has_emptied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The age of an output does not show that it was copied, because the copy may have failed for days."""
    world = World()
    now_ns = time.time_ns()
    world.logs["out", 0] = [output(0)._replace(timestamp_ns=now_ns - 180 * 10**9)]
    task = asyncio.create_task(Copier(world).router.run())
    await until(lambda: numbers(world, 0) == [0])
    task.cancel()
    world.starts["warnings"] = 1
    world.logs["out", 0] += [output(1)._replace(timestamp_ns=now_ns - 120 * 10**9), output(2)._replace(timestamp_ns=now_ns)]
    task = asyncio.create_task(Copier(world).router.run())
    await until(lambda: 2 in numbers(world, 0))
    task.cancel()
    assert 1 in numbers(world, 0), "it was not copied before"
    assert "outputs deleted" not in caplog.text


class Alarm(Service):
    def on_record(self, record: Record) -> None:
        self.emit(b"a", to="alerts")
        self.emit(b"b")

    def take_snapshot(self) -> bytes:
        return b""


def test_service_emit_to_an_unknown_route_is_rejected() -> None:
    outbox = Outbox(SOURCE)
    machine = ServiceMachine(Alarm(), Identity("bank", "in", "u1", 0), snapshot_interval_records=100, outbox=outbox)
    machine.routes = {"alerts"}
    machine.start(None)
    machine.change_role(Role.LEADER, 1)
    machine.apply([Record(0, 1, None, b"x", (), "", None, 1)])
    assert [dict(outbox.headers_of(o)).get("Lift-Output-To") for o in outbox.read(0, 9)] == [b"alerts", None]
    follower = Outbox(SOURCE)
    again = ServiceMachine(Alarm(), Identity("bank", "in", "u1", 0), snapshot_interval_records=100, outbox=follower)
    again.start(None)
    again.apply([Record(0, 1, None, b"x", (), "", None, 1)])
    for number, made in enumerate(outbox.read(0, 9)):
        follower.check_output(Record(number, 1, made.key, made.value, tuple(outbox.headers_of(made)), "out", None, 1))
    assert follower.compared_end == 2
    machine.routes = set()
    with pytest.raises(ServiceFailedError, match="--route alerts=STREAM on all nodes"):
        machine.apply([Record(1, 1, None, b"x", (), "", None, 1)])


@pytest.mark.parametrize(
    ("routes", "text"),
    [((Route("a", "in"),), "already uses stream"), ((Route("a", "out"),), "already uses stream"),
     ((Route("a", "dead"),), "already uses stream"),
     ((Route("a", "x"), Route("b", "x")), "already uses stream"), ((Route("a", "x"), Route("a", "y")), "Names must be unique"),
     ((Route("../a", "x"),), "route"), (tuple(Route(f"r{n}", f"s{n}") for n in range(17)), "at most 16")],
)  # fmt: skip
def test_service_settings_with_invalid_routes_are_rejected(routes: tuple[Route, ...], text: str) -> None:
    with pytest.raises(LiftError, match=text):
        ServiceSettings("s", "in", "n1", Path("/x"), output_stream="out", dead_letter_stream="dead", routes=routes)


def test_service_settings_with_a_route_but_no_output_stream_raise_config_error() -> None:
    with pytest.raises(ConfigError, match="--output-stream"):
        ServiceSettings("s", "in", "n1", Path("/x"), routes=(ALERTS,))


@pytest.mark.parametrize("wrong", [{"answers": False}, {"config": SimpleNamespace(compaction=True)}])
async def test_service_output_router_rejects_a_target_stream_with_compaction_or_without_acks(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    real = world.stream

    async def stream(name: str) -> Any:
        return SimpleNamespace(**{**vars(await real(name)), **wrong})

    monkeypatch.setattr(world, "stream", stream)
    copier: Any = Copier(world)
    with pytest.raises(ConfigError, match="warnings cannot be used"):
        await copier.router._learn()


@pytest.mark.parametrize("seed", range(4))
async def test_service_output_router_after_partitions_were_added_copies_each_output_once(seed: int) -> None:
    """A leader fails between the copies of one batch of outputs, and the next one knows more partitions."""
    rng = random.Random(seed)
    world = World()
    world.rng = random.Random(seed)
    outputs = [output(number, rng.choice(("alerts", "other")), b"%d" % number) for number in range(240)]
    wanted = [record.offset for record in outputs if record.header("Lift-Output-To") == b"alerts"]
    for count in (1, 2, 4, 6):
        world.partitions = count
        for partition in range(count):
            world.logs.setdefault(("warnings", partition), [])
        for is_last in (False, False, True):
            world.logs["out", 0] = outputs[: len(world.logs["out", 0]) + 20]
            emitted = [number for number in wanted if number < len(world.logs["out", 0])]
            task = asyncio.create_task(Copier(world).router.run())
            if is_last and count == 6:
                await until(lambda emitted=emitted: len({*all_numbers(world)}) == len(emitted))  # type: ignore[misc]
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0.01)  # late copies of this leader arrive
    assert sorted(all_numbers(world)) == wanted


def all_numbers(world: World) -> list[int]:
    return [number for partition in range(world.partitions) for number in numbers(world, partition)]
