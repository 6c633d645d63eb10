"""QuietFetches: what a node's followers of quiet partitions say to their leaders, together, in one message per pair of nodes.

Goal: a thousand idle partitions cost two nodes a message and an answer each second, not a fetch and an answer each. Constraint:
whoever hears nothing notices it as soon as by fetches of its own, and a leader counts nothing that a fetch would not have shown it.

Algorithm: a follower that sat at the log end for ``quiet_rounds`` idle waits, with everything committed, waits in QUIET at the fetch
that was answered with nothing. Its node asks the leader's node, for all such fetches at once: do these still wait? The leader of each
says yes if that fetch is the last one that it counted, of the process that is live now, and still reaches its log end: then it is as
if the same fetch had come again, and ISR and lag follow from it as before. Whatever is not confirmed fetches by itself again, at once.
A question holds the whole list each time, so that a lost or repeated one leaves nothing behind; and what comes first (more records,
a wake-up, another LeaderEpoch) ends the wait as it ends every idle wait.

Two turns in a row without all answers: all of them fetch by themselves, and know when the leader was last heard. "No responders": at
once. A node that does not answer is not asked again for a while: it may be of a version that knows no such questions.

Worked example: 1,000 partitions of three replicas on three nodes. Each node follows 333 of each other node: two questions a second
leave it and two come to it, with an answer each: 4 messages sent a second where fetches every 3 s and their answers were 444.

Pure: the shell ticks it, sends what ``due`` gives, and brings what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.ids import PartitionKey

MAX_PER_QUESTION = 512
"""Fetches; some 40 KB with names of usual length, and a few milliseconds of the leader's loop."""
MISSES = 2
"""Turns in a row without all answers after which a leader's node is silent."""
ASK_AGAIN_NS = 60 * NS_PER_S
"""After a silent one."""


@dataclass(frozen=True, slots=True, eq=False)
class QuietFetch:
    """One partition's fetch that was answered with nothing and waits."""

    key: PartitionKey
    leader_epoch: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Question:
    """To the node ``leader``: do ``fetches`` still wait? ``number`` names it, and no other of this process."""

    number: int
    leader: str
    fetches: tuple[QuietFetch, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """These wait no more; their leader's node answered last at ``heard_ns``, monotonic."""

    fetches: tuple[QuietFetch, ...]
    heard_ns: int


@dataclass(slots=True)
class _Link:
    """What waits at one leader's node."""

    heard_ns: int
    """When the last questions were sent that were all answered; at first: when there was something to ask."""
    fetches: dict[PartitionKey, QuietFetch] = field(default_factory=dict)
    pages: tuple[tuple[QuietFetch, ...], ...] | None = None
    """``fetches`` in parts of a question each; None: they have changed."""
    open: dict[int, Question] = field(default_factory=dict)
    """Of the last turn, not answered yet."""
    asked_ns: int = 0
    misses: int = 0


class QuietFetches:
    """Those of one node. Times are monotonic ns; whoever calls may be late, not early."""

    def __init__(self, config: ReplicationConfig) -> None:
        self.interval_ns = round(
            min(config.max_idle_wait_s, config.max_lag_time_s / 4, config.max_leader_timeout_s / 2) * NS_PER_S
        )
        """Between two turns."""
        self._links: dict[str, _Link] = {}
        self._leader_of: dict[PartitionKey, str] = {}
        self._not_before_ns: dict[str, int] = {}
        """Leaders' nodes that were silent -> until when they are not asked; one entry for each node of the cluster at most."""
        self._next_number = 1
        self._turned_ns = 0

    def __len__(self) -> int:
        return len(self._leader_of)

    def add(self, fetch: QuietFetch, leader: str, now_ns: int) -> bool:
        """Ask ``leader`` for it from now on; False: that node is not asked, and the partition has to fetch by itself."""
        if now_ns < self._not_before_ns.get(leader, now_ns):
            return False
        self.remove(fetch.key)
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = _Link(now_ns)
        link.fetches[fetch.key], link.pages = fetch, None
        self._leader_of[fetch.key] = leader
        return True

    def remove(self, key: PartitionKey) -> None:
        """Its wait is over."""
        leader = self._leader_of.pop(key, None)
        if leader is None:
            return
        link = self._links[leader]
        del link.fetches[key]
        link.pages = None
        if not link.fetches:
            del self._links[leader]

    def due(self, now_ns: int) -> tuple[list[Question], list[Ended]]:
        """A turn: what to ask now, and who has waited for answers in vain."""
        late = bool(self._turned_ns) and now_ns - self._turned_ns > 2 * self.interval_ns
        self._turned_ns = now_ns if self._leader_of else 0
        questions, ended = [], []
        for leader, link in list(self._links.items()):
            if link.open and not late:  # else this process stood still, and the answers lie in its queues
                link.misses += 1
            if link.misses >= MISSES:
                self._not_before_ns[leader] = now_ns + ASK_AGAIN_NS
                ended.append(self._end(link, list(link.fetches.values())))
                continue
            if link.pages is None:
                link.pages = tuple(_pages(link.fetches.values()))
            link.open, link.asked_ns = {}, now_ns
            for page in link.pages:
                question = Question(self._next_number, leader, page)
                self._next_number += 1
                link.open[question.number] = question
                questions.append(question)
        return questions, ended

    def answered(self, question: Question, over: Collection[int]) -> Ended | None:
        """The fetches at the indexes ``over`` wait no more, the others do; None: nothing follows from it."""
        link = self._links.get(question.leader)
        if link is None or link.open.pop(question.number, None) is None:
            return None
        if not link.open:
            link.heard_ns, link.misses = link.asked_ns, 0
        ended = [fetch for index, fetch in enumerate(question.fetches) if index in over]
        return self._end(link, ended) if ended else None

    def failed(self, question: Question) -> Ended | None:
        """Nobody listens for that node, or the question could not be sent: everybody asks for himself."""
        link = self._links.get(question.leader)
        if link is None or question.number not in link.open:
            return None
        return self._end(link, list(link.fetches.values()))

    def _end(self, link: _Link, fetches: Iterable[QuietFetch]) -> Ended:
        still = tuple(fetch for fetch in fetches if link.fetches.get(fetch.key) is fetch)
        for fetch in still:
            self.remove(fetch.key)
        return Ended(still, link.heard_ns)


def _pages(fetches: Iterable[QuietFetch]) -> Iterable[tuple[QuietFetch, ...]]:
    every = tuple(fetches)
    return (every[start : start + MAX_PER_QUESTION] for start in range(0, len(every), MAX_PER_QUESTION))
