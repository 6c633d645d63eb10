"""Requests to the metadata group, and the images that it answers with.

Each change carries an operation id. ``MetadataRequests`` repeats a request with the same id until it is answered or the
deadline passes. The metadata group applies each id once, so a lost answer never creates two streams.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from liftpy.client.closest_replica import this_host
from liftpy.client.retrying import retry_attempts
from liftpy.core.metadata import codec
from liftpy.core.metadata.describe import ClusterPages, StreamPages
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.message_codec import MessageCodec
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    FencedError,
    LiftError,
    NoClusterError,
    NoMajorityError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    StaleRequestError,
    TooFewNodesError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError, Transport

_Error = cluster_pb2.ControlResponse.Error
DEADLINE_S = 15.0
ATTEMPT_S = 1.5
_NO_RESPONDERS_S = 1.0
"""Time to retry before the first answer if NATS reports no responders, in seconds. A controller reconnects within this time."""
_LEAST_S = 0.25
"""Minimum time for an attempt, in seconds. With less time left, the client makes no attempt."""
MAJORITY_S = 1.5
"""Time in seconds after which a repeated answer without a majority counts. An election is over by then."""
_WHO_S = 1.0
"""Time limit for a controller to report which controllers it is connected to, in seconds."""
OPERATION_ID_SIZE_BYTES = 16
_NODES_BYTES = 64 * 1024
"""Maximum size of a page of node ids in a request, in bytes."""

_ERRORS: dict[int, type[LiftError]] = {
    _Error.INVALID: ConfigError,
    _Error.EXISTS: AlreadyExistsError,
    _Error.NOT_FOUND: NotFoundError,
    _Error.STALE: StaleRequestError,
    _Error.FENCED: FencedError,
    _Error.UNAVAILABLE: UnavailableError,
    _Error.OUTCOME_UNKNOWN: OutcomeUnknownError,
    _Error.NOT_ENOUGH_NODES: TooFewNodesError,
    _Error.NOT_METADATA_LEADER: UnavailableError,
}
_PLACED = ("createStream", "addPartitions", "alterStream")
_OF_A_STREAM = (
    "addPartitions", "alterStream", "deleteStream", "electLeader", "pausePartitions", "purgeRecords", "reassign", "truncateBefore",
)  # fmt: skip
_ADVICE: dict[tuple[int, str], str] = {
    (_Error.EXISTS, "createStream"): "Use another name.",
    (_Error.NOT_ENOUGH_NODES, "electLeader"): "Start the nodes of the replicas.",
    **{(_Error.NOT_ENOUGH_NODES, kind): "Add nodes, or use fewer replicas." for kind in _PLACED},
    **{(_Error.NOT_FOUND, kind): "Check `liftpy stream list`." for kind in _OF_A_STREAM},
}
"""(Error, kind of the request) -> what the user can do. The details that controllers store do not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One controller: a member of the metadata group.

    Attributes:
        node_id: Id of its node.
        leader: True if it is the metadata leader.
        term: Its Raft term.
        commit_index: Index of the last committed log entry that it knows.
        applied_index: Index of the last log entry that it applied.
        lag: Number of log entries that it is behind the leader.
        connected: True if the answering controller is connected to it.
        learner: True if it has no vote yet, because it still receives the log.
        leaving: True if it is being removed.
        waits_for: Why the current change of controllers does not proceed, as text. '': it does, or there is none.
    """

    node_id: str
    leader: bool
    term: int
    commit_index: int
    applied_index: int
    lag: int
    connected: bool
    learner: bool = False
    leaving: bool = False
    waits_for: str = ""


_CONTROLLER = MessageCodec(Controller, cluster_pb2.ControllerStatus)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster metadata, as the metadata leader answered.

    Attributes:
        image: Nodes, streams and partitions.
        metadata_leader: Id of the metadata leader, '' if there is none.
        controllers: The members of the metadata group.
    """

    image: ClusterImage
    metadata_leader: str
    controllers: tuple[Controller, ...]

    def streams(self) -> list[StreamImage]:
        """Return all streams, sorted by name."""
        return [self.image.streams[name] for name in sorted(self.image.streams)]

    def stream(self, name: str) -> StreamImage:
        """Return the stream with this name.

        Args:
            name: Name of the stream.

        Raises:
            NotFoundError: No such stream.
        """
        stream = self.image.streams.get(name)
        if stream is None:
            known = ", ".join(sorted(self.image.streams)[:10]) or "none"
            raise NotFoundError(f"Stream {name!r} does not exist. Existing streams: {known}.")
        return stream


