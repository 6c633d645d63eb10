"""Asking: what is asked of the metadata group and of nodes, without what publishes and reads. For commands that ask once and end: a
Client loads numpy and all that records need, which takes longer than the answer.

What nodes say of themselves, and controllers of the cluster, as a Client asks them.

What nodes are asked, and answer of themselves: one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from liftpy.core.base.ids import check_name
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.node_summary import ASKED, NodeSummary, glance_of
from liftpy.core.wire import envelope
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ProtocolError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import Transport, open_connection

if TYPE_CHECKING:
    from liftpy.client.admin import Admin

RELOAD = b'{"reload": true}'
"""Have a node read its settings again."""
SETTINGS = b'{"settings": true}'
"""Have it say them."""


def object_of(node_id: str, answer: bytes) -> dict[str, Any]:
    """The object in ``answer``, which came from ``node_id``. Raises ProtocolError."""
    try:
        said = load_json(answer)
    except ValueError as error:
        raise ProtocolError(f"{node_id} answered its status in a form that is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{node_id} answered its status in a form that is not a JSON object")
    return said


async def whole_status(ask: Callable[[bytes], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """A node's report with all its partitions, which it gives page by page: ``ask`` has it answer a question and may raise."""
    status = page = await ask(envelope.encode(MessageType.STATUS_REQUEST, b""))
    while page.get("more") and page["partitions"]:
        last = page["partitions"][-1]
        page = await ask(json.dumps({"after": [last["stream"], last["partition"]]}).encode())
        status["partitions"] += page["partitions"]
        status["more"] = page.get("more", False)
    return status


class NodeViews:
    """What a Client has of it."""

    _admin: Admin
    _subjects: Subjects
    _transport: Transport

    async def node_status(self, node_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """A node's own view of its partitions, as the node tells it. Raises UnavailableError when it does not answer."""
        return await whole_status(lambda question: self._status_page(node_id, question, timeout_s))

    async def node_health(self, node_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """What a node says of its ``health``, and why not under ``checks``; neither is there when its version is older."""
        return await self._status_page(node_id, b'{"health": true}', timeout_s)

    async def node_glance(self, node_id: str, timeout_s: float = 2.0) -> NodeSummary | None:
        """What a node says at a glance, in about 1 KiB; None where its version is older. Raises UnavailableError, ProtocolError."""
        return glance_of((await self._status_page(node_id, ASKED, timeout_s)).get("glance"))

    async def ask_node(self, node_id: str, question: bytes, timeout_s: float = 2.0) -> dict[str, Any]:
        """What a node answers to ``question`` (docs/operating.md, "The page"). Raises UnavailableError, ProtocolError."""
        return await self._status_page(node_id, question, timeout_s)

    async def node_ids(self) -> list[str]:
        """All registered nodes, by name, without the streams: cheap in a large cluster."""
        return await self._admin.node_ids()

    async def watch_majority(self) -> None:
        """Return once the metadata group is known to have a majority; raises NoMajorityError where it has none."""
        await self._admin.watch_majority()

    async def node_log_level(self, node_id: str, level: str, for_s: float, timeout_s: float = 2.0) -> dict[str, Any]:
        """Have a node log from ``level`` on for ``for_s``; needs an operator's rights. The answer may have an ``error``."""
        question = json.dumps({"level": level, "for_s": for_s}).encode()
        return object_of(node_id, await self._transport.request(self._subjects.control_level(node_id), question, timeout_s))

    async def node_settings(self, node_id: str, timeout_s: float = 2.0) -> list[dict[str, Any]]:
        """A row for each setting of a node: ``name``, ``value``, ``read`` where the file says another one that waits for a restart,
        ``source`` (default, file, env, flag; cluster: the metadata image), ``default``, ``applies`` (live, restart; cluster: by a
        command to the cluster); no secrets. Raises UnavailableError, ProtocolError."""
        said = (await self._status_page(node_id, SETTINGS, timeout_s)).get("settings")
        if not isinstance(said, list):
            raise ProtocolError(f"{node_id} does not say its settings: it is of an older version, or only starts")
        return said

    async def reload_settings(self, node_id: str, timeout_s: float = 5.0) -> dict[str, Any]:
        """Have a node read its settings again; needs an operator's rights. ``applied`` and ``wait``: names of what is live now, and of
        what waits for a restart; or ``error``, and nothing has changed. Raises UnavailableError, ProtocolError."""
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        return object_of(node_id, await self._transport.request(subject, RELOAD, timeout_s))

    async def remove_data(self, node_id: str, directories: list[str], timeout_s: float = 30.0) -> dict[str, Any]:
        """Have a node remove directories of streams that the cluster does not know; needs an operator's rights.

        Args:
            directories: ``<stream>-<uid>``, as ``node_health`` names them under ``unknown_streams``.

        Returns:
            ``removed`` and ``bytes``, or ``error``: then nothing was removed.

        Raises:
            UnavailableError, ProtocolError.
        """
        subject = self._subjects.control_settings(check_name(node_id, "node"))
        question = json.dumps({"remove_data": directories}).encode()
        return object_of(node_id, await self._transport.request(subject, question, timeout_s))

    async def controller_ids(self) -> list[str]:
        """Who forms the metadata group, its leader first where it has one; any controller says it. Raises UnavailableError."""
        return await self._admin.controller_ids()

    async def cluster_events(
        self, controller: str, after: tuple[int, int], since_ns: int = 0, timeout_s: float = 2.0
    ) -> dict[str, Any]:
        """What happened in the cluster, as that controller knows: ``events`` behind the place ``after`` (index, number), not
        before ``since_ns`` (wall clock), the oldest first; ``more`` where there are others; ``begins`` and ``begins_ns``: up to that
        index, and time, it does not know all. Needs an operator's rights. Raises UnavailableError, ProtocolError."""
        subject = self._subjects.control_events(check_name(controller, "node"))
        question = json.dumps({"after": list(after), "since_ns": since_ns}).encode()
        return object_of(controller, await self._transport.request(subject, question, timeout_s))

    async def _status_page(self, node_id: str, question: bytes, timeout_s: float) -> dict[str, Any]:
        subject = self._subjects.status(check_name(node_id, "node"))
        return object_of(node_id, await self._transport.request(subject, question, timeout_s))


class Inquirer(NodeViews):
    """What is asked of the metadata group is loaded when it is asked: a node tells of itself without any of it."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects

    @cached_property
    def _admin(self) -> Admin:  # type: ignore[override]  # it is made when it is asked for
        from liftpy.client.admin import Admin

        return Admin(self._transport, self._subjects)

    @property
    def admin(self) -> Admin:
        """What is asked of the metadata group."""
        return self._admin


@asynccontextmanager
async def asking(
    servers: str | Sequence[str], namespace: str, *, credentials: Credentials, name: str, timeout_s: float
) -> AsyncIterator[Inquirer]:
    """Connect as ``connect`` does, and close at the end. Raises UnavailableError, NotAllowedError, ConfigError."""
    connection = await open_connection(servers, credentials=credentials, name=name, timeout_s=timeout_s)
    transport = Transport(connection)
    try:
        yield Inquirer(transport, Subjects(namespace, principal=credentials.principal))
    finally:
        await transport.close()
