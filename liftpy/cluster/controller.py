"""``decide(image, request, now) -> (records, response)``: the decision that ``requests.py`` names, and nothing else.

Called inside apply, on every controller, on the same image: a decision reads nothing but its arguments.
"""

from __future__ import annotations

from liftpy.cluster.draft import Decision, Draft, Rules
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.requests import REQUESTS, unknown
from liftpy.cluster.steps import Steps, finished
from liftpy.wire._pb import cluster_pb2 as pb


def decide(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> Decision:
    """What ``request`` does to ``image`` at image time ``now_ns`` (ns since 1970; written down, never decided by)."""
    return decide_on(Draft(image, now_ns, rules), request)


def decide_on(draft: Draft, request: pb.ControlRequest) -> Decision:
    """The same on a draft that was made for it."""
    return finished(deciding_on(draft, request))


def deciding_on(draft: Draft, request: pb.ControlRequest) -> Steps[Decision]:
    """The same, in steps."""
    name = request.WhichOneof("request")
    decision = REQUESTS[name].decide(draft, getattr(request, name)) if name in REQUESTS else unknown(draft, None)
    if isinstance(decision, Decision):
        return decision
    return (yield from decision)
