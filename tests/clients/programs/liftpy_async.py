"""This project's own client with its defaults, as tests/clients/protocol.py says; the stream is named as its subject, with a dash."""

from __future__ import annotations

import asyncio

import liftpy
from tests.clients.protocol import Answer, Asked, serve


class Own:
    """``client.publish``, which makes message ids itself."""

    @classmethod
    async def connect(cls, url: str) -> Own:
        """To that server."""
        return cls(await liftpy.connect(url))

    def __init__(self, client: liftpy.Client) -> None:
        self._client = client

    async def publish(self, asked: Asked) -> Answer:
        """One, with its ack."""
        try:
            ack = await self._client.publish(asked["subject"].replace(".", "-"), asked["value"].encode())
        except liftpy.LiftError as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        return {"stream": ack.stream, "seq": ack.offset + 1, "duplicate": ack.duplicate}

    async def many(self, asked: Asked) -> Answer:
        """All at once."""
        numbers = range(asked["count"])
        said = await asyncio.gather(*(self.publish({**asked, "value": str(number)}) for number in numbers))
        return {"seqs": [s["seq"] for s in said if "seq" in s], "failed": [s["failed"] for s in said if "failed" in s]}

    async def close(self) -> None:
        """End the connection."""
        await self._client.close()


if __name__ == "__main__":
    asyncio.run(serve(Own.connect))
