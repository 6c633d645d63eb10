"""Combined fetches of a node with several processes. One request may name partitions of all processes, and gets one answer.

The first process divides the request, asks each worker for its part, and sends the answer. If a worker does not answer, its
partitions count as active: their followers send their own fetches again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from liftpy.core.base.worker_assignment import share_of
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.worker_frames import FrameKind
from liftpy.nats.request_guard import RequestGuard
from sidecar.partition.quiescence import FetchCombiner
from sidecar.runtime.tasks import spawn
from sidecar.workers.workers import WorkerHandle

WITHIN_S = 0.3
MOST_AT_ONCE = 256
"""Maximum number of requests that wait for workers. Further requests get no answer, and their senders retry."""


class WorkerCombinedFetches:
    """Answers combined fetches (one request about many idle partitions) for a node with workers.

    ``talk``: answers the part that concerns the first process. ``handles``: the workers.
    """

    def __init__(self, talk: FetchCombiner, handles: Sequence[WorkerHandle], counters: Counter[str] | None = None) -> None:
        self._talk = talk
        self._guard = RequestGuard("quiet fetches", Counter() if counters is None else counters)
        self._handles = handles
        self._waiting = 0

    def answer_question(self, reply: bytes, body: memoryview) -> None:
        """Answer a combined fetch to the reply subject ``reply``, after all workers have answered their parts.

        ``body``: the request without its envelope. Raises ProtocolError.
        """
        question = self._talk.decode_question(reply, body)
        if question is None or self._waiting >= MOST_AT_ONCE:
            return
        parts = split_by_process(question, len(self._handles) + 1)
        own = parts.pop(0, None)
        over = [] if own is None else _places(own, self._talk.over(_part(question, own)))
        if not parts:
            self._talk.answer(reply, question, over)
            return
        self._waiting += 1
        gathering = self._collect_answers(reply, question, over, parts)
        spawn(self._guard.run(gathering, reply), "quiet fetches of workers")

    async def _collect_answers(
        self, reply: bytes, question: pb.QuietFetches, over: list[int], parts: dict[int, list[int]]
    ) -> None:
        try:
            requests = (self._ask(self._handles[share - 1], question, places) for share, places in parts.items())
            for more in await asyncio.gather(*requests):
                over += more
            self._talk.answer(reply, question, sorted(over))
        finally:
            self._waiting -= 1

    async def _ask(self, handle: WorkerHandle, question: pb.QuietFetches, places: list[int]) -> list[int]:
        answer_bytes = await handle.ask(FrameKind.QUIET, _part(question, places).SerializeToString(), WITHIN_S)
        if answer_bytes is None:
            return places
        try:
            answer = pb.QuietFetchesAnswer.FromString(answer_bytes)
        except DecodeError:
            return places
        return _places(places, answer.over) if answer.count == len(places) else places


def split_by_process(question: pb.QuietFetches, workers: int) -> dict[int, list[int]]:
    """Return the ascending indexes of the fetches in ``question`` that concern each process, by the number of the process."""
    parts: dict[int, list[int]] = {}
    for place, fetch in enumerate(question.fetches):
        parts.setdefault(share_of(fetch.stream, fetch.partition, workers), []).append(place)
    return parts


def _part(question: pb.QuietFetches, places: list[int]) -> pb.QuietFetches:
    part = pb.QuietFetches(replicaID=question.replicaID, incarnation=question.incarnation, question=question.question)
    part.fetches.extend(question.fetches[place] for place in places)
    return part


def _places(places: list[int], of_part: Sequence[int]) -> list[int]:
    """Convert indexes of fetches in one part of a request into indexes in the whole request. Invalid ones are left out.

    ``places``: index in the whole request of each fetch of the part. ``of_part``: indexes to convert.
    """
    return [places[place] for place in of_part if place < len(places)]
