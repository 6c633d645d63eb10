"""A program of a user, as strict type checkers see it: mypy reads it with the sources (``pyproject.toml``). It is not run."""

from __future__ import annotations

from typing import assert_type

import liftpy
from liftpy.client import sync


async def publishes(url: str) -> int:
    async with liftpy.connect(url) as client:
        assert_type(client, liftpy.Client)
        await client.create_stream("orders", "shop.orders", config=liftpy.StreamConfig(min_isr=2), exist_ok=True)
        ack = await client.publish("orders", b"one", key=b"k", msg_id="order-1", expected_last=-1)
        assert_type(await client.publish("orders", b"two", ack=liftpy.AckPolicy.NONE), None)
        async with client.publisher("orders", options=liftpy.PublishOptions(window=8)) as publisher:
            assert_type((await publisher.publish(b"three")).offset, int)
        try:
            await client.publish("orders", b"four", ack=liftpy.AckPolicy.LEADER, timeout_s=5)
        except liftpy.OutcomeUnknownError as error:
            assert_type(error.message_id, str)
        async for record in client.consume("orders", until="end"):
            assert_type(record.value, bytes | None)
    held = await liftpy.connect(url)
    await held.close()
    return ack.offset


def script(url: str) -> int:
    with sync.connect(url) as client:
        stream = client.create_stream("orders", "shop.orders", exist_ok=True)
        assert_type(stream.subject, str)
        with client.publisher("orders") as publisher:
            publisher.send(b"one", key=b"k")
        assert_type([record.offset for record in client.consume("orders", until="end")], list[int])
        return client.publish("orders", b"two").offset
