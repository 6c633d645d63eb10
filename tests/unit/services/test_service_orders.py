"""Test which orders of the node a service accepts, and every field of an order, a rejection and an ack [A9, R9]."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.positions import Bounds
from liftpy.core.services.machine import LogTimers
from liftpy.core.services.outbox import Outbox, Output
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import ConfigError, LiftError, NotFoundError
from liftpy.service import OutputConflictError, Role
from liftpy.service.host import ServiceHost
from liftpy.service.output_writer import Destination, Emitter, OutputNotWrittenError, StreamReplacedError
from liftpy.service.settings import ServiceSettings
from tests.each import each


# ---- orders ------------------------------------------------------------------------------------------------------------------
class Transport:
    def __init__(self) -> None:
        self.connection = SimpleNamespace(new_inbox=lambda: "_INBOX.x")


@pytest.fixture
async def host() -> ServiceHost:
    settings = ServiceSettings("sum", "in", "n1", Path("/nowhere"))
    made: Any = ServiceHost(lambda: None, settings, Transport())  # type: ignore[arg-type,return-value]
    made.told = []
    made.machine = SimpleNamespace(role=Role.FOLLOWER, position=5, identity="sum", outbox=None, ahead_ns=0)

    def change_role(role: Role, epoch: int) -> bool:
        changed = made.machine.role is not role
        made.machine.role = role
        return changed

    made.machine.change_role = change_role
    made._feeder = SimpleNamespace(
        ask_again=lambda: made.told.append("ask again"), verify=lambda at: made.told.append(("verify", at)),
        cut_at=lambda at: made.told.append(("cut", at)), stop_at=lambda at: made.told.append(("stop", at)),
        problem="", snapshot_problem="",
    )  # fmt: skip
    made.acknowledge = lambda: made.told.append("acknowledged")
    return made


def order(host: ServiceHost, **more: Any) -> pb.JoinLog:
    given = {"instance": host._instance, "ackId": 5, "streamUid": "u1", "role": pb.SERVICE_LEADER, "leaseMs": 60_000,
             "stopPosition": -1,
             "logEndOffset": -1, "leaderEpoch": 3}  # fmt: skip
    return pb.JoinLog(**(given | more))


async def test_service_host_ignores_older_instructions_and_instructions_for_another_instance(host: Any) -> None:
    host._join_log(order(host, instance=host._instance + 1))
    assert host.told == []
    assert host.machine.role is Role.FOLLOWER
    host._join_log(order(host))
    assert host.machine.role is Role.LEADER
    host._join_log(order(host, ackId=4, role=pb.SERVICE_FOLLOWER))
    assert host.machine.role is Role.LEADER, "an older order came late"
    host._join_log(order(host, ackId=6, role=pb.SERVICE_FOLLOWER))
    assert host.machine.role is Role.FOLLOWER
    with pytest.raises(NotFoundError):
        host._join_log(order(host, ackId=7, streamUid="u2"))


@pytest.mark.parametrize(("heard_ago_s", "leads"), [(0.0, True), (0.15, True), (0.25, False), (100.0, False)])
async def test_service_host_leads_until_its_lease_expires(
    host: Any, heard_ago_s: float, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host._order, host._last_contact_s = order(host, leaseMs=200), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + heard_ago_s)
    host._apply_order()
    assert host.leads is leads


@pytest.mark.parametrize(("log_end", "stop", "told"), [(-1, -1, None), (5, 9, None), (4, 9, 4), (0, 0, 0)])
async def test_service_host_passes_stop_and_truncation_of_an_instruction_to_the_record_feeder(
    host: Any, log_end: int, stop: int, told: int | None
) -> None:
    host._join_log(order(host, logEndOffset=log_end, stopPosition=stop, role=pb.SERVICE_FOLLOWER))
    assert [at for what, at in (entry for entry in host.told if len(entry) == 2) if what == "cut"] == (
        [] if told is None else [told]
    )
    assert ("stop", None if stop < 0 else stop) in host.told
    assert host.told[-1] == "acknowledged"


@pytest.mark.parametrize(
    ("reason", "error"),
    [(pb.ServiceRefusal.TAKEN, None), (pb.ServiceRefusal.WRONG_STREAM, NotFoundError),
     (pb.ServiceRefusal.MALFORMED, ConfigError), (pb.ServiceRefusal.COMPACTED, ConfigError),
     (pb.ServiceRefusal.TOO_MANY, None), (pb.ServiceRefusal.NO_SUCH_PARTITION, None)],
)  # fmt: skip
async def test_service_host_ends_the_service_only_after_a_permanent_refusal(
    host: Any, reason: Any, error: type[LiftError] | None
) -> None:
    host._service_rejected(pb.ServiceRefusal(reason=reason, instance=host._instance + 1, detail="not for us"))
    assert host.problem == ""
    refusal = pb.ServiceRefusal(reason=reason, instance=host._instance, detail="why")
    await host._message_arrived(SimpleNamespace(data=frames.seal(refusal)))
    if error is None:
        assert host.problem == "why"
        assert not host._ended.done()
    else:
        assert type(host._ended.exception()) is error


# ---- outputs -----------------------------------------------------------------------------------------------------------------
def emitter(answer: client_pb2.Ack | None = None, uid: str = "o1", end: int = 0) -> tuple[Any, list[Any]]:
    asked: list[Any] = []

    async def request(subject: str, payload: bytes, timeout_s: float) -> bytes:
        head, batch = frames.decode_batch_publish(payload)
        asked.append((subject, head, list(parse_batch(batch).records())))
        return frames.encode(answer)  # type: ignore[arg-type]

    async def bounds(stream: str, partition: int) -> Bounds:
        return Bounds(uid, "n1", "n1", 1, 0, end - 1)

    settings = ServiceSettings("s", "in", "n1", Path("/nowhere"), output_stream="out")
    client: Any = SimpleNamespace(bounds=bounds, request=request, max_payload_bytes=1 << 20)
    instance: Any = SimpleNamespace(leads=True, outputs_known=list, outputs_written=list)
    made: Any = Emitter(client, client, settings, Outbox("u/0"), instance)
    made._address = Destination("out", "o1", 0, "out.here")
    return made, asked


RIGHT = {"stream": "out", "partition": 0, "streamUid": "o1", "offset": 3, "recordCount": 2}


@each(
    ("wrong", "error"),
    [({}, None), ({"streamUid": ""}, None), ({"streamUid": "o2"}, OutputNotWrittenError), ({"stream": "x"}, OutputNotWrittenError),
     ({"partition": 1}, OutputNotWrittenError), ({"offset": 4}, OutputConflictError), ({"offset": 2}, OutputConflictError),
     ({"recordCount": 1}, OutputConflictError), ({"recordCount": 0}, OutputConflictError),
     ({"ackError": client_pb2.Ack.INCORRECT_OFFSET}, OutputNotWrittenError)],
)  # fmt: skip
async def test_service_output_writer_rejects_an_ack_of_another_stream_or_partition(
    wrong: dict[str, Any], error: type[LiftError] | None
) -> None:
    made, asked = emitter(client_pb2.Ack(**(RIGHT | wrong)))
    outputs = [Output(3, 9, 0, b"value", b"key", (("a", b"b"),)), Output(4, 9, 1, b"", None, ())]
    (batch,) = made._outputs_in_batches(outputs)
    if error is None:
        await made._write(batch)
    else:
        with pytest.raises(error):
            await made._write(batch)
    subject, head, records = asked[0]
    assert (subject, head.stream, head.partition, head.streamUid, head.expectedOffset) == ("out.here", "out", 0, "o1", 3)
    assert [(r.value, r.key, r.header("a"), r.header("Lift-Output")) for r in records] == [
        (b"value", b"key", b"b", b"u/0/9/0"),
        (b"", None, None, b"u/0/9/1"),
    ]


async def test_service_output_writer_sends_the_first_output_with_expected_offset_zero() -> None:
    made, asked = emitter(client_pb2.Ack(**(RIGHT | {"offset": 0, "recordCount": 1})))
    (batch,) = made._outputs_in_batches([Output(0, 9, 0, b"v", None, ())])
    await made._write(batch)
    assert asked[0][1].HasField("expectedOffset")
    assert asked[0][1].expectedOffset == 0


async def test_service_output_writer_with_another_output_stream_uid_raises_stream_replaced() -> None:
    made, _ = emitter(uid="o2")
    with pytest.raises(StreamReplacedError):
        await made._learn()


# ---- timers ------------------------------------------------------------------------------------------------------------------
def popped(timers: LogTimers, now_ns: int) -> Iterator[tuple[int, str]]:
    while (due := timers.pop_due(now_ns)) is not None:
        yield due


def test_service_log_timers_after_random_operations_equal_a_reference_table() -> None:
    draw, timers, table = random.Random(1), LogTimers(), dict[str, int]()
    for now_ns in range(3000):
        name = f"t{draw.randrange(8)}"
        if draw.random() < 0.6:
            at_ns = now_ns + draw.randrange(40)
            timers.set(name, at_ns)
            table[name] = at_ns
        else:
            timers.cancel(name)
            table.pop(name, None)
        if draw.random() < 0.1:
            due = sorted((at, name) for name, at in table.items() if at <= now_ns)
            assert list(popped(timers, now_ns)) == due
            for _, name in due:
                del table[name]
        assert timers.entries() == tuple(sorted((at, name) for name, at in table.items()))
        assert len(timers._heap) <= 64 + 2 * 8 + 2, "what was cancelled takes no space"


def test_service_log_timers_at_their_limit_reject_new_timers_but_move_existing_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.services.machine.MAX_TIMERS", 3)
    timers = LogTimers()
    for name in "abc":
        timers.set(name, 5)
    with pytest.raises(ValueError, match="timers that"):
        timers.set("d", 1)
    timers.set("a", 9)
    assert [timers.pop_due(9) for _ in range(4)] == [(5, "b"), (5, "c"), (9, "a"), None]
