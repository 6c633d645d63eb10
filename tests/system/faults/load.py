"""Acknowledged publishes that never stop, and the memory of every ack: which message is at which offset, and when it was so.

Every attempt is a message of its own (its number is in its bytes), so that nothing is sent twice and an offset can belong to one
message only. Who hears nothing for ``attempt_s`` goes on with a new message; an ack that comes later still counts, since
the record is then promised. A message without an ack may be in the log or not: it is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors

from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ProtocolError

_Ack = client_pb2.Ack
_AFTER_REFUSAL_S = 0.02


def payload(number: int) -> bytes:
    """The bytes of message ``number``: 96 of them, all of which depend on it."""
    return b"%011d " % number * 8


@dataclass(frozen=True, slots=True)
class Acked:
    """One ack. Times: monotonic seconds."""

    number: int
    offset: int
    leader_epoch: int
    sent_at: float
    acked_at: float


class Load:
    """``workers`` messages in flight at most, each followed by a pause of ``pace_s``; about ``attempt_s`` is waited for an ack."""

    def __init__(self, url: str, stream: str, subject: str, *, workers: int, pace_s: float, attempt_s: float) -> None:
        self._url = url
        self._stream = stream
        self._subject = subject
        self._workers = workers
        self._pace_s = pace_s
        self._attempt_s = attempt_s
        self._connection: Any = None
        self._inbox = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing = False
        self._next_number = 0
        self._sent: dict[int, tuple[float, asyncio.Future[bool]]] = {}
        self.acked: list[Acked] = []
        """In the order of their arrival."""
        self.counters: Counter[str] = Counter()
        """Refusals by reason, attempts without an answer, acks after ``attempt_s``."""

    async def start(self) -> None:
        """Connect and begin."""
        self._connection = await nats.connect(self._url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(f"{self._inbox}.*", cb=self._answered)
        self.resume()

    def resume(self) -> None:
        """Publish (again)."""
        self._publishing = True
        self._tasks = [asyncio.create_task(self._publish(worker)) for worker in range(self._workers)]

    async def pause(self) -> None:
        """Send nothing more; acks are still taken."""
        self._publishing = False  # not by cancelling: nats-py's publish swallows a cancellation
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def close(self) -> None:
        """End it."""
        await self.pause()
        if self._connection is not None:
            await self._connection.close()

    @property
    def never_answered(self) -> int:
        """Messages that have had no answer of any kind so far."""
        return len(self._sent)

    async def acked_since(self, moment: float, timeout_s: float, count: int = 1) -> Acked:
        """The ``count``-th ack of a message that was sent after ``moment``; TimeoutError when there is none."""
        looked_at = len(self.acked)
        while looked_at and self.acked[looked_at - 1].acked_at > moment:
            looked_at -= 1
        async with asyncio.timeout(timeout_s):
            while True:
                for ack in itertools.islice(self.acked, looked_at, None):
                    count -= ack.sent_at > moment
                    if count == 0:
                        return ack
                looked_at = len(self.acked)
                await asyncio.sleep(0.002)

    async def acked_more(self, count: int, timeout_s: float) -> None:
        """Wait for ``count`` acks more than there are."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(timeout_s):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.005)

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without an ack from the last ack before ``since`` to ``until``."""
        index = len(self.acked)
        while index and self.acked[index - 1].acked_at >= since:
            index -= 1
        times = [ack.acked_at for ack in self.acked[max(index - 1, 0) :] if ack.acked_at <= until]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=until - since)

    async def _publish(self, worker: int) -> None:
        patience_s = self._attempt_s * (0.5 + worker / self._workers)  # or all would try again at the same moments
        while self._publishing:
            number = self._next_number
            self._next_number += 1
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            message = client_pb2.Message(
                offset=-1, value=payload(number), stream=self._stream, ackPolicy=client_pb2.ALL, headers=[]
            )
            self._sent[number] = (time.monotonic(), answer)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._connection.publish(self._subject, frames.encode(message), reply=f"{self._inbox}.{number}")
            await asyncio.wait((answer,), timeout=patience_s)
            if not answer.done():
                self.counters["unanswered"] += 1
                answer.cancel()  # marks it as given up; an ack still counts
            elif answer.result():
                await asyncio.sleep(self._pace_s)
            else:
                await asyncio.sleep(_AFTER_REFUSAL_S)

    async def _answered(self, message: Any) -> None:
        now = time.monotonic()
        number = int(message.subject.rpartition(".")[2])
        sent_at, answer = self._sent.get(number, (0.0, None))
        if answer is None:
            self.counters["answered twice"] += 1
            return
        stored = self._take(number, sent_at, now, message)
        del self._sent[number]
        if answer.done():
            self.counters["late acks" if stored else "late refusals"] += 1
        else:
            answer.set_result(stored)

    def _take(self, number: int, sent_at: float, now: float, message: Any) -> bool:
        if message.headers and message.headers.get("Status") == "503":
            self.counters["nobody listens"] += 1
            return False
        try:
            ack = frames.decode(message.data, _Ack)
        except ProtocolError:
            self.counters["unreadable answer"] += 1
            return False
        if ack.ackError != _Ack.OK:
            self.counters[_Ack.Error.Name(ack.ackError)] += 1
            return False
        self.acked.append(Acked(number, ack.offset, ack.leaderEpoch, sent_at, now))
        return True
