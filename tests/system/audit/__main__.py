"""Kill metadata leaders while operators ask for this and that, and judge the stream of events: see the package.

Judged: each request that was acknowledged has one event of its kind, none has two; places rise; no event is lost (``gap``); the figure
of lost events is 0 on each node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from liftpy.client import Client, connect
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster

SETTINGS = {"LIFTPY_REPLICATION_EVENTS_STREAM": "true", "LIFTPY_REPLICATION_SESSION_S": "3", "LIFTPY_LOG_LEVEL": "warning"}
_READY_S = 60.0
_PAUSE_S = 0.02


@dataclass
class Outcome:
    """What was asked for, and what the stream holds."""

    kills: int = 0
    acked: list[tuple[str, str]] = field(default_factory=list)
    """(request, stream) of what was acknowledged."""
    unsure: int = 0
    """Requests whose outcome is not known."""
    events: list[dict[str, Any]] = field(default_factory=list)
    dropped: float = 0.0
    longest_wait_s: float = 0.0
    """From a kill to the first request that was acknowledged after it."""

    def wrong(self) -> list[str]:
        """What must not be, for people; empty: all is well."""
        places = [(event["index"], event["number"]) for event in self.events]
        told = Counter(
            (event["request"], event.get("stream", ""))
            for event in self.events
            if event["kind"] == "request" and event["outcome"] == "done"
        )
        missing = [what for what in self.acked if not told[what]]
        twice = [what for what in self.acked if told[what] > 1]
        indices = Counter(place[0] for place in places)
        holes = [index for index, count in indices.items() if (index, count - 1) not in set(places)]
        checks = {
            f"acknowledged, and no event: {missing[:5]}": missing,
            f"two events of one request: {twice[:5]}": twice,
            "places do not rise": places != sorted(set(places)),
            f"events are missing within entries {holes[:5]}": holes,
            "events were lost": any(event["kind"] == "gap" for event in self.events) or self.dropped,
            "nothing was acknowledged": not self.acked,
            "no change of the leader is told": self.kills and not any(event["kind"] == "node_fenced" for event in self.events),
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def text(self) -> str:
        """As JSON, in short."""
        return json.dumps(asdict(self) | {"acked": len(self.acked), "events": len(self.events)})


async def _operate(client: Client, out: Outcome, done: asyncio.Event) -> None:
    """Make and delete streams, each under a name of its own."""
    number = 0
    while not done.is_set():
        name = f"s{number}"
        number += 1
        for what, ask in (
            ("createStream", lambda name=name: client.create_stream(name, f"made.{name}", replicas=1, ready_s=0)),
            ("deleteStream", lambda name=name: client.admin.delete_stream(name)),
        ):
            try:
                await ask()
            except LiftError:
                out.unsure += 1
                break
            out.acked.append((what, name))
        await asyncio.sleep(_PAUSE_S)


async def kept(client: Client) -> list[dict[str, Any]]:
    """All events of the stream."""
    bounds = await client.bounds(EVENTS_STREAM)
    found = []
    async for part in client.read_range(EVENTS_STREAM, 0, bounds.log_start_offset, bounds.high_watermark + 1):
        found += [json.loads(value) for value in part.values() if value]
    return found


async def _until(condition: Any, what: str) -> Any:
    give_up_at = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(LiftError):
            if value := await condition():
                return value
        if time.monotonic() > give_up_at:
            raise TimeoutError(what)
        await asyncio.sleep(0.05)


def _dropped(cluster: DevCluster) -> float:
    total = 0.0
    for node in cluster.nodes.values():
        with urllib.request.urlopen(node.status_url + "/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(float(line.split()[1]) for line in lines if line.startswith("liftpy_audit_dropped_total "))
    return total


async def run(cluster: DevCluster, kills: int) -> Outcome:
    """``kills`` metadata leaders, one after the other; each begins again."""
    out, done = Outcome(), asyncio.Event()
    async with connect(cluster.nats_url) as client, connect(cluster.nats_url) as other:
        asking = asyncio.create_task(_operate(client, out, done))
        for _ in range(kills):
            before = len(out.acked)
            await _until(lambda before=before: _reached(out, before + 3), "requests are answered")
            leader = await _until(lambda: _leader(other), "somebody leads")
            cluster.nodes[leader].kill()
            out.kills += 1
            killed, acked = time.monotonic(), len(out.acked)
            await _until(lambda acked=acked: _reached(out, acked + 1), "the next leader answers")
            out.longest_wait_s = max(out.longest_wait_s, time.monotonic() - killed)
            await _until(lambda leader=leader: _is_fenced(other, leader), "the killed leader is fenced")
            cluster.nodes[leader].start()
            await asyncio.to_thread(cluster.nodes[leader].wait_ready)
        done.set()
        await asking
        last = out.acked[-1]

        async def told() -> list[dict[str, Any]]:
            found = await kept(other)
            return found if any((event.get("request"), event.get("stream")) == last for event in found) else []

        out.events = await _until(told, "the last request is in the stream")
        out.dropped = _dropped(cluster)
    return out


async def _reached(out: Outcome, count: int) -> bool:
    return len(out.acked) >= count


async def _is_fenced(client: Client, node: str) -> bool:
    return (await client.admin.describe_cluster(linearizable=True)).image.nodes[node].fenced


async def _leader(client: Client) -> str:
    return (await client.admin.describe_cluster(linearizable=True)).metadata_leader


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    options = parser.parse_args()
    with DevCluster(3, settings=SETTINGS) as cluster:
        out = asyncio.run(run(cluster, options.kills))
    print(out.text())
    wrong = out.wrong()
    print("\n".join(wrong) or "right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
