"""nats-py, as tests/clients/protocol.py says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import nats
import nats.errors
import nats.js.errors

from tests.clients.protocol import OPTIONS, Answer, Asked, serve

_MOST_AT_ONCE = 4000
"""Of the async publishes that nats-py keeps in flight."""


class NatsPy:
    """One connection, with nats-py's defaults."""

    @classmethod
    async def connect(cls, url: str) -> NatsPy:
        """To that server."""
        return cls(await nats.connect(url, max_reconnect_attempts=-1))

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._js = connection.jetstream(publish_async_max_pending=_MOST_AT_ONCE)

    async def publish(self, asked: Asked) -> Answer:
        """One, with its ack."""
        return await self._answer(self._js.publish(asked["subject"], asked["value"].encode(), headers=_headers(asked)))

    async def publish_async(self, asked: Asked) -> Answer:
        """The same, by a future."""
        coming = await self._js.publish_async(asked["subject"], asked["value"].encode(), headers=_headers(asked))
        return await self._answer(coming)

    async def _answer(self, coming: Awaitable[Any]) -> Answer:
        try:
            ack = await coming
        except nats.js.errors.APIError as error:
            return {"code": error.code, "err_code": error.err_code, "description": error.description}
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        return {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}

    async def many(self, asked: Asked) -> Answer:
        """As many at once as nats-py keeps."""
        seqs, failed = [], []
        for start in range(0, asked["count"], _MOST_AT_ONCE):
            numbers = range(start, min(asked["count"], start + _MOST_AT_ONCE))
            coming = [await self._js.publish_async(asked["subject"], b"%d" % number) for number in numbers]
            for answer in await asyncio.gather(*coming, return_exceptions=True):
                if isinstance(answer, BaseException):
                    failed.append(str(answer))
                else:
                    seqs.append(answer.seq)
        return {"seqs": seqs, "failed": failed}

    async def fast(self, asked: Asked) -> Answer:
        """The first message of a fast batch, as orbit sends it: nats-py itself has none."""
        inbox = self._connection.new_inbox()
        coming = await self._connection.subscribe(f"{inbox}.>")
        await self._connection.publish(asked["subject"], b"1", reply=f"{inbox}.batch.10.fail.1.0.$FI")
        error = json.loads((await coming.next_msg(timeout=10)).data)["error"]
        await coming.unsubscribe()
        return {name: error[name] for name in ("code", "err_code", "description")}

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()


def _headers(asked: Asked) -> dict[str, str] | None:
    return dict(asked.get("headers", {})) | {OPTIONS[name]: str(asked[name]) for name in OPTIONS if name in asked} or None


if __name__ == "__main__":
    asyncio.run(serve(NatsPy.connect))
