"""Test outputs of a service at their limits: sizes, the last partition, error texts."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError
from liftpy.service import Outbox
from liftpy.service.output_writer import Destination, Emitter
from liftpy.service.settings import ServiceSettings


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
