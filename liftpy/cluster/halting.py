"""What goes on where the controllers hold different images and no majority agrees (``divergence.py``). Pure.

Goal: nothing is decided by an image that may be wrong, and it stays so only where a person has to say who is right. Constraint: digests
are compared at certain places of the log, and nothing that is decided fills it any more; a controller that begins anew counts only once
a barrier that it asked for is committed and applied, and tells its digest only then.

Algorithm: barriers decide nothing, and go on. Those that a controller asks for which does not acknowledge yet; and, of the leader's
own, as many as it takes until every voter that acknowledges has told its digest at the leader's newest place, or at the next one. Once
all have told and still no majority agrees, nothing more is logged.

Of a request that is refused the leader says that nothing comes of it (UNAVAILABLE) only if nothing can: it is the leader, in office,
and has logged no entry of it. Else it says that it does not know; or nothing, where it may have a successor that knows.

Worked example: n1 leads, n2 holds another image, n3 has lost its folder. Halted at 1,024. n3's barrier is committed, it acknowledges,
and has no digest at 1,024: barriers up to 2,048, where it agrees with n2. n1 is beside the majority and gives way.
"""

from __future__ import annotations

from collections.abc import Iterator

from liftpy.cluster.controller_list import GroupView
from liftpy.cluster.forwarding import error_response
from liftpy.wire._pb import cluster_pb2 as pb

MAX_BARRIERS = 32
"""Of the leader's own under way at the same time."""


def barriers(view: GroupView, under_way: int) -> Iterator[pb.ControlRequest]:
    """What the leader orders now; ``under_way``: its own orders that have not ended."""
    if view.halted and view.untold & view.live:
        for _ in range(MAX_BARRIERS - under_way):
            yield pb.ControlRequest(barrier=pb.Barrier())


def catches_up(request: pb.ControlRequest, view: GroupView) -> bool:
    """Whether it is the barrier of a controller that does not count yet."""
    return request.HasField("barrier") and request.sender in view.now.members and request.sender not in view.live


def refused(request: pb.ControlRequest, view: GroupView, *, confirmed: bool, logged: bool) -> pb.ControlResponse | None:
    """The leader's answer while it is halted, None: none. ``confirmed``: nobody else leads; ``logged``: an entry may be in its log."""
    if not confirmed:
        return None
    error = pb.ControlResponse.OUTCOME_UNKNOWN if logged else pb.ControlResponse.UNAVAILABLE
    return error_response(request, error, view.halted)
