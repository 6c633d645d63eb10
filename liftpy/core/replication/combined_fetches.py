"""``CombinedFetches``: combines the fetches of quiet partitions into one message per pair of nodes. Pure.

A thousand quiet partitions then cost two nodes one request and one answer per second. A follower whose last
``idle_polls_before_quiet`` fetches returned no records waits in phase QUIET. Its node sends one question about all such
fetches to the leader's node: do they still wait? The leader confirms a fetch if it is the last one that it counted from
the live process, and if it is still at the log end. A confirmation counts like a repeated fetch, for the ISR and for
lag. Any fetch that is not confirmed is sent individually at once. After two turns without all answers, or after "no
responders", all partitions of that leader's node fetch individually.

Example: 1,000 partitions with three replicas on three nodes. Combined fetches need 4 messages per second and node.
Individual ones need 444.

The shell calls ``start_turn`` regularly, sends the questions that it returns, and reports the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey

MAX_PER_QUESTION = 512
"""Maximum number of fetches in one question. Such a question has about 40 KB."""
MISSES = 2
"""Number of consecutive turns without all answers after which a leader's node counts as silent."""
ASK_AGAIN_NS = 60 * NS_PER_S
"""Time for which a silent node gets no questions, in nanoseconds."""
QUIET_WAIT = 0.6
"""Share of the lag time within which each quiet partition must be confirmed."""


@dataclass(frozen=True, slots=True, eq=False)
class CombinedFetch:
    """Fetch of one quiet partition that got an empty answer and waits for records."""

    key: PartitionKey
    leader_epoch: int
    request_id: int


@dataclass(frozen=True, slots=True)
class CombinedFetchRequest:
    """Question to the node ``leader``: do these fetches still wait? ``number`` is unique in this process."""

    number: int
    leader: str
    fetches: tuple[CombinedFetch, ...]


@dataclass(frozen=True, slots=True)
class ReleasedFetches:
    """Fetches that are no longer combined, so that their partitions must fetch individually again.

    ``last_answer_ns``: monotonic time of the last answer of the leader's node.
    """

    fetches: tuple[CombinedFetch, ...]
    last_answer_ns: int


@dataclass(slots=True)
class _NodeFetches:
    """Combined fetches of the partitions whose leaders are on one node."""

    last_answer_ns: int
    """Sending time of the last questions that were all answered. Initially: the time of the first fetch."""
    fetches: dict[PartitionKey, CombinedFetch] = field(default_factory=dict)
    pages: dict[int, tuple[tuple[CombinedFetch, ...], ...]] = field(default_factory=dict)
    """Turn -> ``fetches`` in pages of one question each. A missing turn must be computed again."""
    open: dict[int, CombinedFetchRequest] = field(default_factory=dict)
    """Questions of the last turn that have no answer yet."""
    request_ns: int = 0
    misses: int = 0


