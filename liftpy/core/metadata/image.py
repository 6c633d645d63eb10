"""The image: everything that the metadata group knows, as one frozen value with structural sharing.

A change creates a new image that shares all unchanged parts. So images can be kept, compared by identity, and encoded
while later entries are applied. The iteration order of an ``immutables.Map`` differs between processes, so decisions
and encodings use ``sorted``. The attribute ``trail`` lists the streams that the latest changes concerned. It is not
encoded. ``SubjectIndex`` finds streams with overlapping subjects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from liftpy.config import NO_QUOTA, AckPolicy, CommitPolicy, DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.base.ids import PartitionKey, is_internal
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.features import NO_LEVEL
from liftpy.core.metadata.idempotency import IdempotencyCache
from liftpy.core.wire.subjects import ANY, REST

MAX_STEPS = 8192
RESCUE_LEAP = 1 << 20
"""Step by which a rescue of the metadata group increases all counters. It is more than a group decides between two flushes of all its
members.
"""
INSUFFICIENT_NODES = "insufficient-nodes"
"""State of a stream that waits for nodes."""


# ---- subjects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Branch:
    """Node of a tree of subjects, in which each level is one token. The path from the root is the beginning of a subject."""

    streams: tuple[tuple[str, int], ...] = ()
    """(name, number of partitions) of the streams whose subject ends at this node, ordered by name."""
    below: Map[str, _Branch] = field(default_factory=Map)
    """Next subject token -> its branch."""


@dataclass(frozen=True, slots=True)
class SubjectIndex:
    """Index of the subjects of streams that send acks. It finds overlapping subjects.

    At most one stream acks a subject [A8]. If two streams acked a publish, the request would have two answers, and a publisher
    could take one for the other. So a stream with any ack policy except ``none`` may not overlap with another one. Wildcards
    and the subjects of partitions (``<subject>.N``) count.

    The index is a tree of subject tokens that images share, so that a search need not compare up to 100,000 streams. A search
    follows the tokens of the new subject, and examines all branches only at a wildcard. A stream with P partitions is stored at
    the last token of its subject, with the number P. The branches of its partitions are not stored.

    Worked example: ``shop.*`` with 3 partitions uses ``shop.*``, ``shop.*.1`` and ``shop.*.2``. It overlaps with ``shop.eu``
    and ``shop.eu.2``, but not with ``shop.eu.3``.
    """

    root: _Branch = field(default_factory=_Branch)

    def with_stream(self, name: str, subject: str, partitions: int) -> SubjectIndex:
        """Return the index with the subject of the stream ``name`` added. The index must not contain the stream yet."""
        return SubjectIndex(_with_stream_at(self.root, subject.split("."), name, partitions))

    def without_stream(self, name: str, subject: str) -> SubjectIndex:
        return SubjectIndex(_with_stream_at(self.root, subject.split("."), name, 0))

    def overlapping(self, subject: str, partitions: int) -> str:
        """Return the name of a stream whose subject overlaps with ``subject`` or its partitions, or '' if there is none.

        The result is the same on every node.
        """
        tokens = subject.split(".")
        return next(_of_subject(self.root, tokens), "") or (next(_of_numbers(self.root, tokens, partitions), ""))


def _with_stream_at(branch: _Branch, tokens: list[str], name: str, partitions: int) -> _Branch:
    """Return the tree of subjects with the stream ``name`` at the subject ``tokens``. ``partitions`` 0: without it."""
    if not tokens:
        others = tuple(entry for entry in branch.streams if entry[0] != name)
        return replace(branch, streams=tuple(sorted((*others, (name, partitions)))) if partitions else others)
    child = _with_stream_at(branch.below.get(tokens[0], _Branch()), tokens[1:], name, partitions)
    if child.streams or child.below:
        return replace(branch, below=branch.below.set(tokens[0], child))
    return replace(branch, below=branch.below.delete(tokens[0]))


def _of_subject(branch: _Branch, tokens: list[str]) -> Iterator[str]:
    """Yield the streams below ``branch`` whose subjects overlap with the subject ``tokens``. Tokens may be wildcards."""
    if not tokens:
        yield from (name for name, _ in branch.streams)
        return
    token, rest = tokens[0], tokens[1:]
    if token == REST:
        yield from _all(branch)
        return
    if REST in branch.below:
        yield from (name for name, _ in branch.below[REST].streams)
    if not rest:
        yield from (name for name, partitions in branch.streams if _is_number(token, partitions))
    for key in sorted(branch.below) if token == ANY else (token, ANY):
        if key != REST and key in branch.below:
            yield from _of_subject(branch.below[key], rest)


def _of_numbers(branch: _Branch, tokens: list[str], partitions: int) -> Iterator[str]:
    """Yield the streams below ``branch`` that overlap with partitions of a stream on the subject ``tokens``.

    These partitions have the numbers from 1 to ``partitions`` - 1 (inclusive) as last token.
    """
    if partitions < 2:
        return
    if tokens:
        if REST in branch.below:
            yield from (name for name, _ in branch.below[REST].streams)
        for key in sorted(branch.below) if tokens[0] == ANY else (tokens[0], ANY):
            if key != REST and key in branch.below:
                yield from _of_numbers(branch.below[key], tokens[1:], partitions)
        return
    yield from (name for name, others in branch.streams if others > 1)
    if len(branch.below) > partitions:
        numbers_below = [str(number) for number in range(1, partitions) if str(number) in branch.below]
    else:
        numbers_below = sorted(key for key in branch.below if key not in (ANY, REST) and _is_number(key, partitions))
    for key in (*numbers_below, ANY, REST):
        if key in branch.below:
            yield from (name for name, _ in branch.below[key].streams)


def _all(branch: _Branch) -> Iterator[str]:
    """Yield all streams below ``branch`` that use a subject with at least one more token, as ``>`` matches it."""
    yield from (name for name, partitions in branch.streams if partitions > 1)
    for key in sorted(branch.below):
        yield from (name for name, _ in branch.below[key].streams)
        yield from _all(branch.below[key])


def _is_number(token: str, partitions: int) -> bool:
    if token == ANY:
        return partitions > 1
    plain = token.isascii() and token.isdigit() and len(token) <= len(str(partitions)) and token[0] != "0"
    return plain and int(token) < partitions


# ---- the image -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedStreams:
    """Names of the streams that changed last, in the order of their changes. The value is never changed in place."""

    origin: object = field(default_factory=object)
    """Object that all images of the same origin share."""
    steps: Map[int, str] = field(default_factory=Map)
    """Step number -> stream name, for the last MAX_STEPS steps."""
    step_count: int = 0
    """Number of steps since ``origin``."""

    def step(self, stream: str) -> ChangedStreams:
        steps = self.steps.set(self.step_count, stream)
        if self.step_count >= MAX_STEPS:
            steps = steps.delete(self.step_count - MAX_STEPS)
        return ChangedStreams(self.origin, steps, self.step_count + 1)

    def since(self, earlier: ChangedStreams) -> set[str] | None:
        """Return the streams that changed after ``earlier``. None: the changes are not known that far back."""
        count = self.step_count - earlier.step_count
        if self.origin is not earlier.origin or not 0 <= count <= MAX_STEPS:
            return None
        return {self.steps[n] for n in range(earlier.step_count, self.step_count)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImage:
    """One registered node, as the metadata group knows it."""

    node_id: str
    incarnation: int
    """Incarnation of the process that runs now or ran last. It comes from a counter and is never used twice."""
    rack: str = ""
    weight: float = 1.0
    version: str = ""
    status_address: str = ""
    fenced: bool = False
    """True if its session has ended. The node joins no ISR and becomes no leader."""
    session_time_ns: int = 0
    """Image time of the registration, fencing or unfencing."""
    previous_incarnation: int = 0
    """Incarnation that the data directory of the node had when the process registered.

    A process that fails before it stores its new incarnation returns with this one, and has acknowledged nothing in
    between.
    """
    folder_id: str = ""
    start: int = 0
    """Number of the start of the process on the data directory ``folder_id``."""
    nonce: int = 0
    """Random number of the process. 0: the version of the process sends none."""
    earlier_nonces: tuple[int, ...] = ()
    """Nonces of earlier processes on the data directory, oldest first. Their number is limited."""
    partition_budget: int = 0
    """Maximum number of replicas that the process reported. 0: not reported."""
    weight_by_hand: bool = False
    """True if an operator has set the weight. Then the weight that the node reports does not count."""
    rack_by_hand: bool = False
    leaving: bool = False
    """True while an operator drains the node. The node gets no replicas, and its replicas move to other nodes."""
    host: str = ""
    """Host name of the process, as in ``liftpy.client.closest_replica``. '': not reported."""


@dataclass(frozen=True, slots=True)
class StreamImage:
    """One stream, as the metadata group knows it. If it is deleted and created again, it has another ``uid`` [R9]."""

    name: str
    uid: str
    subject: str
    config: StreamConfig
    partitions: tuple[PartitionState, ...]
    """Partitions of the stream: ``partitions[i].partition == i``."""
    created_time_ns: int = 0
    placement: str = ""
    """Placement policy of the stream. '': the default policy."""
    replication_factor: int = 0
    """Number of replicas of each partition. 0: as many as partition 0 has."""
    waiting: int = 0
    """Number of partitions that wait for enough nodes (``insufficient-nodes``). Such a stream has no placed partitions."""
    config_version: int = 0
    """Version of ``config``. It grows with each change."""

    @property
    def replica_count(self) -> int:
        return self.replication_factor or (len(self.partitions[0].replicas) if self.partitions else 0)

    @property
    def partition_count(self) -> int:
        """Number of partitions, including those that wait for nodes."""
        return len(self.partitions) or self.waiting

    def key(self, partition: int) -> PartitionKey:
        return PartitionKey(self.name, self.uid, partition)

    @property
    def commits_by_quorum(self) -> bool:
        """True if a majority of the replica set commits records. False: the ISR does."""
        return self.config.commit_policy is CommitPolicy.QUORUM

    def electable_replicas(self, partition: PartitionState) -> tuple[str, ...]:
        """Return the replicas that can become leader without an operator's command, in replica order. They may be down."""
        return partition.electable_replicas(self.config.commit_policy)

    def config_under(self, quota: DefaultQuota) -> StreamConfig:
        """Return the settings of the stream, completed by the cluster's default quota ``quota``.

        Internal streams have only their own quota.
        """
        return self.config.with_default(quota) if self.takes_default_quota else self.config

    @property
    def takes_default_quota(self) -> bool:
        return self.config.takes_default_quota and not is_internal(self.name)

    def partition_metadata(
        self, partition: PartitionState, quota: DefaultQuota = NO_QUOTA, longest_lease_ns: int = 0
    ) -> PartitionMetadata:
        """Return the metadata that replicas of ``partition`` need.

        ``quota``: default quota of the cluster. ``longest_lease_ns``: longest lease that any node may have.
        """
        key, count = self.key(partition.partition), len(self.partitions)
        config = self.config_under(quota)
        return PartitionMetadata(
            key=key, config=config, state=partition, partition_count=count, longest_lease_ns=longest_lease_ns
        )

    def with_isr(self, partition: PartitionState, isr: Iterable[str], lost: Iterable[str] = ()) -> PartitionState:
        """Return ``partition`` with the ISR ``isr``.

        A member that leaves stays complete while the HW cannot rise. ``lost``: members that lack records.
        """
        members = frozenset(isr)
        stands_still = len(members) < partition.min_isr(self.config) and not self.commits_by_quorum
        complete = {*partition.isr, *partition.complete}.difference(members, lost, partition.incomplete) if stands_still else ()
        return replace(
            partition,
            isr=tuple(node for node in partition.replicas if node in members),
            complete=tuple(node for node in partition.replicas if node in complete),
        )

    @property
    def answers(self) -> bool:
        """True if the ack policy of the stream lets publishers get acks."""
        return self.config.ack_policy is not AckPolicy.NONE


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters for all unique numbers in the cluster. They only grow."""

    next_incarnation: int = 1
    next_stream_uid: int = 1
    next_leader_epoch: int = 1
    next_epoch: int = 1
    placement_index: int = 0
    """Start index of the next round-robin placement. It is not reduced modulo the number of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReport:
    """Report of a follower that it cannot reach its leader, or its position during an election [C9]."""

    witness: str
    witness_incarnation: int
    leader: str
    leader_epoch: int
    """LeaderEpoch to which the report belongs. The report counts only for this leadership."""
    last_epoch: int
    """LeaderEpoch of the last record of the witness. It may be the last record that retention deleted."""
    newest_offset: int
    """Newest offset in the log of the witness, inclusive. -1: the log is empty."""
    high_watermark: int
    """High watermark of the witness, inclusive. -1: nothing is committed."""
    time_ns: int
    """Image time of the report, for display only. The clock may be wrong."""
    stamp_ns: int = 0
    """Monotonic time of the metadata leader of ``stamp_term`` when the report arrived. Reports outside the window do not count."""
    stamp_term: int = 0


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """Settings that affect decisions. A new group takes them from the settings of its leader, and stores them in the image."""

    namespace: str = "liftpy"
    """First subject token of the cluster's own subjects. No stream may use it."""
    elections: bool = False
    """True if an election replaces a lost leader. If False, partitions wait for their leader."""


