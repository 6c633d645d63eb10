"""Send more of one kind than its bound holds, to a cluster of three, and say what became of it: see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import nats
from nats.aio.msg import Msg

from liftpy.client import Client, ProducerOptions, connect
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.flood.__main__ import peak_mib

AT_ONCE = 1000
PATIENCE_S = 60.0
SLACK_MIB = 96
"""A node may grow by so much besides the bound: buffers of its connections, columns on their way."""
SETTINGS = {
    "ids": "PARTITION_MESSAGE_ID_BYTES",
    "subjects": "PARTITION_SUBJECT_INDEX_BYTES",
    "producers": "PARTITION_PRODUCER_BYTES",
}


@dataclass
class Reached:
    """What came of one kind. ``refused``: text of an error -> how many; ``again``: what was taken, sent once more, was known."""

    of: str
    sent: int
    taken: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    stored: int = 0
    again: bool = False
    goes_on: bool = False
    """What needs no more memory is taken all the same."""
    grown_mib: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    """LeaderEpoch before it."""
    elections: int = 0
    """That it has led to."""
    setting: str = ""
    allowed_mib: int = 0

    @property
    def wrong(self) -> str:
        """What should not be; '': nothing."""
        found = []
        if not 0 < self.taken < self.sent:
            found.append("the bound was not reached")
        if self.taken + sum(self.refused.values()) != self.sent:
            found.append("some were not answered")
        if not all(self.setting in text for text in self.refused):
            found.append(f"a refusal does not name {self.setting}")
        if not self.again:
            found.append("what was taken is not known")
        if not self.goes_on:
            found.append("what needs no memory is refused")
        if self.stored != self.taken + 1:
            found.append(f"stored: {self.stored}")
        if self.elections:
            found.append("somebody was deposed")
        if any(mib > self.allowed_mib for mib in self.grown_mib.values()):
            found.append("a node has grown")
        return ", ".join(found)


class Asker:
    """Publishes with an answer, many at once. nats-py, as an application has it."""

    def __init__(self, nc: Any) -> None:
        self._nc = nc

    async def all(self, messages: Iterable[tuple[str, bytes, dict[str, str]]]) -> list[dict[str, Any]]:
        """The answer to each (subject, payload, headers), in order; that nobody answered is one too."""
        found: list[dict[str, Any]] = []
        some: list[Awaitable[Msg]] = []
        for subject, payload, headers in messages:
            some.append(self._nc.request(subject, payload, timeout=PATIENCE_S, headers=headers or None))
            if len(some) == AT_ONCE:
                found += map(_said, await asyncio.gather(*some, return_exceptions=True))
                some = []
        return found + list(map(_said, await asyncio.gather(*some, return_exceptions=True)))


def _said(answer: Msg | BaseException) -> dict[str, Any]:
    if isinstance(answer, Msg):
        said: dict[str, Any] = json.loads(answer.data)
        return said
    if not isinstance(answer, nats.errors.Error):
        raise answer
    return {"error": {"description": f"no answer: {answer!r}"}}


async def ids(count: int, stream: str, client: Client, asker: Asker) -> Reached:
    """Each message under an id of its own, within one window."""
    await client.create_stream(stream, f"{stream}.>")
    out = Reached("ids", count, epoch=await led(client, stream))

    def message(number: int) -> tuple[str, bytes, dict[str, str]]:
        return f"{stream}.a", b"%d" % number, {"Nats-Msg-Id": f"{number:036d}"}

    taken = judged(out, await asker.all(map(message, range(count))))
    again = await asker.all(map(message, taken[:: max(1, len(taken) // 100)]))
    out.again = all(answer.get("duplicate") for answer in again)
    out.goes_on = "error" not in (await asker.all([(f"{stream}.a", b"without an id", {})]))[0]
    return out


async def subjects(count: int, stream: str, client: Client, asker: Asker) -> Reached:
    """Each message expects to be the first of its subject."""
    await client.create_stream(stream, f"{stream}.>")
    out = Reached("subjects", count, epoch=await led(client, stream))

    def message(number: int) -> tuple[str, bytes, dict[str, str]]:
        return f"{stream}.{number:040d}", b"%d" % number, {"Nats-Expected-Last-Subject-Sequence": "0"}

    taken = judged(out, await asker.all(map(message, range(count))))
    again = await asker.all(map(message, taken[:: max(1, len(taken) // 100)]))
    out.again = bool(again) and all("error" in answer for answer in again)
    out.goes_on = "error" not in (await asker.all([(f"{stream}.{'n' * 40}", b"expects nothing", {})]))[0]
    return out


async def producers(count: int, stream: str, client: Client, asker: Asker) -> Reached:
    """Each record by a producer of its own; the first of them sends one more."""
    await client.create_stream(stream, stream)
    out, refused = Reached("producers", count, epoch=await led(client, stream)), Counter[str]()
    options = ProducerOptions(patience_s=1.0, begin="repeat")

    async def one(number: int, *values: bytes) -> bool:
        """Whether they are there now. Who is refused by the bound is told so for as long as his patience lasts: that is short, and on a
        busy machine somebody else's may be over, who begins again."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with client.producer(stream, id=f"p{number}", options=options) as producer:
                    for value in values:
                        await producer.send(value)
            except LiftError as error:
                text = str(error).split(": ", 1)[-1]
                if SETTINGS["producers"].lower() in text or time.monotonic() > give_up_at:
                    refused[text] += 1
                    return False
            else:
                return True

    known: list[int] = []
    for first in range(0, count, 100):
        some = range(first, min(first + 100, count))
        done = await asyncio.gather(*(one(number, b"%d" % number) for number in some))
        known += [number for number, taken in zip(some, done, strict=True) if taken]
    out.taken, out.refused = len(known), dict(refused)
    out.again = await one(known[0], b"%d" % known[0])
    out.goes_on = await one(known[0], b"%d" % known[0], b"one more")
    return out


