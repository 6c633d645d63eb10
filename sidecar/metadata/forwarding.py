"""Forwarding: any node proposes; the request reaches whoever leads, under one operation id, until a deadline."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.client import Client

from liftpy.cluster.operations import OPERATION_ID_SIZE_BYTES
from liftpy.errors import LiftError
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import Subjects
from sidecar.tasks import attended

ATTEMPT_S = 1.0
_PAUSE_S = 0.05
_AGAIN = (pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN, pb.ControlResponse.NOT_METADATA_LEADER)

DecideHere = Callable[[pb.ControlRequest, float], Awaitable[pb.ControlResponse | None]]


def error_response(request: pb.ControlRequest, error: pb.ControlResponse.Error, detail: str) -> pb.ControlResponse:
    """An answer that says why there is none."""
    return pb.ControlResponse(operationId=request.operationId[:OPERATION_ID_SIZE_BYTES], error=error, detail=detail)


class Forwarder:
    """Asks on ``<ns>.control.node.<node_id>``."""

    def __init__(self, connection: Client, subjects: Subjects, node_id: str) -> None:
        self._connection = connection
        self._subject = subjects.control_node(node_id)
        self._leader = ""
        self._changed = asyncio.Event()

    def leader_is(self, node_id: str) -> None:
        """The metadata leader as known here. What the one before has not answered is asked again at once: it may be gone."""
        if node_id and node_id != self._leader:
            self._leader = node_id
            self._changed.set()
            self._changed = asyncio.Event()

    async def until_decided(
        self, request: pb.ControlRequest, timeout_s: float, here: DecideHere | None = None
    ) -> pb.ControlResponse:
        """Repeat ``request`` until somebody has decided it or the time is over. ``here``: decides if this node leads."""
        if not request.operationId:
            request.operationId = secrets.token_bytes(16)
        deadline = time.monotonic() + timeout_s
        response = error_response(request, pb.ControlResponse.UNAVAILABLE, "no metadata leader answered")
        maybe_applied = False
        while (left_s := deadline - time.monotonic()) > 0:
            given = await here(request, left_s) if here is not None else None
            response = given if given is not None else await self._ask(request, min(left_s, ATTEMPT_S))
            if response.error not in _AGAIN:
                return response
            maybe_applied = maybe_applied or response.error == pb.ControlResponse.OUTCOME_UNKNOWN
            await asyncio.sleep(min(_PAUSE_S, max(deadline - time.monotonic(), 0)))
        if maybe_applied:
            response.error = pb.ControlResponse.OUTCOME_UNKNOWN
        return response

    async def _ask(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        asking = attended(self._connection.request(self._subject, frames.sealed(request), timeout=timeout_s))
        changing = attended(self._changed.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return error_response(request, pb.ControlResponse.OUTCOME_UNKNOWN, "the metadata leader changed meanwhile")
            return frames.decode(asking.result().data, pb.ControlResponse)
        except (nats.errors.NoRespondersError, nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            return error_response(request, pb.ControlResponse.UNAVAILABLE, "no controller can be reached")
        except (nats.errors.Error, TimeoutError, LiftError) as error:
            detail = f"no answer from the metadata leader: {type(error).__name__}"
            return error_response(request, pb.ControlResponse.OUTCOME_UNKNOWN, detail)
        finally:
            asking.cancel()
            changing.cancel()
