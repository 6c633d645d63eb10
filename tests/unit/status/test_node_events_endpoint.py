"""Test node events over NATS: the role status reads them, and only operators see who read records."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.runtime.settings import NodeSettings
from sidecar.status.status_api import StatusHandler
from tests.unit.status.fake_bus import Bus

READ = {"stream": "orders", "partition": 2, "sender": "alice", "query": 'key="k7" limit=20'}


class EventsNode:
    """A node that answers over NATS."""

    def __init__(self, data: Path) -> None:
        self.bus, self.handler = Bus(), StatusHandler(NodeSettings("n1", data))
        self.handler.listen(self.bus, Subjects("ns"), (InboxRule(("_INBOX.",)),))  # type: ignore[arg-type]

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        count = len(self.bus.sent)
        self.bus.listening[subject](subject.encode(), b"_INBOX.a", json.dumps(question).encode(), b"")
        while len(self.bus.sent) == count:
            await asyncio.sleep(0)
        return dict(json.loads(self.bus.sent[-1][1]))


async def test_node_event_about_records_read_by_an_operator_is_returned_only_to_operators(tmp_path: Path) -> None:
    handler = EventsNode(tmp_path)
    assert await handler.ask("ns.control.settings.n1", {"records_read": READ}) == {"noted": True}
    handler.handler.events.add("disk_low")
    question = {"node_events": {"after": -1, "since_ns": 0}}
    told = (await handler.ask("ns.control.settings.n1", question))["node_events"]["events"]
    assert [one["kind"] for one in told] == ["records_read", "disk_low"]
    assert (told[0]["stream"], told[0]["partition"], told[0]["sender"], told[0]["detail"]) == (
        "orders",
        2,
        "alice",
        READ["query"],
    )
    shown = (await handler.ask("ns.status.n1", question))["node_events"]["events"]
    assert [one["kind"] for one in shown] == ["disk_low"]


async def test_node_event_about_records_read_with_an_invalid_field_is_not_stored(tmp_path: Path) -> None:
    handler = EventsNode(tmp_path)
    for wrong in ({**READ, "partition": -1}, {**READ, "stream": "a b"}, {"stream": "orders"}, [], 4):
        assert "error" in await handler.ask("ns.control.settings.n1", {"records_read": wrong})
    assert handler.handler.events.after(-1, 0, 9)["events"] == []