KINDS: dict[str, Callable[[int, str, Client, Asker], Awaitable[Reached]]] = {
    "ids": ids,
    "subjects": subjects,
    "producers": producers,
}


def judged(out: Reached, answers: list[dict[str, Any]]) -> list[int]:
    """Counts what was answered; numbers of those that were taken."""
    refused = Counter(answer["error"]["description"] for answer in answers if "error" in answer)
    taken = [number for number, answer in enumerate(answers) if "error" not in answer]
    out.taken, out.refused = len(taken), dict(refused)
    return taken


async def led(client: Client, stream: str) -> int:
    """Wait until the new stream answers a question; its LeaderEpoch."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(LiftError):
                await client.bounds(stream)
                return (await client.stream(stream)).partitions[0].leader_epoch
            await asyncio.sleep(0.05)


async def reach(cluster: DevCluster, kind: str, count: int, bound_bytes: int) -> Reached:
    """One kind, on a stream of its own."""
    stream = f"many-{kind}"
    nc = await nats.connect(cluster.nats_url)
    async with connect(cluster.nats_url) as client:
        before = {name: peak_mib(node.pid) for name, node in cluster.nodes.items()}
        out = await KINDS[kind](count, stream, client, Asker(nc))
        out.stored = (await client.bounds(stream)).high_watermark + 1
        out.elections = (await client.stream(stream)).partitions[0].leader_epoch - out.epoch
        if any(text.startswith("no answer") for text in out.refused):
            for name in cluster.nodes:
                print(name, json.dumps(await client.admin.node_status(name)), flush=True)
    await nc.close()
    out.grown_mib = {name: peak_mib(node.pid) - before[name] for name, node in cluster.nodes.items()}
    out.setting, out.allowed_mib = SETTINGS[kind].lower(), SLACK_MIB + (bound_bytes >> 20)
    return out


def settings(bound_bytes: int) -> dict[str, str]:
    """Of every node."""
    return {f"LIFTPY_REPLICATION_{name}": str(bound_bytes) for name in SETTINGS.values()}


def main() -> None:
    """Parse, send, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", default="ids,subjects,producers", help="kinds, with commas")
    parser.add_argument("--count", type=int, default=0, help="0: twice what the bound holds, about")
    parser.add_argument("--bound-mib", type=float, default=16.0)
    given = parser.parse_args()
    bound_bytes = round(given.bound_mib * (1 << 20))
    worst = 0
    with DevCluster(3, settings=settings(bound_bytes)) as cluster:
        for kind in given.of.split(","):
            count = given.count or default_count(kind, bound_bytes)
            out = asyncio.run(reach(cluster, kind, count, bound_bytes))
            print(json.dumps(asdict(out)), out.wrong or "as it should be", flush=True)
            worst = max(worst, bool(out.wrong))
        worst = max(worst, bool(cluster.ended_nodes()))
    sys.exit(worst)


def default_count(kind: str, bound_bytes: int) -> int:
    """About twice what is kept in so many bytes."""
    return bound_bytes // {"ids": 180, "subjects": 180, "producers": 1700}[kind] * 2


if __name__ == "__main__":
    main()
