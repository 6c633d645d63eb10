"""What partitions hold, told by their leaders as it changes: for who plans micro-batches, whom Spark asks 80 times a second.

One question per partition waits at the leader until more is committed (``PartitionReader.bounds``), and goes out again. So what is
known is as new as the way from the leader is long, and an idle partition costs a question in ``WAIT_S``. Nodes of before that was so
answer at once, and are asked every ``POLL_S``.

What is not as it was ends the watch: an error, another uid, another leadership. Then nothing is known, and who asks looks for himself.
As long as it lasts, no record that its leaders have told of can be gone by an election, because there was none; a leader that was
deposed and does not know it is believed for ``WAIT_S`` and the time of an answer: offsets are then too low, never too high, and who
reads looks at each record's LeaderEpoch anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping

from liftpy.errors import LiftError
from liftpy.spark.planning import PartitionView, Views

WAIT_S = 1.0
"""How long a leader may wait with its answer."""
POLL_S = 0.2
"""Between two questions to nodes that do not wait."""
PAUSE_S = 0.01
"""After an answer with news: a partition that commits without a break is asked so often."""
PAUSE_EACH_S = 0.0002
"""The same for each partition watched: so many of them are asked more seldom."""
UNWANTED_S = 10.0
"""Of a watch that nobody has looked at for so long nothing is left."""
AskLeader = Callable[[PartitionView, float], Coroutine[None, None, PartitionView]]
"""What a partition holds, as soon as its committed end is past that of the view, or after so many seconds."""


class Watch:
    """Of the partitions of one query. ``follow`` and what it starts run on an event loop; ``views`` may be called from any thread."""

    def __init__(self, ask: AskLeader, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._views: dict[tuple[str, int], PartitionView] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted_s = 0.0
        self.ended = True
        """Whether nothing is known."""

    def views(self) -> Views | None:
        """What is known now; None: nothing."""
        self._wanted_s = self._clock()
        return None if self.ended else dict(self._views)

    def follow(self, views: Mapping[tuple[str, int], PartitionView]) -> None:
        """Begin with what was just seen; what was watched before is not any more. On the event loop."""
        self.end()
        if not views:
            return
        self._views, self._wanted_s = dict(views), self._clock()
        self.ended = False
        pause_s = max(PAUSE_S, PAUSE_EACH_S * len(views))
        for view in views.values():
            task = asyncio.create_task(self._watch(view, pause_s), name=f"watch {view.stream}/{view.partition}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Nothing is known any more. On the event loop."""
        self.ended = True
        for task in self._tasks:
            task.cancel()

    async def _watch(self, view: PartitionView, pause_s: float) -> None:
        try:
            while self._clock() - self._wanted_s < UNWANTED_S:
                asked_s = self._clock()
                now = await self._ask(view, WAIT_S)
                if (now.uid, now.leader, now.leader_epoch) != (view.uid, view.leader, view.leader_epoch):
                    break
                waited = now.end_offset > view.end_offset or self._clock() - asked_s >= WAIT_S
                if now.end_offset >= view.end_offset:
                    self._views[view.key] = view = now
                await asyncio.sleep(pause_s if waited else POLL_S)
        except LiftError:
            pass  # who asks next hears it, if it lasts
        self.end()
