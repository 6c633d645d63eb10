"""What is searched: the bounds of each model, by name, and the bugs that each was seen to find.

``SMALL``: seconds, by depth where that is needed; the suite searches them one step less deep. ``FULL``: what the command searches, the
smaller ones first. A mutant patches shipped code and names the bound that shows it, a small one but where that takes half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.model import control, lease, mutants, raft
from tests.model.replica import Budget, ReplicaModel
from tests.model.search import Bounds, Outcome, Search
from tests.simulation.mutants.catalogue import MUTANTS as KNOWN


@dataclass(frozen=True)
class Bound:
    """A model within bounds. ``depth`` 0: until every state was seen."""

    model: Callable[[], Any]
    depth: int = 0


@dataclass(frozen=True)
class Mutant:
    """A bug, and the bound that shows it."""

    name: str
    bound: str
    patches: Callable[[], list[Any]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.patches():
                stack.enter_context(change)
            yield


def search(bound: Bound, bounds: Bounds | None = None, on_level: Any = None) -> Outcome:
    """Search one bound; the model is made anew, so that it remembers no step of other code."""
    within = bounds or Bounds()
    return Search(bound.model(), Bounds(within.states, bound.depth, within.seconds), on_level).run()


def _known(name: str, bound: str) -> Mutant:
    return Mutant(name, bound, next(mutant.patches for mutant in KNOWN if mutant.name == name))


def _replica(in_flight: int, settled: int = 0, depth: int = 0, **budget: int) -> Bound:
    nothing = {"crashes": 0, "lags": 0, "expands": 0, "fences": 0, "unanswered": 0}
    return Bound(lambda: ReplicaModel(Budget(**{**nothing, **budget}), in_flight, settled=settled), depth)


_POWER_CUT = {"settled": 1, "publishes": 1, "leader_epochs": 2, "crashes": 1}
_SESSION_ENDS = {"settled": 1, "publishes": 1, "leader_epochs": 2, "fences": 1}
_ISR_CHANGES = {"settled": 1, "publishes": 2, "leader_epochs": 1, "lags": 1, "expands": 1, "unanswered": 1}
_REPLICA_SMALL = {
    "one publish": _replica(2, publishes=1, leader_epochs=1),
    "a power cut": _replica(1, depth=9, **_POWER_CUT),
    "a session ends": _replica(1, depth=9, **_SESSION_ENDS),
    "the ISR changes": _replica(1, depth=11, **{**_ISR_CHANGES, "unanswered": 0}),
}
_REPLICA_FULL = {
    "one publish": _replica(3, publishes=2, leader_epochs=1),
    "a power cut, one message": _replica(1, **_POWER_CUT),
    "a session ends, one message": _replica(1, **_SESSION_ENDS),
    "the ISR changes, one message": _replica(1, **_ISR_CHANGES),
    "a power cut": _replica(3, **_POWER_CUT),
    "a session ends": _replica(3, **_SESSION_ENDS),
    "the ISR changes": _replica(3, **_ISR_CHANGES),
    "all": _replica(3, publishes=2, leader_epochs=3, crashes=1, lags=1, expands=1, fences=1, unanswered=1),
}

_FOLDERS = control.Budget(commits=1, fences=0, moves=0)
_SWAP = control.Budget(commits=2, deaths=1, losses=0, fences=0, moves=1, swaps=2)
_CONTROL_SMALL = {
    "depth 5": Bound(control.ControlModel, 5),
    "folders, depth 6": Bound(lambda: control.ControlModel(_FOLDERS, pending=False), 6),
    "a swap": Bound(lambda: control.ControlModel(_SWAP._replace(commits=1, deaths=0, swaps=1)), 7),
}
_CONTROL_FULL = {
    "folders": Bound(lambda: control.ControlModel(_FOLDERS, pending=False), 12),
    "no request waits": Bound(lambda: control.ControlModel(pending=False), 12),
    "depth 12": Bound(control.ControlModel, 12),
    "a swap": Bound(lambda: control.ControlModel(_SWAP)),
}


def _lease(depth: int = 0, **limits: Any) -> Bound:
    return Bound(lambda: lease.LeaseModel(lease.Limits(**limits)), depth)


_LEASE_SMALL = {
    "a suspended leader": _lease(11, ticks=5, moves=0, takeovers=0, eager=True),
    "a leadership that moves": _lease(7, ticks=3, suspensions=0, takeovers=0),
    "an old metadata leader": _lease(10, ticks=7, moves=0, suspensions=0, eager=True),
}
_CHANGES: dict[str, Any] = {"times": ((0.5, 0.25),), "session_s": 1.0, "lease_s": 0.75, "suspensions": 0, "eager": True}
_LEASE_SMALL |= {
    "times that change": _lease(8, ticks=4, moves=0, takeovers=0, **_CHANGES),
    "times that change, and a leadership that moves": _lease(5, ticks=1, takeovers=0, **_CHANGES),
}
_LEASE_FULL = {
    "times that change, to the end": _lease(ticks=4, moves=0, takeovers=0, **_CHANGES),
    "times that change under an old metadata leader": _lease(16, ticks=5, moves=0, **_CHANGES),
    "a suspended leader": _lease(ticks=8, moves=0, takeovers=0, eager=True),
    "an old metadata leader, to the end": _lease(ticks=8, moves=0, suspensions=0, eager=True),
    "a leadership that moves": _lease(ticks=4, suspensions=0, takeovers=0),
    "a partition that lags": _lease(11, ticks=2, suspensions=0, takeovers=0, lags=1, session_s=0.75, lease_s=0.5, eager=True),
    "the default times": _lease(ticks=12, moves=0, session_s=2.0, lease_s=1.5, eager=True),
    "all": _lease(ticks=12, cuts=1, session_s=2.0, lease_s=1.5, in_flight=2),
}


def _raft(queued: int = 1, led: int = 0, depth: int = 0, story: str = "", append_bytes: int = 0, **budget: int) -> Bound:
    left = raft.Budget(**{"campaigns": 0, "commands": 0, "crashes": 0, "barriers": 0, **budget})
    steps = tuple(step.strip() for step in story.split(";") if step.strip())
    return Bound(lambda: raft.RaftModel(left, queued, led=led, story=steps, append_bytes=append_bytes), depth)


_PAIRS = 20
"""Bytes of two commands: no message holds more entries."""
_TWO_LEAD = "b campaigns; c gets b; b gets c; c gets b; b gets c"
"""a leads on in term 1 and has not heard that b leads in term 2, and has committed with c."""
_AHEAD_OF_B = "a proposes X; c gets a; a gets c"
"""b lacks what a and c have committed."""
_FIGURE_8 = """a proposes X; a proposes Y; a loses b; a loses c; b campaigns; a gets b; c gets b; b gets c; b loses a; b loses c;
    a campaigns; c gets a; a gets c"""
"""a alone has X and Y of term 1, b alone an entry of term 2; a leads again, in term 3."""
_ASKED_TWICE = """a proposes X; a loses b; c gets a; a gets c; b gets a; a beats; b gets a; c gets a; a gets c; a gets b; a proposes Y;
    c gets a; a proposes Z; b gets a; a gets b; a beats; b gets a"""
"""b had asked twice for the same entries: they come again, in two messages, when it holds them and more."""
_OLD_TAIL = """a proposes X; a proposes Y; a loses b; a loses c; b campaigns; a gets b; c gets b; b gets c; b loses a; c gets b;
    b gets c; b loses a; b loses c; b proposes P; c gets b; b gets c; b loses a; b loses c; b proposes Q; c gets b; b gets c; b loses a;
    b loses c; b compacts"""
"""a holds X and Y of term 1 where b and c have committed others; what it lacks is in b's snapshot alone."""

