"""Deletes data of partitions and streams that no longer exist.

A node that is not a controller asks a controller before it deletes data (``liftpy.core.metadata.data_deletion``). An
operator can request the deletion of streams that the cluster does not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from liftpy.core.base.ids import PartitionKey, split_folder
from liftpy.core.metadata.data_deletion import may_delete, question
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import LiftError
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.group import MetadataGroup

logger = logging.getLogger("liftpy.partitions")

_ATTEMPT_S = 2.0
_PAUSE_S = 0.2
_GIVE_UP_AFTER_S = 30.0
"""Time without an answer of a controller after which a partition ends and keeps its data, in seconds.

The node retries after ``LATER_S``.
"""
LATER_S = 30.0
"""Time after which a rejected or unanswered deletion is tried again, in seconds."""
_REMEMBERED = 10_000
MOST_UNKNOWN = 100
"""Maximum number of directories of unknown streams that a node lists, and removes at one request."""
_MOST_CHARS = 200
"""Maximum length of the name of a directory, in characters."""


def is_directory(name: object) -> bool:
    """Return whether ``name`` may be the name of a stream's directory: ASCII text that is not too long."""
    return isinstance(name, str) and 0 < len(name) <= _MOST_CHARS and name.isascii()


class Deletions:
    """Decides whether this node may delete the data of a partition that it no longer has."""

    def __init__(self, group: MetadataGroup, node_id: str) -> None:
        self._group = group
        self._node_id = node_id
        self._deleted: dict[str, None] = {}
        """Uids of streams that a controller reported as deleted, as an ordered set. One answer serves all partitions of a stream."""
        self._asking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Cancel the questions to controllers that have no answer yet, and allow no further deletion."""
        self._closed.set()

    async def is_allowed(self, key: PartitionKey) -> bool | None:
        """Return True if the data of ``key`` may be deleted, False if not. None: no controller answered.

        The call never raises an error.
        """
        if self._group.decides:  # its own image is committed
            return True
        lock = self._asking.setdefault(key.uid, asyncio.Lock())
        try:
            async with lock:
                return key.uid in self._deleted or await self._ask_controller(key)
        finally:
            if not lock.locked():
                self._asking.pop(key.uid, None)

    async def _ask_controller(self, key: PartitionKey) -> bool | None:
        deadline = time.monotonic() + _GIVE_UP_AFTER_S
        while not self._closed.is_set() and time.monotonic() < deadline:
            response = await self._group.propose(question(key), _ATTEMPT_S)
            allowed = may_delete(response, key, self._node_id)
            if allowed is None:
                await asyncio.sleep(_PAUSE_S)
                continue
            if not allowed:
                logger.error(
                    (
                        "partition not deleted partition=%s: the metadata feed removed it from this node, but the "
                        "controllers did not. Keeping its data and fetching the image again. Another client publishes on the "
                        "feed: restrict its NATS permissions"
                    ),
                    key,
                )
                self._group.distrust()
            elif not response.HasField("stream"):
                self._remember(key.uid)
            return allowed
        logger.warning(
            "partition not deleted partition=%s: no controller confirms that it left this node, keeping its data", key
        )
        return None

    def _remember(self, uid: str) -> None:
        self._deleted[uid] = None
        if len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]


def _is_known(folder: str, image: ClusterImage) -> bool:
    name, uid = split_folder(folder) or ("", "")
    stream = image.streams.get(name)
    return stream is not None and stream.uid == uid


class UnknownStreams:
    """Directories of streams that the cluster did not know when this node started.

    The stream was deleted while the node was down, or belongs to another cluster. The node never deletes a directory by itself
    [M11]. A metadata group that was restored from an old backup may not know a stream that is still needed. An operator names
    the directories, and a controller must confirm that no stream has that uid.

    Args:
        folders: Names of directories, ``<stream>-<uid>``. None of them is open, because the image has none of these streams.
        group: Metadata group, as this process sees it.
        forget: Called with ``<stream>-<uid>/<partition>`` for each log that was deleted.
    """

    def __init__(
        self,
        folders: Iterable[str],
        folder: DataDirectory,
        group: MetadataGroup,
        forget: Callable[[str], None],
    ) -> None:
        self._folders = sorted(folders)
        self._folder = folder
        self._group = group
        self._forget = forget
        self._removing = asyncio.Lock()

    def names(self) -> list[str]:
        """Return the names of at most ``MOST_UNKNOWN`` directories of streams that the cluster does not know."""
        image, folders = self._group.image, iter(self._folders)
        unknown = (name for name in folders if not _is_known(name, image) and (self._folder.path / "streams" / name).exists())
        listed = list(islice(unknown, MOST_UNKNOWN))
        self._folders = [*listed, *folders]
        return listed

    async def remove(self, names: list[str]) -> dict[str, Any]:
        """Delete the directories ``names`` if a controller confirms that their streams do not exist. Concurrent calls run one by one.

        Returns:
            ``removed`` (names of the directories) and ``bytes`` (their total size). If nothing was deleted: ``error``
                (text).
        """
        async with self._removing:
            return await self._remove_data(list(dict.fromkeys(names)))

    async def _remove_data(self, names: list[str]) -> dict[str, Any]:
        there = set(self.names())
        if wrong := sorted(set(names) - there):
            has = f"it has {', '.join(sorted(there))}" if there else "it has none"
            return {"error": f"no directory {', '.join(wrong)} of a stream that the cluster does not know: {has}"}
        for name in names:
            split = split_folder(name)
            if split is None:
                return {"error": f"{name} is no directory of a stream: nothing was removed"}
            response = await self._group.propose(question(PartitionKey(*split, 0)), _ATTEMPT_S)
            if response.error != response.NOT_FOUND:
                is_there = response.error == response.OK
                why = "the cluster has that stream" if is_there else "no controller confirms that the stream is gone"
                return {"error": f"{name}: {why}: nothing was removed"}
        size_bytes = 0
        for name in names:
            try:
                logs, removed_bytes = await asyncio.to_thread(self._folder.delete_unknown, name)
            except (LiftError, OSError) as error:
                return {"error": f"{name} can't be removed: {error}"}
            for log in logs:
                self._forget(log)
            size_bytes += removed_bytes
            logger.warning("data of an unknown stream removed directory=%s bytes=%d", name, removed_bytes)
        return {"removed": names, "bytes": size_bytes}
