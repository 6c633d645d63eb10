"""ControlDesk: control requests that other nodes and clients send on ``<ns>.control``. Every controller hears them; whoever
leads the group answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from liftpy.cluster.subject_index import begins_under
from liftpy.errors import LiftError
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import Subjects
from sidecar.ending import end_tasks
from sidecar.raft.forwarding import DecideHere, error_response
from sidecar.tasks import spawn

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
        self._inbox_prefixes = subjects.inbox_prefixes
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
        elif (refusal := self._refusal(request)) is not None:
            await self._reply(message.reply, refusal)
        elif len(self._under_way) >= _MAX_WAITING:
            self.counters["control requests over the bound"] += 1
            busy = error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader is overloaded")
            await self._reply(message.reply, busy)
        else:
            task = spawn(self._answer(message.reply, request), "answering a control request")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _refusal(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """A stream among the inboxes would take what others wait for. Asked here and not inside apply: the prefixes are a setting,
        and controllers whose settings differ must not decide differently."""
        create = request.createStream
        for prefix in self._inbox_prefixes if request.HasField("createStream") else ():
            if begins_under(create.subject, create.partitions or 1, prefix):
                detail = f"subject {create.subject!r} would overlap with the inboxes under {prefix}: choose another"
                return error_response(request, pb.ControlResponse.INVALID, detail)
        return None

    async def _answer(self, reply: str, request: pb.ControlRequest) -> None:
        await self._reply(reply, await self._decide(request, _TIMEOUT_S))

    async def _reply(self, reply: str, response: pb.ControlResponse | None) -> None:
        if response is None:
            return
        try:
            await self._connection.publish(reply, frames.encode(response))
        except nats.errors.MaxPayloadError:
            detail = "the answer is larger than one message may be: ask in pages, or for one stream"
            refusal = pb.ControlResponse(operationId=response.operationId, error=pb.ControlResponse.INVALID, detail=detail)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._connection.publish(reply, frames.encode(refusal))
        except (nats.errors.Error, OSError):
            pass  # not connected: who asked asks again