_RAFT_SMALL = {
    "a question first": _raft(asks=1),
    "two elections": _raft(depth=6, campaigns=2, crashes=1),
    "a leader is replaced": _raft(led=1, depth=6, campaigns=1, commands=1, resignations=1),
    "a snapshot": _raft(led=2, depth=6, commands=1, crashes=1, snapshots=1),
    "a lost folder": _raft(led=1, depth=6, campaigns=1, emptied=1, barriers=1),
    "an entry of an old term": _raft(led=1, story=_FIGURE_8, append_bytes=_PAIRS, depth=9),
    "entries come twice": _raft(2, led=1, story=_ASKED_TWICE, append_bytes=_PAIRS, depth=6, campaigns=1),
    "a snapshot over a tail": _raft(led=1, story=_OLD_TAIL, append_bytes=_PAIRS),
}
_RAFT_FULL = {
    "an entry of an old term": _raft(led=1, story=_FIGURE_8, append_bytes=_PAIRS),
    "a snapshot over a tail": _raft(led=1, story=_OLD_TAIL, append_bytes=_PAIRS, campaigns=1),
    "a lost folder, two lead": _raft(led=1, story=_TWO_LEAD, commands=1, emptied=1),
    "a death in a snapshot": _raft(led=2, story=_AHEAD_OF_B, campaigns=1, crashes=1, snapshots=1),
    "entries come twice": _raft(2, led=1, story=_ASKED_TWICE, append_bytes=_PAIRS, campaigns=1),
    "a question first": _raft(asks=2, crashes=1),
    "two elections": _raft(campaigns=2, commands=1, resignations=1),
    "two elections and a crash": _raft(campaigns=2, crashes=1),
    "a leader is replaced": _raft(led=1, campaigns=1, commands=1, crashes=1),
    "two under way": _raft(queued=2, led=1, campaigns=1, commands=2),
    "a snapshot": _raft(led=2, campaigns=1, commands=1, crashes=1, snapshots=1),
    "a lost folder": _raft(led=1, campaigns=1, emptied=1, barriers=1),
    "a lost folder, two elections": _raft(campaigns=2, emptied=1, barriers=1),
    "all": _raft(led=1, campaigns=2, commands=1, crashes=1, emptied=1, barriers=1, snapshots=1),
}

