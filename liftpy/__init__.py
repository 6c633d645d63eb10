"""liftpy: durable, replicated streams for plain NATS.

    import liftpy

    async with liftpy.connect("nats://127.0.0.1:4222") as client:
        await client.create_stream("orders", "shop.orders", exist_ok=True)
        ack = await client.publish("orders", b"one", key=b"k")

Package ``liftpy`` is the client library and the pure logic. Package ``sidecar`` is the node. Scripts without asyncio
use ``liftpy.client.sync``. Spark jobs use the format ``liftpy`` (``liftpy.spark``). ``import liftpy`` alone imports no
submodule: names are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy.client import (
        Bounds,
        Client,
        ConsumedRecord,
        Consumer,
        Credentials,
        Cursor,
        Group,
        GroupBatch,
        GroupOptions,
        Job,
        LeaseLostError,
        ManyConsumer,
        PartitionInfo,
        PlacementOptions,
        Position,
        Producer,
        ProducerOptions,
        PublishAck,
        Publisher,
        PublishOptions,
        Queue,
        QueueOptions,
        ReadOptions,
        Record,
        StreamInfo,
        connect,
    )
    from liftpy.config import AckPolicy, Codec, CommitPolicy, FlushPolicy, StreamConfig
    from liftpy.errors import (
        AlreadyExistsError,
        ClientClosedError,
        ConfigError,
        LiftError,
        LogTruncatedError,
        NotAllowedError,
        NotFoundError,
        OffsetOutOfRangeError,
        OutcomeUnknownError,
        PublishRejectedError,
        UnavailableError,
    )

__version__ = "0.1.0"
__all__ = [
    "AckPolicy",
    "AlreadyExistsError",
    "Bounds",
    "Client",
    "ClientClosedError",
    "Codec",
    "CommitPolicy",
    "ConfigError",
    "ConsumedRecord",
    "Consumer",
    "Credentials",
    "Cursor",
    "FlushPolicy",
    "Group",
    "GroupBatch",
    "GroupOptions",
    "Job",
    "LeaseLostError",
    "LiftError",
    "LogTruncatedError",
    "ManyConsumer",
    "NotAllowedError",
    "NotFoundError",
    "OffsetOutOfRangeError",
    "OutcomeUnknownError",
    "PartitionInfo",
    "PlacementOptions",
    "Position",
    "Producer",
    "ProducerOptions",
    "PublishAck",
    "PublishOptions",
    "PublishRejectedError",
    "Publisher",
    "Queue",
    "QueueOptions",
    "ReadOptions",
    "Record",
    "StreamConfig",
    "StreamInfo",
    "UnavailableError",
    "__version__",
    "connect",
]
_MODULES = ("liftpy.errors", "liftpy.config", "liftpy.client")


if not TYPE_CHECKING:  # or mypy takes every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for module in map(importlib.import_module, _MODULES):
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module 'liftpy' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, and the public modules that are imported."""
    imported = {name for name in ("client", "config", "errors", "service", "spark", "testing") if name in globals()}
    return sorted({*__all__, *imported, *(name for name in globals() if name.startswith("__"))})
