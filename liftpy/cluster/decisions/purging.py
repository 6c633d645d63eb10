"""PurgeRecords: operators give up records by subject or key. ReportPurged: a replica holds none of them any more. What follows from
them is in ``liftpy/purge.py``."""

from __future__ import annotations

from liftpy.cluster.codec import partition_to_pb
from liftpy.cluster.decisions.altering import MAX_OFFSET
from liftpy.cluster.decisions.nodes import current_node
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.errors import LiftError
from liftpy.partition import PartitionState, Purge
from liftpy.purge import MAX_PURGE_BYTES, MAX_PURGES, asked, reported, waits_for
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.filters import Filter


def purge_records(draft: Draft, request: pb.PurgeRecords) -> Decision:
    """Every replica gives up what fits, also one that is away now."""
    found = draft.image.find(request.stream, request.uid, request.partition) if request.uid else None
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of the id {request.uid!r}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    if not 0 < request.endOffset <= MAX_OFFSET:
        return refuse(pb.ControlResponse.INVALID, f"end offset = {request.endOffset} is outside 1..{MAX_OFFSET}", partition)
    try:
        wanted = Filter(tuple(sorted(set(request.subjects))), tuple(sorted(set(request.keys))))
    except LiftError as error:
        return refuse(pb.ControlResponse.INVALID, str(error), partition)
    if not wanted:
        detail = "a purge names subjects or keys; to give up everything below an offset, truncate the stream"
        return refuse(pb.ControlResponse.INVALID, detail, partition)
    wish = Purge(number=draft.next_epochs(), subjects=wanted.subjects, keys=wanted.keys, end_offset=request.endOffset)
    changed = asked(partition, wish)
    if changed is None:
        return refuse(pb.ControlResponse.INVALID, _no_room(partition, wish), partition)
    if changed is partition:
        return Decision((), pb.ControlResponse(partition=partition_to_pb(partition)))
    return draft.done(pb.ControlResponse(partition=partition_to_pb(draft.change(stream, changed))))


def report_purged(draft: Draft, request: pb.ReportPurged) -> Decision:
    """Taken from a member of the ISR, in the incarnation that is registered; from others it changes nothing."""
    found = draft.image.find(request.stream, request.uid, request.partition)
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of stream {request.uid or 'of that name'}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    node = current_node(draft, request.node, request.incarnation)
    if isinstance(node, Decision):
        return node
    changed = reported(partition, request.node, request.number)
    if changed is not partition:
        changed = draft.change(stream, changed)
    return draft.done(pb.ControlResponse(partition=partition_to_pb(changed)))


def _no_room(partition: PartitionState, wish: Purge) -> str:
    waits = sorted({node for purge in partition.purges for node in waits_for(partition, purge)})
    if wish.size_bytes > MAX_PURGE_BYTES:
        return f"the subjects and keys of a purge have at most {MAX_PURGE_BYTES} bytes, not {wish.size_bytes}: purge in several turns"
    return (
        f"{len(partition.purges)} purges are under way, of at most {MAX_PURGES} and {MAX_PURGE_BYTES} bytes of subjects and keys: they "
        f"wait for {', '.join(waits)}. Try again when they are done"
    )