SMALL: Mapping[str, Mapping[str, Bound]] = {
    "replica": _REPLICA_SMALL,
    "control": _CONTROL_SMALL,
    "lease": _LEASE_SMALL,
    "raft": _RAFT_SMALL,
}
FULL: Mapping[str, Mapping[str, Bound]] = {
    "replica": _REPLICA_FULL,
    "control": _CONTROL_FULL,
    "lease": _LEASE_FULL,
    "raft": _RAFT_FULL,
}
MUTANTS: Mapping[str, tuple[Mutant, ...]] = {
    "replica": (
        _known("truncate by HW", "a power cut"),
        _known("truncate by HW when nobody answers", "a power cut"),
        _known("ack before flush on a follower", "one publish"),
        _known("ack before flush on the leader", "one publish"),
        _known("no maximal ISR", "the ISR changes"),
        Mutant("a follower that lags joins the ISR", "the ISR changes", mutants.joins_before_it_has_caught_up),
        Mutant("two lead in one epoch", "a power cut", mutants.two_lead_in_one_epoch),
    ),
    "control": (
        _known("check-then-apply ISR", "depth 5"),
        _known("join by another incarnation", "depth 5"),
        _known("lossy restart stays in the ISR", "depth 5"),
        _known("a folder put back counts as complete", "folders"),
        _known("same epoch after a restart", "depth 5"),
        Mutant("a fenced node is elected", "depth 5", mutants.fenced_nodes_are_elected),
        Mutant("one report deposes", "depth 5", mutants.one_report_deposes),
        Mutant("two lead in one epoch", "depth 5", mutants.two_lead_in_one_epoch),
        Mutant("a learner may lead", "a swap", mutants.learners_may_lead),
        Mutant("a snapshot forgets who is complete", "depth 5", mutants.snapshot_forgets_the_complete),
    ),
    "lease": (
        Mutant("no lease", "a leadership that moves", mutants.no_lease),
        Mutant("nobody waits for the leader before", "a leadership that moves", mutants.nobody_waits_for_the_leader_before),
        Mutant("a lease from the answer", "a suspended leader", mutants.lease_from_the_answer),
        Mutant(
            "a replica that lags uses the node's lease",
            "a partition that lags",
            mutants.a_replica_that_lags_uses_the_lease_of_the_node,
        ),
        Mutant("a session shrinks", "times that change", mutants.sessions_shrink_below_what_was_granted),
        Mutant("nodes go by their own lease", "times that change", mutants.nodes_go_by_their_own_lease),
        Mutant(
            "the longest lease is the new one",
            "times that change, and a leadership that moves",
            mutants.the_longest_lease_is_the_new_one,
        ),
        Mutant("a session is shorter than the lease", "a suspended leader", mutants.sessions_end_with_the_lease),
        Mutant(
            "sessions do not begin anew",
            "an old metadata leader",
            mutants.silence_is_death,
        ),
    ),
    "raft": (
        Mutant("terms and votes are not written", "two elections", mutants.promises_are_not_written),
        Mutant("the journal is not flushed", "two elections", mutants.journal_is_not_flushed),
        Mutant("votes twice", "two elections", mutants.votes_twice),
        Mutant("votes for shorter logs", "a leader is replaced", mutants.votes_for_shorter_logs),
        Mutant("a snapshot without its last term", "a snapshot", mutants.snapshot_without_last_term),
        Mutant("no probation", "a lost folder, two elections", mutants.no_probation),
        Mutant("entries of old terms are counted", "an entry of an old term", mutants.entries_of_old_terms_are_counted),
        Mutant("what is held is cut", "entries come twice", mutants.what_is_held_is_cut),
        Mutant(
            "a snapshot commits what is not matched", "a snapshot over a tail", mutants.snapshot_commits_what_is_not_matched
        ),
        Mutant("the journal ends with the snapshot", "a death in a snapshot", mutants.journal_ends_with_the_snapshot),
        Mutant("a barrier of any time", "a lost folder, two lead", mutants.barrier_of_any_time),
        Mutant("a leader rests whatever is missing", "a question first", mutants.leaders_rest_whatever_is_missing),
        Mutant("entries of the session before count", "a lost folder", mutants.entries_of_the_session_before_count),
    ),
}
