"""ChangeControllers: who forms the metadata group [M10]. It counts since the entry was appended (``liftpy.cluster.controller_list``);
here it is written down, for everybody who is told by the image, and so that the operation is done once."""

from __future__ import annotations

from dataclasses import replace

from liftpy.cluster.controller_list import list_from_pb, well_formed
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.records import ControllersChanged
from liftpy.wire._pb import cluster_pb2 as pb


def change(draft: Draft, request: pb.ChangeControllers) -> Decision:
    """The list that the metadata leader has made of the request. What holds none was never given to it."""
    after = replace(list_from_pb(request.list), index=draft.image.index)
    if not well_formed(after) or request.after != draft.image.controllers.index:
        return refuse(pb.ControlResponse.INVALID, "a change of the controllers that no metadata leader has proposed")
    draft.add(ControllersChanged(after))
    return draft.done(pb.ControlResponse(detail=after.said()))
