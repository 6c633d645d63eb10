"""Single requests to nodes and controllers, for commands such as ``liftpy node show``.

This module imports neither NumPy nor the record codec, because these imports take longer than the request.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from liftpy.client.arguments import check_number
from liftpy.core.base.ids import check_name
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.node_summary import ASKED, NodeSummary, summary_from_json
from liftpy.core.wire import envelope
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import LiftError, NotFoundError, ProtocolError, UnavailableError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import NoRespondersError, Transport, open_connection

if TYPE_CHECKING:
    from liftpy.client.metadata_requests import ClusterState, MetadataRequests

RELOAD = b'{"reload": true}'
"""Request body: read the settings again."""
SETTINGS = b'{"settings": true}'
"""Request body: return the settings."""


def object_of(node_id: str, answer: bytes) -> dict[str, Any]:
    """Decode the answer of a node, which is a JSON object. Raises ProtocolError that names the node if it is not valid."""
    try:
        value = load_json(answer)
    except ValueError as error:
        raise ProtocolError(
            f"The status of node {node_id} is not JSON: {error}. Check that node and client have compatible versions."
        ) from None
    if not isinstance(value, dict):
        raise ProtocolError(
            f"The status of node {node_id} is not a JSON object. Check that node and client have compatible versions."
        )
    return value


class NodeRequests:
    """Requests to single nodes and controllers. ``client.admin`` has these methods, and its class says which errors they raise.

    ``metadata``: the way to the metadata group. None: created at the first request that needs it.
    """

    def __init__(self, transport: Transport, subjects: Subjects, metadata: MetadataRequests | None = None) -> None:
        self._transport = transport
        self._subjects = subjects
        self._given = metadata

    @cached_property
    def _metadata(self) -> MetadataRequests:
        if self._given is not None:
            return self._given
        from liftpy.client.metadata_requests import MetadataRequests  # a command that asks one node starts faster without it

        return MetadataRequests(self._transport, self._subjects)

    async def describe_cluster(self, *, linearizable: bool = False) -> ClusterState:
        """Return the nodes, the streams and the controllers of the cluster.

        Args:
            linearizable: If True, the answer contains every change that was committed before this call. Default False:
                the state that the metadata leader last applied.

        Example:
            state = await client.admin.describe_cluster()
            print(state.metadata_leader, sorted(state.image.nodes))
        """
        return await self._metadata.describe(linearizable=linearizable)

    async def node_status(self, node_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """Return the status of a node and all its partitions, as the node reports it.

        Args:
            node_id: Id of the node.
            timeout_s: Time limit per page, in seconds. Default 2.
        """
        status = page = await self.ask_node(node_id, envelope.encode(MessageType.STATUS_REQUEST, b""), timeout_s)
        after: list[Any] = []
        while page.get("more") and page["partitions"]:
            last, before = page["partitions"][-1], after
            after = [last["stream"], last["partition"]]
            if after <= before:
                raise ProtocolError(
                    f"Node {node_id} returned a page of its status twice. Retry. If this repeats, upgrade the node."
                )
            page = await self.ask_node(node_id, json.dumps({"after": after}).encode(), timeout_s)
            status["partitions"] += page["partitions"]
            status["more"] = page.get("more", False)
        return status

    async def node_health(self, node_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """Return the health of a node: ``health``, and the failed checks in ``checks``.

        Args:
            node_id: Id of the node.
            timeout_s: Time limit, in seconds. Default 2.
        """
        return await self.ask_node(node_id, b'{"health": true}', timeout_s)

    async def node_glance(self, node_id: str, timeout_s: float = 2.0) -> NodeSummary | None:
        """Return a summary of a node, about 1 KiB. None if the node's version is too old.

        Args:
            node_id: Id of the node.
            timeout_s: Time limit, in seconds. Default 2.
        """
        return summary_from_json((await self.ask_node(node_id, ASKED, timeout_s)).get("glance"))

    async def ask_node(self, node_id: str, question: bytes, timeout_s: float = 2.0) -> dict[str, Any]:
        """Send a status request to a node and return its answer.

        Args:
            node_id: Id of the node.
            question: The request, as JSON. The page on operating nodes lists the requests.
            timeout_s: Time limit, in seconds. Default 2.
        """
        subject = self._subjects.status(check_name(node_id, "node"))
        return _accepted(node_id, await self._request(node_id, subject, question, timeout_s))

    @property
    def is_connected(self) -> bool:
        """True while the connection to NATS is up."""
        return self._transport.connection.is_connected

    async def node_ids(self) -> list[str]:
        """Return the ids of all registered nodes, sorted. Cheap in a large cluster."""
        return sorted(node.nodeId for node in await self._metadata.nodes())

    async def watch_majority(self) -> None:
        """Return when the metadata group has a leader and a majority. Keep asking while no controller answers.

        Raises:
            NoMajorityError: Too few controllers answer.
        """
        await self._metadata.watch_majority()

    async def check_majority(self) -> None:
        """Check that the metadata group has a majority. Return at once if no controller answers.

        Raises:
            NoMajorityError: Too few controllers answer.
        """
        await self._metadata.watch_majority(is_patient=False)

    async def node_log_level(self, node_id: str, level: str, for_s: float, timeout_s: float = 2.0) -> dict[str, Any]:
        """Set the log level of a node for a limited time. Needs operator permissions.

        Args:
            node_id: Id of the node.
            level: Log level, such as ``debug``.
            for_s: Duration, in seconds.
            timeout_s: Time limit of the request, in seconds. Default 2.

        Returns:
            The answer of the node. It has ``error`` if the node rejected the request.
        """
        check_number("for_s", for_s)
        question = json.dumps({"level": level, "for_s": for_s}).encode()
        return await self._ask_node(node_id, self._subjects.control_level(check_name(node_id, "node")), question, timeout_s)

    async def node_settings(self, node_id: str, timeout_s: float = 2.0) -> list[dict[str, Any]]:
        """Return all settings of a node, without secrets.

        Each row has ``name``, ``value``, ``default``, ``source`` and ``applies``. ``source`` is default, file, env,
        flag or cluster. ``applies`` is live, restart or cluster (changed by a command). ``read`` is a new value in the
        file that needs a restart.

        Args:
            node_id: Id of the node.
            timeout_s: Time limit, in seconds. Default 2.

        Raises:
            ProtocolError: The node's version is too old, or the node is still starting.
        """
        subject = self._subjects.status(check_name(node_id, "node"))
        settings = _accepted(node_id, await self._ask_node(node_id, subject, SETTINGS, timeout_s)).get("settings")
        if not isinstance(settings, list):
            raise ProtocolError(
                f"Node {node_id} does not report its settings. It has an older version, or it has not finished its "
                "start. Retry later, or upgrade the node."
            )
        return settings

    async def reload_settings(self, node_id: str, timeout_s: float = 5.0) -> dict[str, Any]:
        """Make a node read its settings again. Needs operator permissions.

        Args:
            node_id: Id of the node.
            timeout_s: Time limit, in seconds. Default 5.

        Returns:
            ``applied``: names of settings that changed. ``wait``: names that need a restart. Or ``error``: nothing
            changed.
        """
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        return await self._ask_node(node_id, subject, RELOAD, timeout_s)

    async def remove_data(self, node_id: str, directories: list[str], timeout_s: float = 30.0) -> dict[str, Any]:
        """Make a node delete the directories of streams that no longer exist in the cluster. Needs operator permissions.

        Args:
            node_id: Id of the node.
            directories: ``<stream>-<uid>``, as ``node_health`` names them under ``unknown_streams``.
            timeout_s: Time limit, in seconds. Default 30.

        Returns:
            ``removed`` and ``bytes``, or ``error``: then nothing was removed.
        """
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        question = json.dumps({"remove_data": directories}).encode()
        return await self._ask_node(node_id, subject, question, timeout_s)

    async def node_events(self, node_id: str, after: int = -1, since_ns: int = 0, timeout_s: float = 2.0) -> dict[str, Any]:
        """Return events that a node has seen by itself, oldest first. Needs operator permissions.

        Args:
            node_id: Id of the node.
            after: Only events after this number. Default -1: all.
            since_ns: Only events since this wall-clock time, in nanoseconds. Default 0: all.
            timeout_s: Time limit, in seconds. Default 2.

        Returns:
            The answer of the node: ``node_events`` with ``events`` and ``more``. An older node returns ``error``.
        """
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        question = json.dumps({"node_events": {"after": after, "since_ns": since_ns}}).encode()
        return await self._ask_node(node_id, subject, question, timeout_s)

    async def note_records_read(self, node_id: str, stream: str, partition: int, query: str, timeout_s: float = 2.0) -> None:
        """Make a node log an audit event: a person has read records of a stream. Needs operator permissions.

        Args:
            node_id: Id of the node.
            stream: Name of the stream.
            partition: Number of the partition.
            query: The request of the person, as text.
            timeout_s: Time limit, in seconds. Default 2.

        Raises:
            UnavailableError: The node did not answer in time, or its version does not know the request.
        """
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        details = {"stream": stream, "partition": partition, "sender": self._subjects.principal, "query": query}
        answer = await self._ask_node(node_id, subject, json.dumps({"records_read": details}).encode(), timeout_s)
        if answer.get("noted") is not True:
            raise UnavailableError(f"Node {node_id} cannot keep the audit event: {answer.get('error')}. Upgrade the node.")

    async def controller_ids(self) -> list[str]:
        """Return the ids of all controllers, the metadata leader first. Any controller answers."""
        cluster = await self._metadata.summary()
        return sorted((one.nodeId for one in cluster.controllers), key=lambda node: (node != cluster.metadataLeader, node))

    async def cluster_events(
        self, controller: str, after: tuple[int, int], since_ns: int = 0, timeout_s: float = 2.0
    ) -> dict[str, Any]:
        """Return cluster events that a controller has stored, oldest first. Needs operator permissions.

        Args:
            controller: Id of the controller.
            after: Only events after this position: a pair of metadata log index and number within the entry.
            since_ns: Only events since this wall-clock time, in nanoseconds. Default 0: all.
            timeout_s: Time limit, in seconds. Default 2.

        Returns:
            ``events``, and ``more`` if there are others. The controller does not have all events before ``begins``
            (index) and ``begins_ns`` (time).
        """
        subject = self._subjects.control_events(check_name(controller, "node"))
        question = json.dumps({"after": list(after), "since_ns": since_ns}).encode()
        return await self._request(controller, subject, question, timeout_s)

    async def _request(self, node_id: str, subject: str, question: bytes, timeout_s: float) -> dict[str, Any]:
        check_number("timeout_s", timeout_s)
        return object_of(node_id, await self._transport.request(subject, question, timeout_s))

    async def _ask_node(self, node_id: str, subject: str, question: bytes, timeout_s: float) -> dict[str, Any]:
        """Send the request ``question`` to a node on ``subject`` and return its answer.

        Raise NotFoundError if the node does not answer and the cluster has no node with this id.
        """
        try:
            return await self._request(node_id, subject, question, timeout_s)
        except NoRespondersError:
            await self.check_node(node_id)
            raise

    async def check_node(self, node_id: str) -> None:
        """Return if the cluster has this node, or if the metadata group does not answer.

        Args:
            node_id: Id of the node.

        Raises:
            NotFoundError: The cluster has no such node. The text names its nodes.
        """
        try:
            nodes = await self.node_ids()
        except LiftError:
            return
        if node_id not in nodes:
            raise NotFoundError(f"There is no node {node_id!r}. The nodes are {', '.join(nodes)}.") from None


@asynccontextmanager
async def connect_for_requests(
    servers: str | Sequence[str], namespace: str, *, credentials: Credentials, name: str, timeout_s: float
) -> AsyncIterator[NodeRequests]:
    """Connect to NATS, yield a NodeRequests, and close the connection at the end of the block.

    ``servers``: NATS URLs. ``name``: name of the connection. ``timeout_s``: time limit for connecting, in seconds. Raises
    UnavailableError, NotAllowedError or ConfigError if the connection fails.
    """
    check_number("timeout_s", timeout_s)
    connection = await open_connection(servers, credentials=credentials, name=name, timeout_s=timeout_s)
    transport = Transport(connection)
    try:
        yield NodeRequests(transport, Subjects(namespace, principal=credentials.principal))
    finally:
        await transport.close()


def _accepted(node_id: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the ``answer`` of a node to a status request. Raise UnavailableError if the node rejected the request."""
    if "error" in answer:
        raise UnavailableError(f"Node {node_id} rejected a status request: {answer['error']}.")
    return answer
