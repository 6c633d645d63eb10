"""SetSessionTimes: by which sessions end and leases are granted, in the whole cluster. Compare-and-set on the number of the change.

A metadata leader may have granted by the times before, and others may have begun sessions by them. So a change keeps those before until
the metadata leader says, by SettleSessionTimes, that nothing of them can still count (``session.py``); until then nobody changes them
again, and what is remembered is never more than one change old.
"""

from __future__ import annotations

from liftpy.cluster.codec import times_to_pb
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.features import SESSION_TIMES_NEED
from liftpy.cluster.records import SessionTimesSet
from liftpy.config import NS_PER_S, SessionTimes, check_session_times
from liftpy.errors import ConfigError
from liftpy.wire._pb import cluster_pb2 as pb


def set_session_times(draft: Draft, request: pb.SetSessionTimes) -> Decision:
    """Those that are asked for; nothing where they are so already."""
    held = draft.image.session_times
    if held is None:
        return _too_early(draft)
    try:
        check_session_times(request.sessionMs, request.leaseMs)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, str(error))
    if (request.sessionMs, request.leaseMs) == (held.session_ms, held.lease_ms):
        return _said(draft, held)
    if request.change != held.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {held.words}")
    if not held.is_settled:
        longest_s = held.longest_session_ns / NS_PER_S
        detail = f"the change before is not settled yet, which takes {longest_s:g} s of one metadata leader: {held.words}"
        return refuse(pb.ControlResponse.STALE, detail)
    changed = held.changed(request.sessionMs, request.leaseMs)
    draft.add(SessionTimesSet(changed))
    return _said(draft, changed)


def settle_session_times(draft: Draft, request: pb.SettleSessionTimes) -> Decision:
    """Those before the change count no more."""
    held = draft.image.session_times
    if held is None:
        return _too_early(draft)
    if request.change != held.change:
        return refuse(pb.ControlResponse.STALE, f"the session times were changed meanwhile: {held.words}")
    if not held.is_settled:
        held = held.settled()
        draft.add(SessionTimesSet(held))
    return _said(draft, held)


def _said(draft: Draft, times: SessionTimes) -> Decision:
    return draft.done(pb.ControlResponse(sessionTimes=times_to_pb(times)))


def _too_early(draft: Draft) -> Decision:
    return refuse(pb.ControlResponse.INVALID, SESSION_TIMES_NEED.format(level=draft.image.feature_level))
