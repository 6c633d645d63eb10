"""Faults that come together, because a rule only matters then. Each kind of plot draws from its own generator, at every tick."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.raft.faults import Faults
    from tests.simulation.raft.group_simulation import Run


class Plots:
    """Of one run. What it does to links and processes is done through ``Faults``."""

    def __init__(self, run: Run, faults: Faults) -> None:
        self._run = run
        self._faults = faults
        self._favourite = run.draws["favourite plot"].choice((*PLOTS, ""))
        self._busy_until = run.now + 1
        """One at a time, and none before there is a group."""
        self._quiet_until = 0.0
        self._feed_cut: dict[str, float] = {}
        """Node -> until when nothing of the feed reaches it."""
        self._slow: dict[str, float] = {}
        """Member -> until when what it is sent, and sends, takes long, and some is lost."""
        self._heard: set[str] = set()
        """Members that have lost their folder and have heard a leader since."""

    @property
    def is_quiet(self) -> bool:
        """Whether clients ask for nothing."""
        return self._quiet_until > self._run.now

    def feed_is_cut(self, node_id: str) -> bool:
        """Whether the node's subscription of the feed brings nothing; its requests and their answers go on."""
        return self._feed_cut.get(node_id, 0.0) > self._run.now

    def delay_s(self, sender: str, receiver: str) -> float | None:
        """How much longer a frame takes, None: it is lost."""
        slow = max(self._slow.get(sender, 0.0), self._slow.get(receiver, 0.0)) > self._run.now
        if not slow:
            return 0.0
        return 0.1 if self._run.draws["slow frames"].random() > 0.04 else None

    def heal(self) -> None:
        """No more of it."""
        self._slow.clear()
        self._quiet_until = 0.0
        self._feed_cut.clear()

    def tick(self) -> None:
        """New ones begin."""
        run = self._run
        leader = next((name for name, member in run.up.items() if member.log.leads), "")
        for kind, begin in PLOTS.items():
            hit = run.draws[kind].random() < (_OFTEN if kind == self._favourite else _SELDOM)
            if hit and leader and self._busy_until <= run.now:
                run.seen[f"plots: {kind}"] += 1
                self._busy_until = run.now + begin(self, leader, run.draws[kind])
        self._lose_leaders_at_once()

    def deaf_follower(self, leader: str, draw: random.Random) -> float:
        """One follower hears the leader no more while nothing is logged: it lacks nothing, campaigns, and another one that does hear
        the leader could elect it."""
        run = self._run
        if len(run.group) < 2:
            return 0
        deaf, length_s = draw.choice([name for name in run.group if name != leader]), 1 + draw.random()
        self._quiet_until = run.now + 0.3 + length_s
        self._after(0.3, lambda: self._faults.cut_link(leader, deaf, run.now + length_s))
        return length_s + 1

    def stale_leader(self, leader: str, draw: random.Random) -> float:
        """The leader and one node hear each other, and nobody else hears either; later the node's connection breaks: its next metadata
        leader is told that nobody is there, and knows nothing of what the one before has granted."""
        run = self._run
        node, until = draw.choice(sorted(run.nodes)), run.now + 3 + draw.random()
        breaks_s, broken_s = 0.6 + draw.random() * 0.9, 1 + draw.random() * 2
        for name in run.group:
            if name != leader:
                self._faults.cut_link(leader, name, until)
                self._faults.cut_link(node, name, until)
        self._after(breaks_s, lambda: self._faults.cut_off(node, run.now + broken_s))
        return 3

    def fenced_behind(self, leader: str, draw: random.Random) -> float:
        """A node is away until it is fenced, and comes back without the feed: it knows nothing of what it has lost."""
        run = self._run
        node, away_s, behind_s = draw.choice(sorted(run.nodes)), 1.7 + draw.random() * 1.5, 1 + draw.random() * 2
        self._faults.cut_off(node, run.now + away_s)
        self._feed_cut[node] = run.now + away_s + behind_s
        return away_s

    def both_behind(self, leader: str, draw: random.Random) -> float:
        """A node and a follower are away together for so long that the follower needs a snapshot: what it held before is no way from
        the node's image to its own."""
        run = self._run
        if len(run.group) < 2:
            return 0
        follower = draw.choice([name for name in run.group if name != leader])
        node, length_s, longer_s = draw.choice(sorted(run.nodes)), 1 + draw.random() * 2, 0.4 + draw.random() * 0.8
        self._faults.cut_off(follower, run.now + length_s)
        self._faults.cut_off(node, run.now + length_s + longer_s)
        return length_s

    def back_behind(self, leader: str, draw: random.Random) -> float:
        """A follower was away, and comes back on a slow link: it says several times what it lacks before the first of it arrives;
        as often it is sent that, in several messages of which some are lost."""
        run = self._run
        if len(run.group) < 2:
            return 0
        follower = draw.choice([name for name in run.group if name != leader])
        length_s, slow_s = 0.4 + draw.random() * 0.6, 1 + draw.random()
        self._faults.cut_link(leader, follower, run.now + length_s)
        self._slow[follower] = run.now + length_s + slow_s
        return length_s + slow_s

    def stops_midway(self, leader: str, draw: random.Random) -> float:
        """The leader's host stands still while an operation of its own node is being replicated, and goes on when its time is over;
        what was on its way to it is there then, and nothing newer: not that another one leads."""
        run, member = self._run, self._run.up[leader]
        begin_s, timeout_s, longer_s = 0.02 + draw.random() * 0.07, 0.6 + draw.random() * 0.6, draw.random()
        run.ask_here(member, draw, round(timeout_s * NS_PER_S))
        end = run.now + timeout_s + longer_s
        self._after(begin_s, lambda: setattr(member, "paused_until", end))
        for name in run.group:
            if name != leader:
                self._after(begin_s + 0.06, lambda name=name: self._faults.cut_link(leader, name, end + 0.5))
        return timeout_s + longer_s + 1

    def put_back(self, leader: str, draw: random.Random) -> float:
        """A follower's folder is copied between two of its processes; the copy is put back later, while another follower lacks what was
        committed meanwhile and could be elected by who has forgotten it."""
        run = self._run
        others = [name for name in run.up if name != leader and not run.up[name].death]
        if len(others) < 2 or self._faults.emptied:
            return 0
        copied, behind = draw.sample(others, 2)
        again_s, later_s = 1.2 + draw.random() * 0.5, 0.3 + draw.random() * 0.5
        self._faults.to_copy.add(copied)
        run.up[copied].death = "after"

        def again() -> None:
            now_leads = next((name for name, member in run.up.items() if member.log.leads and name not in (copied, behind)), "")
            if now_leads:
                self._faults.cut_link(now_leads, behind, run.now + later_s + 1)
                self._faults.doom(copied, run.now + later_s)

        self._after(again_s, again)
        return again_s + later_s + 1

    def _lose_leaders_at_once(self) -> None:
        """A member with an emptied folder has heard a leader for the first time: that one dies before it can tell it anything."""
        run, draw = self._run, self._run.draws["leader lost at once"]
        self._heard &= self._faults.emptied
        for name in sorted(self._faults.emptied - self._heard):
            member = run.up.get(name)
            leader = run.up.get(member.log.leader_id) if member is not None else None
            if leader is None:
                continue
            self._heard.add(name)
            if draw.random() < 0.5 and not leader.death:
                leader.death = "before"
                run.seen["leaders lost at once to a member on probation"] += 1

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._run.later(round(seconds * NS_PER_S), lambda: callback() if self._faults.last else None)


PLOTS: dict[str, Callable[[Plots, str, random.Random], float]] = {
    "deaf follower": Plots.deaf_follower,
    "stale leader": Plots.stale_leader,
    "fenced behind": Plots.fenced_behind,
    "both behind": Plots.both_behind,
    "stops midway": Plots.stops_midway,
    "back behind": Plots.back_behind,
    "put back": Plots.put_back,
}
"""Each begins its plot on the given leader, and says for how long no other should begin, s."""
_OFTEN, _SELDOM = 0.015, 0.0008
"""How likely, per tick of any member: each seed has one that it tries often, or none."""