Hosted = Map[str, Map[str, tuple[int, ...]]]
Reports = Map[tuple[str, int], tuple[LeaderReport, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """Everything that the metadata group knows, after one log entry.

    The fields ``hosted``, ``replica_counts``, ``leader_counts``, ``answering``, ``waiting`` and ``trail`` are derived
    from the others and not encoded.
    """

    index: int = 0
    """Index of the last applied entry."""
    time_ns: int = 0
    """Wall time of the last applied request at its sender, for display. A clock may be wrong, so it decides nothing."""
    nodes: Map[str, NodeImage] = field(default_factory=Map)
    streams: Map[str, StreamImage] = field(default_factory=Map)
    counters: Counters = Counters()
    operations: IdempotencyCache = field(default_factory=IdempotencyCache)
    reports: Reports = field(default_factory=Map)
    """(stream uid, partition) -> failure reports, at most one per witness, in the order of arrival."""
    controllers: ControllerList = field(default_factory=ControllerList)
    """Controllers of the metadata group at ``index``. If its index is 0, the controllers are those of the settings."""
    feature_level: int = NO_LEVEL
    """Feature level that decides how ``apply`` works. ``NO_LEVEL``: the group is new."""
    rules: ClusterRules | None = None
    """Rules of the cluster. None: the group is new."""
    default_quota: DefaultQuota = NO_QUOTA
    """Quota of streams that have no quota of their own."""
    session_times: SessionTimes | None = None
    """Session times of the cluster. None: the group is new, and each process uses its own settings."""
    digest: bytes = field(default=b"", compare=False)
    """Digest of all records since the feature level was set. It is b'' before the first record, and on nodes that only follow
    the feed.
    """
    hosted: Hosted = field(default_factory=Map)
    """Node id -> stream name -> numbers of the partitions that the node holds as replica or learner, in ascending order."""
    replica_counts: Map[str, int] = field(default_factory=Map)
    """Node id -> number of partitions that the node holds as replica or learner. Nodes without partitions are absent."""
    leader_counts: Map[str, int] = field(default_factory=Map)
    """Node id -> number of partitions that the node leads. Nodes without leaderships are absent."""
    answering: SubjectIndex = field(default_factory=SubjectIndex, compare=False, repr=False)
    """Index of the subjects of streams that answer publishers."""
    waiting: frozenset[str] = frozenset()
    """Names of the streams that wait for nodes."""
    trail: ChangedStreams = field(default_factory=ChangedStreams, compare=False, repr=False)
    """Names of the streams that changed last."""

    def find(self, stream: str, uid: str, partition: int) -> tuple[StreamImage, PartitionState] | None:
        """Return a stream and its partition. None: they do not exist.

        ``uid``: uid of the stream. '': any stream that has the name now.
        """
        stream_image = self.streams.get(stream)
        if stream_image is None or (uid and stream_image.uid != uid) or not 0 <= partition < len(stream_image.partitions):
            return None
        return stream_image, stream_image.partitions[partition]

    def partition_metadata(self, stream: StreamImage, partition: PartitionState) -> PartitionMetadata:
        return stream.partition_metadata(partition, self.default_quota, self.longest_lease_ns)

    @property
    def is_not_empty(self) -> bool:
        return bool(self.nodes or self.streams or self.counters != Counters() or self.controllers.index)

    @property
    def longest_lease_ns(self) -> int:
        """Longest lease that any node may have, in nanoseconds. 0: the group is new, and each process uses its own settings."""
        return 0 if self.session_times is None else self.session_times.longest_lease_ns

    def partitions_of(self, node_id: str) -> Iterator[tuple[StreamImage, PartitionState]]:
        """Yield all partitions that have a replica or learner on ``node_id``, by stream name and partition number."""
        hosted = self.hosted.get(node_id)
        for name in sorted(hosted) if hosted else ():
            stream = self.streams[name]
            for number in hosted[name] if hosted else ():
                yield stream, stream.partitions[number]

    def live_nodes(self) -> list[str]:
        return sorted(node_id for node_id, node in self.nodes.items() if not node.fenced)

    def is_live(self, node_id: str) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and not node.fenced

    # ---- the changes that replay makes; they keep the derived maps true ------------------------------------------------
    def with_stream(self, stream: StreamImage) -> ClusterImage:
        return replace(self.with_streams((stream,)), trail=self.trail.step(stream.name))

    def with_streams(self, streams: Iterable[StreamImage]) -> ClusterImage:
        """Return the image with new streams. Their changes are not listed in ``trail``."""
        added = tuple(streams)
        answering = self.answering
        for stream in added:
            if stream.answers:
                answering = answering.with_stream(stream.name, stream.subject, stream.partition_count)
        return replace(
            self,
            answering=answering,
            streams=self.streams.update({stream.name: stream for stream in added}),
            hosted=_host(self.hosted, added),
            replica_counts=_count(self.replica_counts, (step for stream in added for step in _replicas(stream, 1))),
            leader_counts=_count(self.leader_counts, ((p.leader, 1) for stream in added for p in stream.partitions)),
            waiting=self.waiting.union(stream.name for stream in added if stream.waiting),
        )

    def without_stream(self, name: str) -> ClusterImage:
        stream = self.streams[name]
        reports = self.reports.mutate()
        for partition in stream.partitions:
            reports.pop((stream.uid, partition.partition), None)
        return replace(
            self,
            streams=self.streams.delete(name),
            answering=self.answering.without_stream(name, stream.subject) if stream.answers else self.answering,
            hosted=_unhost(self.hosted, stream),
            replica_counts=_count(self.replica_counts, _replicas(stream, -1)),
            leader_counts=_count(self.leader_counts, ((p.leader, -1) for p in stream.partitions)),
            reports=reports.finish(),
            waiting=self.waiting.difference((name,)),
            trail=self.trail.step(name),
        )

    def with_partitions_added(self, stream: StreamImage, added: tuple[PartitionState, ...]) -> ClusterImage:
        """Return the image with the partitions ``added`` to an existing stream. If the stream waited for nodes, it no longer waits."""
        fresh = replace(stream, partitions=(*stream.partitions, *added), waiting=0)
        answering = self.answering
        if stream.answers:
            answering = answering.without_stream(stream.name, stream.subject)
            answering = answering.with_stream(stream.name, stream.subject, len(fresh.partitions))
        return replace(
            self,
            answering=answering,
            streams=self.streams.set(stream.name, fresh),
            hosted=_host(_unhost(self.hosted, stream), (fresh,)),
            replica_counts=_count(self.replica_counts, ((node, 1) for p in added for node in p.holders)),
            leader_counts=_count(self.leader_counts, ((p.leader, 1) for p in added)),
            waiting=self.waiting.difference((stream.name,)),
            trail=self.trail.step(stream.name),
        )

    def with_altered(self, stream: StreamImage) -> ClusterImage:
        """Return the image with ``stream`` in place of the stream of this name. Only its settings may differ."""
        return replace(self, streams=self.streams.set(stream.name, stream), trail=self.trail.step(stream.name))

    def with_partition(self, stream: StreamImage, changed: PartitionState) -> ClusterImage:
        """Return the image with the new state ``changed`` of one partition.

        A new leadership removes the failure reports about it [C9]. A reporter that joins the ISR loses its own report.
        """
        number = changed.partition
        old = stream.partitions[number]
        partitions = (*stream.partitions[:number], changed, *stream.partitions[number + 1 :])
        fresh = replace(stream, partitions=partitions)
        hosted, counts, reports = self.hosted, self.leader_counts, self.reports
        replica_counts = self.replica_counts
        if old.holders != changed.holders:
            steps = [(node, -1) for node in old.holders] + [(node, 1) for node in changed.holders]
            replica_counts = _count(replica_counts, steps)
            hosted = _host(_unhost(hosted, stream), (fresh,))
        if old.leader != changed.leader:
            counts = _count(counts, ((old.leader, -1), (changed.leader, 1)))
        old_reports = reports.get((stream.uid, number), ())
        joined = set(changed.isr).difference(old.isr)
        kept_reports = (
            () if _leadership(old) != _leadership(changed) else tuple(r for r in old_reports if r.witness not in joined)
        )
        if len(kept_reports) != len(old_reports):
            reports = reports.set((stream.uid, number), kept_reports) if kept_reports else reports.delete((stream.uid, number))
        return replace(
            self,
            streams=self.streams.set(stream.name, fresh),
            hosted=hosted,
            replica_counts=replica_counts,
            leader_counts=counts,
            reports=reports,
            trail=self.trail.step(stream.name),
        )


def _leadership(partition: PartitionState) -> tuple[str, int, PartitionStatus]:
    return partition.leader, partition.leader_epoch, partition.status


def _host(hosted: Hosted, streams: Iterable[StreamImage]) -> Hosted:
    numbers: dict[str, dict[str, list[int]]] = {}
    for stream in streams:
        for partition in stream.partitions:
            for node_id in partition.holders:
                numbers.setdefault(node_id, {}).setdefault(stream.name, []).append(partition.partition)
    changed = hosted.mutate()
    for node_id, numbers_by_stream in numbers.items():
        hosted_by_node = hosted.get(node_id, Map())
        changed[node_id] = hosted_by_node.update({name: tuple(partitions) for name, partitions in numbers_by_stream.items()})
    return changed.finish()


def _unhost(hosted: Hosted, stream: StreamImage) -> Hosted:
    changed = hosted.mutate()
    for node_id in {node_id for partition in stream.partitions for node_id in partition.holders}:
        left = hosted[node_id].delete(stream.name)
        if left:
            changed[node_id] = left
        else:
            del changed[node_id]
    return changed.finish()


def _replicas(stream: StreamImage, step: int) -> Iterator[tuple[str, int]]:
    return ((node, step) for partition in stream.partitions for node in partition.holders)


def _count(counts: Map[str, int], steps: Iterable[tuple[str, int]]) -> Map[str, int]:
    changed = counts.mutate()
    for node_id, step in steps:
        if not node_id:
            continue
        count = changed.get(node_id, 0) + step
        if count:
            changed[node_id] = count
        else:
            del changed[node_id]
    return changed.finish()
