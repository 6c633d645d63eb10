"""This project's own client for scripts, with its defaults, as tests/clients/protocol.py says: each publish waits in a thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import liftpy
from liftpy.client import sync
from tests.clients.protocol import Answer, Asked, serve

_THREADS = 64


class Own:
    """Several threads share one client."""

    @classmethod
    async def connect(cls, url: str) -> Own:
        """To that server."""
        return cls(await asyncio.to_thread(sync.connect, url))

    def __init__(self, client: sync.SyncClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(_THREADS)

    def _publish(self, asked: Asked) -> Answer:
        try:
            ack = self._client.publish(asked["subject"].replace(".", "-"), asked["value"].encode())
        except liftpy.LiftError as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        return {"stream": ack.stream, "seq": ack.offset + 1, "duplicate": ack.duplicate}

    async def publish(self, asked: Asked) -> Answer:
        """One, with its ack."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._publish, asked)

    async def many(self, asked: Asked) -> Answer:
        """As many at once as there are threads."""
        numbers = range(asked["count"])
        said = await asyncio.gather(*(self.publish({**asked, "value": str(number)}) for number in numbers))
        return {"seqs": [s["seq"] for s in said if "seq" in s], "failed": [s["failed"] for s in said if "failed" in s]}

    async def close(self) -> None:
        """End the connection."""
        await asyncio.to_thread(self._client.close)


if __name__ == "__main__":
    asyncio.run(serve(Own.connect))
