"""Test that a closed JetStream API leaves no task."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule
from liftpy.nats.credentials import Credentials
from sidecar.dev.nats_server import free_ports
from sidecar.node.jetstream_api import JetStreamHandler
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.credentials import Keys


async def test_jetstream_api_closed_during_its_connect_leaves_no_task() -> None:
    settings = NodeSettings("n1", Path("unused"), nats=(f"nats://127.0.0.1:{free_ports(1)[0]}",), jetstream_api="liftpy")
    bus: Any = None  # it listens once it is connected
    handler = JetStreamHandler(bus, settings, InboxRule(DEFAULT_INBOX_PREFIXES), Counter(), Keys(Credentials()))
    before = asyncio.all_tasks()
    handler.open()
    (connecting,) = asyncio.all_tasks() - before
    await asyncio.sleep(0)
    await handler.close()
    assert connecting.done()
