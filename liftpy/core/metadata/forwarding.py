"""Repeats a forwarded request with one operation id until it is decided or its time is over. Pure."""

from __future__ import annotations

from liftpy.config import NS_PER_S
from liftpy.core.metadata.idempotency_cache import OPERATION_ID_SIZE_BYTES
from liftpy.core.wire._pb import cluster_pb2 as pb

ATTEMPT_NS = NS_PER_S
"""Maximum time of one attempt over NATS, in nanoseconds."""
PAUSE_NS = NS_PER_S // 20
"""Pause between two attempts, in nanoseconds."""
UNDECIDED = (pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN, pb.ControlResponse.NOT_METADATA_LEADER)
"""Errors after which the sender repeats a request."""


def error_response(request: pb.ControlRequest, error: pb.ControlResponse.Error, detail: str) -> pb.ControlResponse:
    """Return the response to ``request`` that reports ``error``. ``detail``: text for the sender."""
    return pb.ControlResponse(operationId=request.operationId[:OPERATION_ID_SIZE_BYTES], error=error, detail=detail)


class ForwardedRequest:
    """One request that is forwarded to the metadata leader, in several attempts if needed.

    Send attempts until ``decided`` is True or ``remaining_ns`` returns 0. Then use ``response``.
    """

    def __init__(self, request: pb.ControlRequest, deadline_ns: int) -> None:
        self.request = request
        self._deadline_ns = deadline_ns
        self._last = error_response(request, pb.ControlResponse.UNAVAILABLE, "no metadata leader answered")
        self._maybe_applied = False
        self.decided = False

    def remaining_ns(self, now_ns: int) -> int:
        return max(self._deadline_ns - now_ns, 0)

    def pause_ns(self, now_ns: int) -> int:
        return min(PAUSE_NS, self.remaining_ns(now_ns))

    def response_received(self, response: pb.ControlResponse) -> bool:
        """Process the response to an attempt. Return whether it is the final decision."""
        self._last = response
        self.decided = response.error not in UNDECIDED
        self._maybe_applied = self._maybe_applied or response.error == pb.ControlResponse.OUTCOME_UNKNOWN
        return self.decided

    def attempt_failed(self, detail: str, *, sent: bool) -> None:
        """Record that an attempt over NATS failed. ``detail``: reason.

        ``sent``: a leader may have received the request, and may still decide it.
        """
        error = pb.ControlResponse.OUTCOME_UNKNOWN if sent else pb.ControlResponse.UNAVAILABLE
        self.response_received(error_response(self.request, error, detail))

    @property
    def response(self) -> pb.ControlResponse:
        """Decision of the metadata leader, or an error.

        If an attempt may be in the log, the error says that the outcome is unknown.
        """
        if self._maybe_applied and not self.decided:
            self._last.error = pb.ControlResponse.OUTCOME_UNKNOWN
        return self._last
