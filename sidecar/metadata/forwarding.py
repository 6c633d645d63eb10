"""Forwarder: sends a request of any node to the metadata leader (``liftpy.core.metadata.forwarding``)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.client import Client

from liftpy.config import NS_PER_S
from liftpy.core.metadata.forwarding import ATTEMPT_NS, Forwarding
from liftpy.core.metadata.idempotency_cache import OPERATION_ID_SIZE_BYTES
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import LiftError
from sidecar.runtime import clock
from sidecar.runtime.tasks import attended

DecideHere = Callable[[pb.ControlRequest, float], Awaitable[pb.ControlResponse | None]]


class Forwarder:
    """Sends requests on ``<ns>.control.node.<node_id>``."""

    def __init__(self, connection: Client, subjects: Subjects, node_id: str) -> None:
        self._connection = connection
        self._subject = subjects.control_node(node_id)
        self._leader = ""
        self._changed = asyncio.Event()

    def leader_is(self, node_id: str) -> None:
        """Set the known metadata leader. Unanswered requests to the previous one are repeated at once."""
        if node_id and node_id != self._leader:
            self._leader = node_id
            self._changed.set()
            self._changed = asyncio.Event()

    async def until_decided(
        self, request: pb.ControlRequest, timeout_s: float, here: DecideHere | None = None
    ) -> pb.ControlResponse:
        """Repeat ``request`` until a controller has decided it or the time is over. ``here``: decides if this node leads."""
        if not request.operationId:
            request.operationId = secrets.token_bytes(16)
        way = Forwarding(request, clock.now_ns() + round(timeout_s * NS_PER_S))
        while not way.decided and (left_ns := way.left_ns(clock.now_ns())):
            given = await here(request, left_ns / NS_PER_S) if here is not None else None
            if given is not None:
                way.answered(given)
            else:
                await self._ask(way, min(left_ns, ATTEMPT_NS) / NS_PER_S)
            if not way.decided:
                await asyncio.sleep(way.pause_ns(clock.now_ns()) / NS_PER_S)
        return way.response

    async def _ask(self, way: Forwarding, timeout_s: float) -> None:
        asking = attended(self._connection.request(self._subject, frames.sealed(way.request), timeout=timeout_s))
        changing = attended(self._changed.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                way.unanswered("the metadata leader changed meanwhile", sent=True)
                return
            response = frames.decode(asking.result().data, pb.ControlResponse)
            if response.operationId == way.request.operationId[:OPERATION_ID_SIZE_BYTES]:
                way.answered(response)
            else:
                way.unanswered("an answer to another request came", sent=True)
        except (nats.errors.NoRespondersError, nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            way.unanswered("no controller can be reached", sent=False)
        except (nats.errors.Error, TimeoutError, LiftError) as error:
            way.unanswered(f"no answer from the metadata leader: {type(error).__name__}", sent=True)
        finally:
            asking.cancel()
            changing.cancel()
