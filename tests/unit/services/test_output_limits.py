"""Test outputs of a service at their limits: sizes, the last partition, error texts."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.services.outbox import Output
from liftpy.core.services.rules import check_outputs
from liftpy.errors import ConfigError
from liftpy.service import Outbox, Service
from liftpy.service.output_writer import Destination, Emitter, frame_of, message_that_fits
from liftpy.service.settings import ServiceSettings


def output(number: int, value: bytes = b"v") -> Output:
    return Output(number, 10 + number, 0, value, None, ())


def test_service_outbox_is_full_exactly_at_its_limits() -> None:
    one = output(0)
    for room, full in ((one.size_bytes + 1, False), (one.size_bytes, True)):
        outbox = Outbox("u/0", max_bytes=room)
        assert not outbox.full
        outbox.add(output(0))
        assert outbox.full is full
        outbox.outputs_committed(1)
        assert not outbox.full, "what is written takes no room"
        outbox.add(output(1))
        assert outbox.full is full
    for room, full in ((2, False), (1, True)):
        outbox = Outbox("u/0", max_records=room)
        outbox.add(output(0))
        assert outbox.full is full


def test_service_output_batch_above_the_message_size_is_split() -> None:
    to = Destination("out", "u1", 0, "out.here")
    rows: list[Any] = [(b"a" * 500, None, ()), (b"b" * 500, b"key", ()), (b"c" * 500, None, ())]
    sizes = [len(frame_of(to, 7, rows[:count])) for count in (1, 2, 3)]
    for count, room, fits in (
        (3, sizes[2], 3), (3, sizes[2] - 1, 1), (2, sizes[1], 2), (2, sizes[1] - 1, 1), (2, sizes[0], 1), (2, 1, 1), (1, 1, 1),
    ):  # fmt: skip
        assert message_that_fits(to, 7, rows[:count], room) == (frame_of(to, 7, rows[:fits]), fits), (count, room)


@pytest.mark.parametrize(
    ("stream", "partition", "error"),
    [
        ({}, 1, None), ({}, 2, "Output stream out has 2 partitions, but partition 2 is needed. Add partitions (liftpy stream add-partitions)."),  # noqa: E501
        ({}, 9, "Output stream out has 2 partitions, but partition 9 is needed. Add partitions (liftpy stream add-partitions)."),
        ({"subject": "shop.*.out"}, 1, "has the subject shop.*.out.1 with wildcards"),
        ({"subject": "shop.>"}, 0, "without wildcards"), ({"answers": False}, 1, "ack policy none"),
        ({"compaction": True}, 1, "is compacted"),
    ],
)  # fmt: skip
async def test_service_output_destination_with_a_missing_or_unsuitable_partition_raises_config_error(
    stream: dict[str, Any], partition: int, error: str | None
) -> None:
    given = {"subject": "shop.out", "answers": True, "compaction": False} | stream

    async def described(name: str) -> Any:
        assert name == "out"
        return SimpleNamespace(
            subject=given["subject"], uid="o1", partitions=[None, None], answers=given["answers"],
            config=SimpleNamespace(compaction=given["compaction"]),
        )  # fmt: skip

    client: Any = SimpleNamespace(stream=described)
    settings = ServiceSettings("s", "in", "n1", Path("/nowhere"), partition=partition, output_stream="out")
    nothing: Any = None
    emitter = Emitter(client, nothing, settings, Outbox("u/0"), nothing)
    if error is None:
        await emitter._open()
        assert emitter._address == Destination("out", "o1", partition, f"shop.out.{partition}")
    else:
        with pytest.raises(ConfigError, match=re.escape(error)):
            await emitter._open()


def test_check_outputs_without_an_output_stream_raises_with_the_reason() -> None:
    class Says(Service):
        emits = True

    class Calls(Service):
        def on_record(self, record: Any) -> None:
            self.emit(b"x")

    for service, _ in ((Says, "Says says emits = True, and"), (Calls, "Calls calls emit, and")):
        with pytest.raises(ConfigError, match=", but the service has no output stream"):
            check_outputs(service, "")
