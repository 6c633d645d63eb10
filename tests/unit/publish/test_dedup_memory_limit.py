"""Test publishes whose message ids exceed the memory limit: they are rejected before an append [A2, A3]."""

from __future__ import annotations

import json
import time
from typing import Any

from liftpy.core.publish.dedup_window import size_of
from liftpy.core.publish.log_state_part import NodeStateMemory
from tests.unit.publish.test_duplicates import Bench as DuplicatesBench
from tests.unit.publish.test_ingest import turn


class Bench(DuplicatesBench):
    """Whose node has room for ``count`` batches with one id of one byte."""

    def __init__(self, count: int, **more: Any) -> None:
        super().__init__(**more)
        self.node = NodeStateMemory()
        self.derived.join(self.node)
        self.node.bound_bytes = (count * (296 + size_of([b"a"])) * 8 + 6) // 7

    def error(self, inbox: str) -> dict[str, Any]:
        line = next(line for line in self.bus.lines if line.split()[1] == inbox.encode())
        found: dict[str, Any] = json.loads(line.split(b"\r\n")[1])["error"]
        return found


async def test_message_id_over_the_dedup_memory_limit_is_rejected_with_503() -> None:
    bench = Bench(2)
    for name in "ab":
        bench.send(b"v", name, b"_INBOX.%s" % name.encode())
        await turn()
    bench.send(b"1", "c", b"_INBOX.c")
    bench.send(b"2", "", b"_INBOX.plain")
    bench.send(b"3", "a", b"_INBOX.again")
    bench.send(b"4", "d")
    bench.send(b"5")
    await turn()
    bench.commit()
    assert bench.values() == [b"v", b"v", b"2", b"5"]
    assert bench.answers() == {"_INBOX.a": 1, "_INBOX.b": 2, "_INBOX.c": 10023, "_INBOX.plain": 3, "_INBOX.again": "1D"}
    said = "the message ids of the last 120 s fill what node_dedup_state_bytes allows"
    assert bench.error("_INBOX.c") == {"code": 503, "err_code": 10023, "description": said}
    counters = bench.ingest.counters
    assert (counters.overloaded, counters.dropped, bench.node.refused) == (2, {"overloaded": 1}, {"ids": 2})


async def test_dedup_memory_counts_message_ids_in_flight_until_stored_or_rejected() -> None:
    bench = Bench(1, append=False)
    bench.send(b"v", "a", b"_INBOX.a")
    await turn()
    held_bytes = bench.node.size_bytes
    bench.send(b"v", "b", b"_INBOX.b")
    await turn()
    assert bench.answers() == {"_INBOX.b": 10023}
    assert held_bytes == size_of([b"a"])
    bench.release()
    assert (bench.node.size_bytes, bench.derived.ids.in_hand.size_bytes) == (296 + held_bytes, 0)
    bench.node.bound_bytes *= 4
    bench.send(b"v", "c", b"_INBOX.c")
    await turn()
    assert bench.derived.ids.in_hand.size_bytes == held_bytes
    bench.ingest.drop(bench.held[0].token)
    assert bench.derived.ids.in_hand.size_bytes == 0
    bench.send(b"v", "d")
    await turn()
    bench.ingest.stop()
    assert bench.node.size_bytes == 296 + held_bytes, "what is not in the log is forgotten"


async def test_publish_whose_message_id_may_have_been_evicted_is_dropped_without_an_answer() -> None:
    """A record that may be stored is never rejected [A2]."""
    bench = Bench(2)
    bench.node.bound_bytes = 296 + size_of([b"a"])
    for offset, name in enumerate((b"a", b"b")):  # as a follower does
        bench.derived.appended(offset, 1, time.time_ns(), {offset: name}, b"")
        bench.end = offset + 1
    bench.node.bound_bytes = 1 << 20
    bench.send(b"v", "a", b"_INBOX.a")
    bench.send(b"v", "b", b"_INBOX.b")
    bench.send(b"w", "", b"_INBOX.plain")
    await turn()
    bench.commit()
    assert bench.answers() == {"_INBOX.b": "2D", "_INBOX.plain": 3}
    assert bench.ingest.counters.dropped == {"message_ids_lost": 1}
