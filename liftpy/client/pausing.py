"""Pausing: partitions that take no publishes for a while; their records stay, and are read."""

from __future__ import annotations

from collections.abc import Iterable

from liftpy.client.admin import Admin
from liftpy.cluster.image import StreamImage
from liftpy.partition import Pause


class Pauses:
    """What a Client has of it."""

    _admin: Admin

    async def pause(
        self,
        stream: str,
        partitions: Iterable[int] | None = None,
        *,
        resume_on_publish: bool = False,
        resume_all: bool = False,
        uid: str = "",
    ) -> StreamImage:
        """Have partitions (None: all) take no publishes until ``resume``. Who waits for an answer is refused (PublishRejectedError,
        PAUSED), plain messages are dropped and counted; what was taken before is committed and acknowledged, reading goes on.

        ``resume_on_publish``: until somebody publishes; the first publish is stored and acknowledged, a moment later than else.
        ``resume_all``: the same, and a publish to one partition resumes all of the stream that are paused so. Leaders know within
        milliseconds. Returns the stream as it is decided; pausing what is paused so changes nothing.
        Raises NotFoundError (no such stream, or partition: then none is paused), ConfigError, UnavailableError.
        """
        on_publish = Pause.UNTIL_PUBLISH_TO_ANY if resume_all else Pause.UNTIL_PUBLISH
        until = on_publish if resume_on_publish or resume_all else Pause.UNTIL_RESUMED
        return await self._admin.pause(stream, partitions, until, uid=uid)

    async def resume(self, stream: str, partitions: Iterable[int] | None = None, *, uid: str = "") -> StreamImage:
        """Have partitions (None: all) take publishes again, as soon as their leaders know: within milliseconds. Of what is not paused
        nothing is changed. Raises as ``pause`` does."""
        return await self._admin.pause(stream, partitions, Pause.NOT_PAUSED, uid=uid)
