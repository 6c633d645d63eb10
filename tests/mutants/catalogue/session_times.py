"""Bugs in sessions and leases of the whole cluster, and in how they change."""

from __future__ import annotations

from tests.mutants.mutant import rows

_TIMES = ("tests/unit/cluster/test_session_times.py",)
_LEASE = ("tests/unit/replica/test_isr_bounds.py",)
_SUCCESSION = ("tests/unit/replica/test_succession.py",)
_TOLD = ("tests/unit/partition/test_partition_set.py",)

MUTANTS = [
    *rows(
        "liftpy/cluster/session.py",
        ("a session shrinks below what was granted", "max(session.lasts_ns, now_ns + self._session_ns)", "now_ns + self._session_ns", "a shorter session is two leaders at once"),
        ("a new metadata leader forgets the times before", "ends_ns, leased_ns = now_ns + self._longest_session_ns, now_ns + self._longest_lease_ns", "ends_ns, leased_ns = now_ns + self._session_ns, now_ns + self._lease_ns", "a fail-over of the controllers beside a shorter session is two leaders at once"),
        ("who is gone loses a longer lease", "max(session.leased_ns, now_ns + self._lease_ns)", "now_ns + self._lease_ns", "a leader that is cut off while the lease gets shorter speaks beside the next one"),
        ("settled at once", "at_ns = self._times_ns + self._longest_session_ns", "at_ns = self._times_ns", "leases of the times before run while nobody counts with them"),
        ("settled as if this leader had led before", "        self._go_by(image.session_times, now_ns)\n        self._sessions.clear()", "        self._sessions.clear()", "leases of the times before run while nobody counts with them"),
        ("an answer says the settings' lease", "lease_ms=0 if self._times is None else self._times.lease_ms", "lease_ms=0", "a node with a longer lease of its own is a second leader"),
        ("sessions go by the settings", "self._session_ns, self._lease_ns = times.session_ms * NS_PER_MS, times.lease_ms * NS_PER_MS", "self._session_ns, self._lease_ns = own_ns", "controllers with other settings end sessions under a lease"),
        ("a change is not looked at", "if image.session_times != self._times:", "if False:", "a change of the session holds from the next metadata leader on only"),
        ("settling is asked for in every turn", "at_ns = max(at_ns, self._settling_ns + self._retry_ns)", "pass", "the metadata log fills with the same entry while the group is slow"),
        ("a node beats as it likes", "min(own_s, times.lease_ms / 1000 / BEATS_PER_LEASE)", "own_s", "nodes with a slow heartbeat of their own have no lease after a change"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/decisions/times.py",
        ("a change over a change", "    if not held.is_settled:\n        longest_s", "    if False:\n        longest_s", "the times before the one before are forgotten while their leases run"),
        ("whoever comes last wins", "    if request.change != held.change:\n        return refuse(pb.ControlResponse.STALE, f\"the session times were changed meanwhile: {held.words}\")\n    if not held.is_settled:\n        longest_s", "    if not held.is_settled:\n        longest_s", "an operator undoes what another one has set without seeing it"),
        ("any settling settles", "    if request.change != held.change:\n        return refuse(pb.ControlResponse.STALE, f\"the session times were changed meanwhile: {held.words}\")\n    if not held.is_settled:\n        held =", "    if not held.is_settled:\n        held =", "a late entry settles the next change at once"),
        ("times that can't be", "        check_session_times(request.sessionMs, request.leaseMs)\n", "        pass\n", "an entry fails in all controllers, and the answer says UNKNOWN"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/config.py",
        ("a lease as long as its session", "if not lease_ms < session_ms:", "if not lease_ms <= session_ms:", "a leader speaks until the moment in which the next one may"),
        ("those before are forgotten at once", "return SessionTimes(session_ms, lease_ms, self.session_ms, self.lease_ms, self.change + 1)", "return SessionTimes(session_ms, lease_ms, change=self.change + 1)", "a new metadata leader ends sessions under leases of the one before"),
        ("the longest lease is the new one", "return max(self.lease_ms, self.lease_before_ms) * NS_PER_MS", "return self.lease_ms * NS_PER_MS", "a new leader opens while the one before may speak"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/level_check.py",
        ("who asks says the times", "    request.ClearField(\"sessionTimes\")\n", "", "a level that was finalized brings times that nobody has in the settings"),
        ("back to other settings", "*_other_times(image, level, times)]", "]", "after a way back leases outlast the sessions of the next metadata leader"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/features.py",
        ("unsettled times do not hold the level", "return [] if times is None or times.is_settled else", "return [] if True else", "after a way back leases outlast the sessions of the next metadata leader"),
        ("session times are logged at any level", "if part.HasField(\"setSessionTimes\") or part.HasField(\"settleSessionTimes\"):", "if False:", "controllers of an older version stop in the middle of an upgrade"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/changes.py",
        ("worker processes do not hear of session times", "elif old.session_times != new.session_times and new.session_times is not None:", "elif False:", "with several processes new leaders open too early in some"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/diff.py",
        ("replicas do not hear of a longer lease", "lease_changed = old.longest_lease_ns != new.longest_lease_ns", "lease_changed = False", "standbys remember too little of what is in doubt"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/replica/lease.py",
        ("a node takes its own lease", "until_ns = sent_ns + (lease_ns or self._length_ns)", "until_ns = sent_ns + self._length_ns", "a node with a longer lease of its own is a second leader"),
        tests=_LEASE,
    ),
    *rows(
        "liftpy/replica/succession.py",
        ("others have the own lease", "until_ns = now_ns + (longest_lease_ns or self._lease_ns)", "until_ns = now_ns + self._lease_ns", "a node with a shorter lease of its own opens beside the leader before"),
        ("a suspect's lease is cut short", "max(until_ns, known[1])", "until_ns", "a leader before speaks on by the lease of the times before"),
        tests=_SUCCESSION,
    ),
    *rows(
        "liftpy/cluster/membership.py",
        ("the answer's lease is lost on the way", "granted = Granted(sent_ns, answer.leaseMs * NS_PER_MS)", "granted = Granted(sent_ns, 0)", "a node with a longer lease of its own is a second leader"),
        tests=("tests/unit/cluster/test_membership_rules.py",),
    ),
    *rows(
        "sidecar/metadata/membership.py",
        ("a lease is as long as the image says", "            if granted is not None:\n                self._heard(*granted)", "            if granted is not None:\n                self._heard(granted.sent_ns, self._group.image.longest_lease_ns)", "a node that hears of a longer lease before its answer comes is a second leader"),
        ("a lease that waited is as long as the image says", "call_soon(self._heard, *granted)", "call_soon(self._heard, granted.sent_ns, new.longest_lease_ns)", "a node that hears of a longer lease before its answer comes is a second leader"),
        ("heartbeats keep the settings' pace", "            self._beats.pace = self._pace(new)\n", "            pass\n", "nodes have no lease most of the time after a change"),
        ("settings that say nothing any more are not named", "        self._compare(self._group.image)\n        self._end", "        self._end", "an operator changes a setting and wonders"),
        tests=("tests/unit/metadata/test_metadata_shell.py",),
    ),
    *rows(
        "liftpy/cluster/election_timers.py",
        ("an election waits for the settings' session", "return self._own_session_ns if times is None else times.session_ms * NS_PER_MS", "return self._own_session_ns", "partitions wait a minute for a leader, with one controller's settings"),
        tests=_TIMES,
    ),
    *rows(
        "liftpy/cluster/pages.py",
        ("clients are not told the session times", "    if image.session_times is not None:\n", "    if False:\n", "an operator can't see them, and no change is waited for"),
        tests=_TIMES,
    ),
    *rows(
        "sidecar/partition/set.py",
        ("leases are passed on at the settings' pace", "        self._pass_on_every_ns = (lease_ns or self._own_lease_ns) // _PARTS_OF_A_LEASE\n", "", "leaders are without a lease most of the time after a change"),
        ("leaders take the settings' lease", "MetadataHeard(sent_ns=sent_ns, lease_ns=lease_ns)", "MetadataHeard(sent_ns=sent_ns)", "a node with a longer lease of its own is a second leader"),
        tests=_TOLD,
    ),
    *rows(
        "liftpy/ingest/standby.py",
        ("doubt is as long as the own lease", "doubt_ns = replica.longest_lease_ns or self.rules.doubt_ns", "doubt_ns = self.rules.doubt_ns", "publishers are not answered after a fail-over"),
        tests=("tests/unit/ingest/test_standby.py",),
    ),
]  # fmt: skip
