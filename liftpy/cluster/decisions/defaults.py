"""SetDefaultQuota: what the cluster's streams have that have no quota of their own. Every leader takes it from the image."""

from __future__ import annotations

from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.features import DEFAULT_QUOTA, DEFAULT_QUOTA_NEEDS
from liftpy.cluster.records import DefaultQuotaSet
from liftpy.cluster.stream_config import quota_from_pb, quota_to_pb
from liftpy.errors import ConfigError
from liftpy.wire._pb import cluster_pb2 as pb


def set_default_quota(draft: Draft, request: pb.SetDefaultQuota) -> Decision:
    """What the request names; the rest stays as it is."""
    image = draft.image
    if image.feature_level < DEFAULT_QUOTA:
        return refuse(pb.ControlResponse.INVALID, DEFAULT_QUOTA_NEEDS.format(level=image.feature_level))
    whole = quota_to_pb(image.default_quota)
    for name in ("recordsPerS", "bytesPerS", "byToken"):
        if request.HasField(name):
            setattr(whole, name, getattr(request, name))
    try:
        quota = quota_from_pb(whole)
    except ConfigError as error:
        return refuse(pb.ControlResponse.INVALID, f"default quota: {error}")
    if quota != image.default_quota:
        draft.add(DefaultQuotaSet(quota))
    return draft.done(pb.ControlResponse(defaultQuota=whole))
