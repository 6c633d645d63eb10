"""Drill: restores a backup into the running cluster under other stream names, compares it, and deletes it.

Its duration is the recovery time (RTO).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from liftpy.client import Client
from liftpy.client.replica_reads import DamagedRecordsError, ReplicaAddress, ReplicaReads, ReplicaUnavailableError
from liftpy.core.backup.manifest import Manifest
from liftpy.core.backup.pieces import why_other_producers
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, UnavailableError
from sidecar.backup.inspect import read_image
from sidecar.backup.restore import ProgressCallback, Restore, RestoredStream, RestoreOptions, StreamRestore, name_remains
from sidecar.backup.staging import LogDigest
from sidecar.backup.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """Result of a restore drill.

    ``rto_s``: time until all records were replicated and readable, in seconds. ``rpo_s``: age of the backup, in seconds.
    ``states_left_out``: reason why the producers of deleted records are not restored, by "stream/partition".
    ``left``: command lines that remove the copies which the drill could not remove.
    """

    backup: str
    streams: int
    partitions: int
    records: int
    size_bytes: int
    served_s: float
    rto_s: float
    compared_s: float
    rpo_s: float
    states_left_out: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


async def drill(
    client: Client,
    store: Store,
    manifest: Manifest,
    options: RestoreOptions,
    step: Callable[[str], None] = lambda name: None,
    tell: ProgressCallback = lambda step, unit, done, total: None,
) -> DrillResult:
    """Restore the backup ``manifest`` under other stream names, compare the copies with the backup, and return the result.

    All restored streams are removed afterwards, except if the process is killed or the cluster does not answer. ``step`` is called with
    the name of each step.
    ``tell`` is called with (step, unit, number of finished units, number of all units).

    Raises the errors of ``Restore.run``, CorruptionError if a replica differs from the backup, and UnavailableError if a replica
    does not answer.
    """
    image = read_image(store, manifest)
    name = f"drill-{os.urandom(4).hex()}"
    stream_restores = [
        StreamRestore(
            name=stream.name,
            into=f"{name}-{number}",
            subject=f"{name}.{number}",
            config=replace(
                image.streams[stream.name].config,
                retention_age_s=0.0,
                retention_bytes=0,
                retention_records=0,
                compaction=False,
                max_per_subject=0,
            ),
            replicas=image.streams[stream.name].replica_count,
            placement=image.streams[stream.name].placement,
        )
        for number, stream in enumerate(manifest.streams)
        if stream.partitions  # a stream that waits for nodes has no records
    ]
    restore = Restore(client, store, manifest, stream_restores, replace(options, cursors=False), step, tell)
    done = await restore.run(keep_closed=True)
    try:
        step("compare")
        began_s = time.monotonic()
        for number, one in enumerate(done.streams):
            tell("comparing the replicas", "streams", number, len(done.streams))
            await _compare(client, one, options.target.namespace)
        compared_s = time.monotonic() - began_s
    except BaseException as error:
        name_remains(error, await restore.undo())
        raise
    left = await restore.undo()
    logs = [log for one in done.streams for log in one.logs]
    return DrillResult(
        backup=manifest.backup,
        streams=len(done.streams),
        partitions=len(logs),
        records=sum(log.records for log in logs),
        size_bytes=sum(log.size_bytes for log in logs),
        served_s=done.served_s,
        rto_s=done.took_s,
        compared_s=compared_s,
        rpo_s=(time.time_ns() - manifest.created_ns) / 1e9,
        states_left_out=done.states_left_out(lambda one: one.wish.name),
        left=left,
    )


async def _compare(client: Client, one: RestoredStream, namespace: str) -> None:
    """Compare a restored stream with the backup: each planned replica, and the state of its producers.

    Raises CorruptionError if they differ, and UnavailableError if a replica does not answer.
    """
    for number, log in enumerate(one.logs):
        for node in one.plan[number]:
            digest = LogDigest()
            address = ReplicaAddress(stream=one.wish.into, uid=one.uid, partition=number, node=node)
            reads, position = ReplicaReads(client.transport, Subjects(namespace), address), log.start
            try:
                while position < log.end:
                    batches, position = await reads.batches(position)
                    for batch in batches:
                        digest.add(batch)
                state = await reads.state() if log.state is not None else None
            except ReplicaUnavailableError as error:  # it says nothing about the backup
                raise UnavailableError(
                    f"Cannot compare {one.wish.name}/{number} on node {node} with the backup: {error}. Check `liftpy status`, then "
                    "start the drill again."
                ) from None
            except DamagedRecordsError as error:
                raise CorruptionError(
                    f"Cannot compare {one.wish.name}/{number} on node {node} with the backup: {error}. Run `liftpy backup verify`."
                ) from None
            if digest.hexdigest() != log.digest:
                raise CorruptionError(
                    f"{one.wish.name}/{number} on node {node} differs from the backup. Do not rely on this backup: run "
                    "`liftpy backup verify`."
                )
            if log.state is not None and state is not None:  # None: the node has an earlier version and cannot tell
                why = why_other_producers(log.state, state[1])
                if why:
                    raise CorruptionError(
                        f"Cannot compare {one.wish.name}/{number} on node {node} with the backup: {why}. "
                        "Run `liftpy backup verify`."
                    )
