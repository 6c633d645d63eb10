"""SnapshotFetcher: brings a snapshot of another node's service into the own store. What is chosen: ``peers.py``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from liftpy.client import Client
from liftpy.core.services.snapshot import Identity, Offer, PeerSearch, Snapshot, SnapshotRange
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, LiftError, OutcomeUnknownError, ProtocolError, UnavailableError
from liftpy.nats.transport import Transport
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshot_store import SnapshotStore

logger = logging.getLogger("liftpy.service")

_ANSWER_S = 2.0
_TRIES = 3
"""Maximum number of attempts for each piece."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_SLOWEST_BYTES_PER_S = 64 * 1024
_BEGINS_SLOWLY_S = 10.0
"""Time after which a peer must deliver a minimum rate on average, in seconds."""
_BARRED_S = 60.0
"""Time for which a downloaded snapshot is not downloaded again, in seconds."""
_MAX_PEERS = 16


class SnapshotFetcher:
    """Snapshot downloads of one service process. ``order``: the newest one, None before the first."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        subjects: Subjects,
        settings: ServiceSettings,
        identity: Identity,
        store: SnapshotStore,
        order: Callable[[], pb.JoinLog | None],
    ) -> None:
        self._client = client
        self._transport = transport
        self._subjects = subjects
        self._settings = settings
        self._identity = identity
        self._store = store
        self._order = order
        self._search = PeerSearch()
        self._took_s: dict[bytes, float] = {}
        """Digest of what was taken, and when, monotonic."""
        self.problem = ""
        """Problem of the current download, as text. '': none."""
        self.fetched_bytes = 0
        self.tried = ""
        """Snapshots that the last ``fetch`` without a result has tried."""

    async def fetch(self, lowest: int, wanted: Callable[[Snapshot], bool]) -> bool:
        """Store a snapshot at ``lowest`` or above that is ``wanted``; whether there was one within ``snapshot_fetch_timeout_s``."""
        give_up_s, pause_s = time.monotonic() + self._settings.snapshot_fetch_timeout_s, _FIRST_PAUSE_S
        logger.warning("%s: the log begins at %d, above the snapshots here: other nodes' are asked for", self._identity, lowest)
        now_s = time.monotonic()
        self._took_s = {digest: took_s for digest, took_s in self._took_s.items() if now_s - took_s < _BARRED_S}
        self._search = PeerSearch(frozenset(self._took_s))
        try:
            while True:
                self.problem = f"looks for a snapshot beside another node, from {lowest} on"
                await self._ask_all()
                while (offer := self._next(lowest, wanted)) is not None:
                    if await self._take(offer):
                        return True
                if time.monotonic() >= give_up_s:
                    self.tried = self._search.explain(self._reach(lowest))
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        finally:
            self.problem = ""

    def _next(self, lowest: int, wanted: Callable[[Snapshot], bool]) -> Offer | None:
        order = self._order()
        if order is not None:
            self._search.agreed({told.position: (told.digest, told.nodes) for told in order.agreed})
        while (offer := self._search.best(self._reach(lowest))) is not None:
            if wanted(Snapshot(self._identity, offer.position, 0, 0, offer.output_count, (), b"")):
                return offer
            self._search.failed(offer, "is not of use")
        return None

    def _reach(self, lowest: int) -> SnapshotRange:
        order = self._order()
        if order is None:
            return SnapshotRange(lowest, lowest - 1, 0)
        return SnapshotRange(max(lowest, order.startOffset), order.highWatermark + 1, self._settings.max_snapshot_bytes)

    # ---- what there is ----------------------------------------------------------------------------------------------------
    async def _ask_all(self) -> None:
        who = self._identity
        try:
            stream = await self._client.stream(who.stream)
        except LiftError as error:
            self._search.said(who.stream, f"{error.code}: {error}")
            return
        if stream.uid != who.uid or who.partition >= len(stream.partitions):
            return
        nodes = [node for node in stream.partitions[who.partition].replicas if node != self._settings.node]
        await asyncio.gather(*map(self._ask, nodes[:_MAX_PEERS]))

    async def _ask(self, node: str) -> None:
        try:
            answer = await self._request(node, self._question())
        except LiftError as error:
            self._search.said(node, f"{error.code}: {error}")
            return
        told = (Offer(node, one.position, one.digest, one.sizeBytes, one.outputCount) for one in answer.offers)
        self._search.offered(node, told)

    def _question(self, **more: object) -> pb.PeerSnapshotRequest:
        who = self._identity
        return pb.PeerSnapshotRequest(
            service=who.service,
            stream=who.stream,
            partition=who.partition,
            streamUid=who.uid,
            **more,  # type: ignore[arg-type]
        )

    async def _request(self, node: str, question: pb.PeerSnapshotRequest) -> pb.PeerSnapshotAnswer:
        subject = self._subjects.service_snapshot(self._identity.service, node)
        answer = frames.decode(
            await self._transport.request(subject, frames.sealed(question), _ANSWER_S), pb.PeerSnapshotAnswer
        )
        if answer.problem:
            raise UnavailableError(answer.problem)
        return answer

    # ---- one of them ------------------------------------------------------------------------------------------------------
    async def _take(self, offer: Offer) -> bool:
        try:
            incoming = await asyncio.to_thread(self._store.incoming, offer.position)
            try:
                began_s, size_bytes = time.monotonic(), 0
                while size_bytes < offer.size_bytes:
                    self.problem = (
                        f"fetches the snapshot at {offer.position} from {offer.node}: {size_bytes} of {offer.size_bytes} bytes"
                    )
                    piece = await self._piece(offer, size_bytes)
                    await asyncio.to_thread(incoming.write, piece)
                    size_bytes += len(piece)
                    self.fetched_bytes += len(piece)
                    took_s = time.monotonic() - began_s
                    if took_s > _BEGINS_SLOWLY_S and size_bytes < took_s * _SLOWEST_BYTES_PER_S:
                        raise UnavailableError(
                            f"The snapshot download is too slow: {size_bytes} bytes in {took_s:.0f} s. The service tries another "
                            "node."
                        )
                await asyncio.to_thread(incoming.finish, offer.digest)
            finally:
                await asyncio.to_thread(incoming.close)
        except LiftError as error:
            logger.warning("%s: the snapshot at %d from %s: %s", self._identity, offer.position, offer.node, error)
            self._search.failed(offer, f"{error.code}: {error}", lies=isinstance(error, CorruptionError))
            return False
        logger.warning("%s: has the snapshot at %d from %s", self._identity, offer.position, offer.node)
        self._took_s[offer.digest] = time.monotonic()
        return True

    async def _piece(self, offer: Offer, start: int) -> bytes:
        room = min(self._settings.snapshot_chunk_bytes, self._transport.max_payload_bytes // 2)
        question = self._question(position=offer.position, digest=offer.digest, start=start, maxBytes=room)
        for tries_left in reversed(range(_TRIES)):
            try:
                data = (await self._request(offer.node, question)).data
                break
            except (UnavailableError, OutcomeUnknownError):
                if not tries_left:
                    raise
        if not 0 < len(data) <= min(room, offer.size_bytes - start):
            raise ProtocolError(
                f"The node sent {len(data)} bytes of the snapshot, but at most {min(room, offer.size_bytes - start)} "
                "were requested. The service tries another node."
            )
        return data
