"""What a Client knows of consumer groups; a part of ``liftpy.client.Client``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from liftpy.client.cursor import Cursor, CursorHome
from liftpy.client.group import Group, GroupHome, GroupOptions, Hook
from liftpy.client.opening import Opening
from liftpy.client.queue import Queue, QueueHome, QueueOptions


class Grouping:
    """Mixed into Client."""

    def group(
        self,
        name: str,
        streams: Sequence[str],
        *,
        instance: str = "",
        options: GroupOptions | None = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
    ) -> Opening[Group]:
        """A member of the consumer group ``name``: ``async with client.group("bills", ["orders"]) as group: async for part in group``.

        ``streams``: names, or patterns with ``*``, which new streams join. ``instance``: a static identity; a process that comes back
        with it within the session goes on with its partitions. The hooks are told of partitions as they come and when they are gone;
        they are called between heartbeats and must not wait. Raises NotFoundError (no such stream), ConfigError, UnavailableError.
        """
        made = Group(cast("GroupHome", self), name, streams, instance, options or GroupOptions(), on_assigned, on_revoked)
        return Opening(made.open())

    def cursor(self, name: str, stream: str) -> Opening[Cursor]:
        """A named position in ``stream``, kept by the cluster: ``async with client.cursor("nightly", "orders") as cursor``, then
        ``fetch``, ``commit``, ``consume``. Who opens it holds it: commits of whoever did before are refused.

        Raises NotFoundError (no such stream, no stream of groups), GroupRefusedError (the name is a group's).
        """
        return Opening(Cursor(cast("CursorHome", self), name, stream).open())

    def queue(self, stream: str, group: str, *, options: QueueOptions | None = None) -> Opening[Queue]:
        """A worker of the work queue ``group`` over ``stream``: ``async with client.queue("jobs", "workers") as queue: async for job in
        queue: ...; await job.ack()``.

        Raises NotFoundError (no such stream), ConfigError, UnavailableError.
        """
        return Opening(Queue(cast("QueueHome", self), stream, group, options or QueueOptions()).open())