class CombinedFetches:
    """Combines the waiting fetches of all quiet partitions of one node into questions to their leaders' nodes.

    Times are monotonic nanoseconds. Calls of ``start_turn`` may be late, but not early.
    """

    def __init__(self, config: ReplicationConfig) -> None:
        self.interval_ns = round(
            min(config.max_idle_wait_s, config.max_lag_time_s / 4, config.max_leader_timeout_s / 2) * NS_PER_S
        )
        """Time between two turns, in nanoseconds."""
        self._shares = max(1, int(config.max_lag_time_s * QUIET_WAIT * NS_PER_S) // self.interval_ns)
        """Number of turns over which the fetches are spread."""
        self._turn = 0
        self._links: dict[str, _NodeFetches] = {}
        self._leader_of: dict[PartitionKey, str] = {}
        self._not_before_ns: dict[str, int] = {}
        """Silent leader node -> monotonic time until which it gets no questions."""
        self._next_number = 1
        self._turned_ns = 0

    def __len__(self) -> int:
        return len(self._leader_of)

    def add(self, fetch: CombinedFetch, leader: str, now_ns: int) -> bool:
        """Add the waiting fetch of a partition to the combined fetches to the node ``leader``.

        Return False if that node did not answer recently. Then the partition must fetch individually.
        """
        if now_ns < self._not_before_ns.get(leader, now_ns):
            return False
        self.remove(fetch.key)
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = _NodeFetches(now_ns)
        link.fetches[fetch.key] = fetch
        link.pages.pop(self._share(fetch), None)
        self._leader_of[fetch.key] = leader
        return True

    def remove(self, key: PartitionKey) -> None:
        leader = self._leader_of.pop(key, None)
        if leader is None:
            return
        link = self._links[leader]
        link.pages.pop(self._share(link.fetches.pop(key)), None)
        if not link.fetches:
            del self._links[leader]

    def _share(self, fetch: CombinedFetch) -> int:
        """Return the turn in which ``fetch`` is asked about, from 0. It stays the same while the fetch waits."""
        return fetch.request_id % self._shares

    def start_turn(self, now_ns: int) -> tuple[list[CombinedFetchRequest], list[ReleasedFetches]]:
        """Start a turn. Return the questions to send to other nodes now, and the fetches of nodes that did not answer.

        The partitions of the latter must fetch individually again.
        """
        late = bool(self._turned_ns) and now_ns - self._turned_ns > 2 * self.interval_ns
        self._turned_ns = now_ns if self._leader_of else 0
        self._turn = (self._turn + 1) % self._shares
        questions, ended = [], []
        for leader, link in list(self._links.items()):
            if link.open and not late:  # else this process stood still, and the answers lie in its queues
                link.misses += 1
            if link.misses >= MISSES:
                self._not_before_ns[leader] = now_ns + ASK_AGAIN_NS
                ended.append(self._end(link, list(link.fetches.values())))
                continue
            pages = self._pages_to_check(link)
            link.open, link.request_ns = {}, now_ns
            for page in pages:
                question = CombinedFetchRequest(self._next_number, leader, page)
                self._next_number += 1
                link.open[question.number] = question
                questions.append(question)
        return questions, ended

    def _pages_to_check(self, link: _NodeFetches) -> list[tuple[CombinedFetch, ...]]:
        """Return the fetches to ask the node of ``link`` about in this turn, divided into messages. Unanswered ones come first.

        Without fetches, return one empty page, which only checks whether the node answers.
        """
        again = [page for question in link.open.values() if (page := _still(question.fetches, link.fetches))]
        if self._turn not in link.pages:
            link.pages[self._turn] = tuple(_pages([f for f in link.fetches.values() if self._share(f) == self._turn]))
        return [*again, *(page for page in link.pages[self._turn] if page not in again)] or [()]

    def process_answer(self, question: CombinedFetchRequest, over: Collection[int]) -> ReleasedFetches | None:
        """Process an answer to ``question``. ``over``: indexes of the fetches that no longer wait at the leader.

        Return these fetches. Their partitions must fetch individually again. None: all fetches still wait, or the answer is
        late.
        """
        link = self._links.get(question.leader)
        if link is None or link.open.pop(question.number, None) is None:
            return None
        if not link.open:
            link.last_answer_ns, link.misses = link.request_ns, 0
        ended = [fetch for index, fetch in enumerate(question.fetches) if index in over]
        return self._end(link, ended) if ended else None

    def process_no_responders(self, question: CombinedFetchRequest) -> ReleasedFetches | None:
        """Process "no responders" for ``question``. Return all combined fetches to that node, or None if the question is outdated.

        Their partitions must fetch individually again.
        """
        link = self._links.get(question.leader)
        if link is None or question.number not in link.open:
            return None
        return self._end(link, list(link.fetches.values()))

    def _end(self, link: _NodeFetches, fetches: Iterable[CombinedFetch]) -> ReleasedFetches:
        still = tuple(fetch for fetch in fetches if link.fetches.get(fetch.key) is fetch)
        for fetch in still:
            self.remove(fetch.key)
        return ReleasedFetches(still, link.last_answer_ns)


def _still(fetches: tuple[CombinedFetch, ...], waiting: Mapping[PartitionKey, CombinedFetch]) -> tuple[CombinedFetch, ...]:
    """Return those of ``fetches`` that still wait. If all wait, return ``fetches`` itself.

    ``waiting``: partition -> its waiting fetch.
    """
    still = tuple(fetch for fetch in fetches if waiting.get(fetch.key) is fetch)
    return fetches if len(still) == len(fetches) else still


def _pages(every: list[CombinedFetch]) -> Iterable[tuple[CombinedFetch, ...]]:
    return (tuple(every[start : start + MAX_PER_QUESTION]) for start in range(0, len(every), MAX_PER_QUESTION))