class _Majority:
    """Decides from several answers of controllers whether the metadata group has lost its majority."""

    def __init__(self) -> None:
        self._missing_since_s: float | None = None

    @property
    def is_down_or_drained(self) -> bool:
        """True if the last answer showed too few controllers for a majority."""
        return self._missing_since_s is not None

    def add_answer(self, cluster: cluster_pb2.ClusterDescription | None, now_s: float) -> None:
        """Take an answer of a controller into account. ``now_s``: time of the answer, in seconds.

        ``cluster``: the answer. None: no controller answered. Raises NoMajorityError if the answers have shown no majority for
        ``MAJORITY_S`` seconds.
        """
        voters = [one for one in cluster.controllers if not one.learner] if cluster is not None else []
        missing = sorted(one.nodeId for one in voters if not one.connected)
        if len(voters) - len(missing) > len(voters) // 2 or not voters:
            self._missing_since_s = None
            return
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s >= MAJORITY_S:
            raise NoMajorityError(
                f"{len(missing)} of {len(voters)} controllers do not answer ({', '.join(missing)}). Without a "
                "majority, the cluster cannot decide. Start these controllers and repeat the command. The request "
                "may still have been applied."
            )


class MetadataRequests:
    """Requests to the metadata group that the library itself makes. Applications use ``client.admin``.

    ``deadline_s``: time limit of each call, retries included, in seconds.
    """

    def __init__(self, transport: Transport, subjects: Subjects, deadline_s: float = DEADLINE_S) -> None:
        self.transport = transport
        self.subjects = subjects
        self.deadline_s = deadline_s
        self._last_write_index = 0
        """Highest metadata log index in an answer to a command or linearizable request. Older answers are discarded."""
        self._has_answered = False
        """True if a controller of this namespace has answered once. If NATS then reports no responders, requests retry."""
        self.internal = False
        """True if requests may create, change and delete internal streams (names that begin with ``_``)."""

    async def stream(self, name: str, *, linearizable: bool = False) -> StreamImage:
        """Return one stream. Raises NotFoundError, and UnavailableError if the metadata group did not answer in time.

        ``linearizable``: if True, the answer contains every change that was committed before this call.
        """
        request = cluster_pb2.ControlRequest(linearizable=linearizable, describeStream=cluster_pb2.DescribeStream(name=name))
        return await self.whole(await self.read(request))

    async def describe(self, *, linearizable: bool = False) -> ClusterState:
        """Return the state of the cluster. ``linearizable``: include every change that was committed before this call."""
        request = cluster_pb2.ControlRequest(linearizable=linearizable)
        pages = ClusterPages()
        while pages.request is not None:
            request.describeCluster.CopyFrom(pages.request)
            pages.add((await self.read(request)).cluster)
        cluster = pages.cluster
        controllers = tuple(map(_CONTROLLER.from_pb, cluster.controllers))
        return ClusterState(codec.image_from_pb(cluster.image), cluster.metadataLeader, controllers)

    async def open_groups(self) -> StreamImage:
        """Return the internal stream of groups and queues. Create it if needed."""
        return await self.whole(await self.read(cluster_pb2.ControlRequest(openGroups=cluster_pb2.OpenGroups())))

    async def nodes_near(self, rack: str) -> tuple[set[str], set[str]]:
        """Return the ids of the nodes on this host, and the ids of the nodes in ``rack``. '': no rack."""
        nodes, host = await self.nodes(), this_host()
        here = {node.nodeId for node in nodes if host and node.host == host}
        return here, {node.nodeId for node in nodes if rack and node.rack == rack}

    async def summary(self) -> cluster_pb2.ClusterDescription:
        """Return the controllers and the settings of the cluster, without most of its nodes and streams."""
        request = cluster_pb2.ControlRequest(describeCluster=cluster_pb2.DescribeCluster(maxBytes=1))
        return (await self.read(request)).cluster

    async def nodes(self) -> list[cluster_pb2.Node]:
        request, pages = cluster_pb2.ControlRequest(), ClusterPages()
        while pages.request is not None and not pages.cluster.image.streams:  # nodes come first
            request.describeCluster.CopyFrom(pages.request)
            request.describeCluster.maxBytes = _NODES_BYTES
            pages.add((await self.read(request)).cluster)
        return list(pages.cluster.image.nodes)

    async def whole(self, response: cluster_pb2.ControlResponse) -> StreamImage:
        """Return the stream in ``response`` with all its partitions. Partitions that did not fit into the answer are requested."""
        pages = StreamPages()
        pages.add(response)
        while pages.request is not None:
            pages.add(await self.read(cluster_pb2.ControlRequest(describeStream=pages.request)))
        return codec.STREAM.from_pb(pages.stream)

    async def read(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a read-only request and return the answer. The request may be sent several times."""
        try:
            return await self._request_on(self.subjects.info(), request)
        except OutcomeUnknownError as error:
            if request.HasField("openGroups"):
                raise
            raise UnavailableError(str(error)) from None

    async def command(self, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        """Send a request that needs operator permissions, and return the answer."""
        request.internal = self.internal
        return await self._request_on(self.subjects.control_admin(), request)

    async def _request_on(self, subject: str, request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        request.operationId = secrets.token_bytes(OPERATION_ID_SIZE_BYTES)
        payload = frames.seal(request)
        give_up_at = asyncio.get_running_loop().time() + self.deadline_s
        nobody_since: float | None = None
        unanswered, least_s = None, min(_LEAST_S, self.deadline_s / 4)
        majority = _Majority()
        async for attempt in retry_attempts(self.deadline_s):
            with attempt:
                left_s = give_up_at - asyncio.get_running_loop().time()
                if unanswered is not None and left_s < least_s:
                    raise unanswered
                try:
                    answer = await self.transport.request(subject, payload, min(ATTEMPT_S, max(left_s, least_s)))
                except NoRespondersError:
                    now = asyncio.get_running_loop().time()
                    nobody_since = now if nobody_since is None else nobody_since
                    self._check_cluster(now - nobody_since)
                    raise
                except OutcomeUnknownError:
                    waited_s = asyncio.get_running_loop().time() - give_up_at + self.deadline_s
                    unanswered = OutcomeUnknownError(
                        f"The metadata group did not answer within {waited_s:.1f} s. The request may or may not have been "
                        "applied. Check the result, then retry."
                    )
                    cluster = await self._controllers(left_s - ATTEMPT_S)
                    lone = cluster if cluster is not None and not cluster.metadataLeader else None
                    majority.add_answer(lone, asyncio.get_running_loop().time())
                    raise unanswered from None
                self._has_answered = True
                response = self._decode(answer, subject, request.operationId)
                if self._is_behind(response, request, subject):
                    request.linearizable = True  # the metadata leader has the newest state
                    payload = frames.seal(request)
                    raise UnavailableError(
                        "The answer of the node is older than data that this client has already read. Retry later, when "
                        "the node has caught up."
                    )
                if response.error != _Error.OK:
                    if response.retryAfterMs:
                        await asyncio.sleep(min(response.retryAfterMs / 1000, left_s))
                    raise control_error(response, request.WhichOneof("request") or "")
                return response
        raise AssertionError("Internal error: all attempts ended without a result. Please report it.")

    async def watch_majority(self, *, is_patient: bool = True) -> None:
        """Return when the metadata group has a leader and a majority. Run it while a command runs.

        Raises NoMajorityError within two seconds if too few controllers answer. ``is_patient``: keep asking while none answers.
        """
        majority, time = _Majority(), asyncio.get_running_loop().time
        while True:
            cluster = await self._controllers(_WHO_S)
            majority.add_answer(cluster, time())
            if cluster is None and not is_patient:
                return
            if cluster is not None and cluster.metadataLeader and not majority.is_down_or_drained:
                return
            await asyncio.sleep(MAJORITY_S / 5)

    async def _controllers(self, left_s: float) -> cluster_pb2.ClusterDescription | None:
        """Ask any controller for the members and the leader of the metadata group. None: no controller answered."""
        if left_s < _LEAST_S:
            return None
        request = cluster_pb2.ControlRequest(operationId=secrets.token_bytes(OPERATION_ID_SIZE_BYTES))
        request.describeCluster.maxBytes = 1
        subject = self.subjects.info()
        try:
            answer = await self.transport.request(subject, frames.seal(request), min(_WHO_S, left_s))
            response = self._decode(answer, subject, request.operationId)
        except (UnavailableError, OutcomeUnknownError):
            return None
        return response.cluster if response.error == _Error.OK else None

    def _is_behind(self, response: cluster_pb2.ControlResponse, request: cluster_pb2.ControlRequest, subject: str) -> bool:
        """Return whether ``response`` is older than the last command of this client. It may then describe a deleted stream."""
        if subject != self.subjects.info() or request.linearizable:
            if response.error == _Error.OK and response.index:
                self._last_write_index = response.index  # it may fall: a rescued metadata group may begin again below it
            return False
        if not 0 < response.index < self._last_write_index:
            return False
        self.transport.counters["answers of nodes that are behind"] += 1
        return True

    def _check_cluster(self, waited_s: float) -> None:
        """Raise NoClusterError if no node of the namespace has ever answered this client."""
        if not self._has_answered and waited_s >= min(_NO_RESPONDERS_S, self.deadline_s / 2):
            raise NoClusterError(
                f"No liftpy node of namespace {self.subjects.namespace!r} answers at {self.transport.server}. Check "
                "--namespace and --nats (connect: namespace, nats). If they are correct, all nodes are down: start "
                "them, then start this client again."
            )

    def _decode(self, answer: bytes, subject: str, operation_id: bytes) -> cluster_pb2.ControlResponse:
        """Return the decoded answer to the request with this ``operation_id``.

        An unreadable answer, or the answer to another request, raises an error that makes the client retry with the same id.
        """
        try:
            response = frames.decode(answer, cluster_pb2.ControlResponse)
        except ProtocolError as error:
            self.transport.counters["damaged answers"] += 1
            raise OutcomeUnknownError(
                f"Cannot decode the answer on {subject}: {error}. The request may have been applied. Check that nodes "
                "and client have compatible versions."
            ) from None
        if response.operationId != operation_id:
            self.transport.counters["answers to something else"] += 1
            raise OutcomeUnknownError(
                f"The answer on {subject} belongs to another request. The request may have been applied. Check the "
                "result, then retry."
            )
        return response


def control_error(response: cluster_pb2.ControlResponse, kind: str = "") -> LiftError:
    """Return the error for ``response``, a negative answer of the metadata group. ``kind``: field of the request, '' for unknown."""
    name = _Error.Name(response.error) if response.error in _Error.values() else str(response.error)
    detail = response.detail or f"the metadata group answered {name}"
    advice = _ADVICE.get((response.error, kind), "")
    return _ERRORS.get(response.error, LiftError)(f"{detail.rstrip('.')}. {advice}" if advice else detail)
