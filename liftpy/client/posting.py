"""What a publisher sends without acks: plain NATS messages, or the envelope where they can't carry it. Nothing tells whether it is
stored; that NATS has refused some of it is kept, and told once."""

from __future__ import annotations

import asyncio

from liftpy.client.outgoing import Address, enveloped, plain
from liftpy.client.transport import Transport
from liftpy.config import AckPolicy
from liftpy.errors import NotAllowedError
from liftpy.wire.headers import HeadersLike


class Posts:
    """Of one publisher. ``timeout_s``: for handing a message to the connection."""

    def __init__(self, transport: Transport, stream: str, partition: int, timeout_s: float) -> None:
        self._transport, self._stream, self._partition, self._timeout_s = transport, stream, partition, timeout_s
        self._some = False
        """Sent, and not settled."""
        self._denied: NotAllowedError | None = None
        """NATS refused one, and nobody was told."""

    async def send(
        self, address: Address, value: bytes | None, key: bytes | None, headers: HeadersLike | None, *, addressed: bool
    ) -> None:
        """Send one. Raises ConfigError for what can't be carried, ProtocolError (too large), UnavailableError (not sent),
        NotAllowedError when NATS has refused an earlier one."""
        self.raise_denied()
        self._some = True
        give_up_at = asyncio.get_running_loop().time() + self._timeout_s
        if addressed or key is not None or value is None:
            payload = enveloped(self._stream, self._partition, address.uid, value, key, headers, AckPolicy.NONE)
            await self._transport.publish(address.subject, payload, give_up_at=give_up_at)
            return
        payload, nats_headers = plain(value, headers)
        await self._transport.publish(address.subject, payload, headers=nats_headers, give_up_at=give_up_at)

    async def settle(self) -> None:
        """Return when the NATS server has all of them. Raises UnavailableError, and NotAllowedError if it has refused one."""
        if self._some:
            await self._transport.settle()
            self._some = False
            self.raise_denied()

    def denied(self, denial: NotAllowedError) -> None:
        """NATS refuses what goes out."""
        if self._some:
            self._denied = denial

    def raise_denied(self) -> None:
        """Once."""
        denied, self._denied = self._denied, None
        if denied is not None:
            raise denied
