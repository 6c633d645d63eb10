"""ControlDesk: control requests that other nodes and clients send on ``<ns>.control``. Every controller hears them; whoever
leads the group answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client

from liftpy.errors import LiftError
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import Subjects
from sidecar.ending import end_tasks
from sidecar.raft.forwarding import DecideHere, error_response

_TIMEOUT_S = 2.0
_MAX_WAITING = 4096
"""Requests that may be under way at once; more are answered UNAVAILABLE."""


class ControlDesk:
    """``leads``: whether this controller leads the group; ``decide``: has a request decided here; ``alone``: what it can say
    without a leader, None where nothing."""

    def __init__(
        self,
        connection: Client,
        subjects: Subjects,
        may_answer: Callable[[bytes], bool],
        leads: Callable[[], bool],
        decide: DecideHere,
        alone: Callable[[pb.ControlRequest], pb.ControlResponse | None],
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._connection = connection
        self._subject = subjects.control()
        self._may_answer = may_answer
        self._leads = leads
        self._decide = decide
        self._alone = alone
        self._under_way: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen."""
        await self._connection.subscribe(self._subject, cb=self._received)

    async def close(self) -> None:
        """Give up what is under way: who asked asks the next leader."""
        await end_tasks(self._under_way)

    async def _received(self, message: Any) -> None:
        if not message.reply or not self._may_answer(message.reply.encode()):
            return
        try:
            request = frames.decode(message.data, pb.ControlRequest)
        except LiftError:
            self.counters["control requests refused"] += 1
            return
        if not self._leads():
            await self._reply(message.reply, self._alone(request))
        elif len(self._under_way) >= _MAX_WAITING:
            self.counters["control requests over the bound"] += 1
            busy = error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader is overloaded")
            await self._reply(message.reply, busy)
        else:
            task = asyncio.get_running_loop().create_task(self._answer(message.reply, request))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _answer(self, reply: str, request: pb.ControlRequest) -> None:
        await self._reply(reply, await self._decide(request, _TIMEOUT_S))

    async def _reply(self, reply: str, response: pb.ControlResponse | None) -> None:
        if response is not None:
            await self._connection.publish(reply, frames.encode(response))
