"""Bugs in ``liftpy/group`` that histories under faults rarely meet; those that they do are in ``tests/simulation/group``."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "liftpy/group/membership.py",
        (
            "members of small groups are seldom heard",
            "if len(self.members) <= limits.FEW_MEMBERS:",
            "if len(self.members) > limits.FEW_MEMBERS:",
            "a rebalance takes longer than a second",
        ),
        (
            "what an older heartbeat leaves out is given up",
            "if generation <= beat.generation and",
            "if generation and",
            "two members read one partition",
        ),
        (
            "the generation of a commit is not looked at",
            "member.held.get(place) == at.generation",
            "place in member.held",
            "what a member had committed before it lost a partition counts when it has it again",
        ),
        (
            "copies of earlier heartbeats count",
            "return number == 0 or number > self.number",
            "return True",
            "a member reads what it has stopped reading",
        ),
        (
            "a heartbeat of an earlier session counts",
            "if beat.session not in (0, member.session):",
            "if beat.session is None:",
            "a member that was put out goes on beside its successor",
        ),
        (
            "a static identity fences nobody",
            "if fenced else pb.GROUP_UNKNOWN_MEMBER",
            "if not fenced else pb.GROUP_UNKNOWN_MEMBER",
            "two processes of one identity put each other out for ever",
        ),
        tests=("tests/unit/group/test_group_coordinator.py",),
    ),
    *rows(
        "liftpy/group/lags.py",
        (
            "a reader at an end is behind",
            "        at = bisect_right(self._ends, position)\n",
            "        at = bisect_right(self._ends, position - 1)\n",
            "a group that has read all seems to be stuck",
        ),
        (
            "two old ends become one with the later time",
            "self._since_ns[:half:2]",
            "self._since_ns[1:half:2]",
            "the age of a group that stands still jumps back, and no alert fires",
        ),
        (
            "an end that falls is not taken",
            "        if self._ends and end < self._ends[-1]:\n",
            "        if self._ends and end < 0:\n",
            "after an unclean election a group seems to be behind for ever",
        ),
        (
            "cursors are behind",
            "    if group.cursor:\n        return\n",
            "",
            "the cursor of a nightly job raises an alert each day",
        ),
        (
            "the first asked are asked again",
            "        self._asked.update(dict.fromkeys(chosen, self._questions))\n",
            "",
            "of a group with many partitions only the first ones count",
        ),
        (
            "a group that is gone keeps its label",
            "        self._given &= lags.keys()\n",
            "",
            "groups that come later are never shown by name",
        ),
        (
            "ends are kept of whatever was ever read",
            "        for key in [key for key in self._of if key not in read]:\n            del self._of[key]\n",
            "",
            "after 4,000 deleted partitions no group's lag is known",
        ),
    ),
    *rows(
        "liftpy/group/machine.py",
        (
            "who held a cursor goes on committing",
            "any(at.generation != group.cursor for at in commit.positions)",
            "any(at.generation > group.cursor for at in commit.positions)",
            "two processes move one cursor",
        ),
        (
            "a cursor that was set is still held",
            "                if group.cursor:\n                    group.new_holder()",
            "                pass",
            "what an operator has set back is passed over by the next commit",
        ),
        (
            "a group becomes a cursor",
            'if command.HasField("open") and not group.cursor and not group.is_empty:',
            "if False:",
            "the members of a group commit nothing any more",
        ),
        tests=("tests/unit/group/test_group_coordinator.py",),
    ),
    *rows(
        "liftpy/group/member.py",
        (
            "a session lasts from the answer on",
            "self._until_ns = sent_ns + answer.sessionMs",
            "self._until_ns = now_ns + answer.sessionMs",
            "a member goes on when its partitions are another's",
        ),
        (
            "a member takes back what it gave up",
            "and new.generation > self._dropped.get(key, (0, 0))[0]",
            "",
            "two members read one partition",
        ),
        (
            "a change of streams is told once",
            "beat.streams.extend(self._streams)",
            "beat.streams.extend(self._streams)\n            self._streams_from = 0",
            "new partitions are read by nobody",
        ),
        (
            "an old answer gives partitions",
            "if answer.code == pb.GROUP_OK and now_ns >= sent_ns",
            "if answer.code is None and now_ns >= sent_ns",
            "a process that slept reads what is another's",
        ),
        (
            "another session of its name is its own",
            "self._lose_all() if self._session not in (0, answer.session) else []",
            "[]",
            "two members read one partition",
        ),
        tests=("tests/unit/group/test_group_member.py",),
    ),
    *rows(
        "liftpy/group/coordinator.py",
        (
            "silence is left alone",
            'self.offer(b"")',
            "pass",
            "members that died keep their partitions while nobody else speaks",
        ),
        tests=("tests/unit/group/test_group_coordinator.py",),
    ),
    *rows(
        "liftpy/group/queue.py",
        (
            "nothing bounds the ranges",
            "elif may_grow and not self.is_full:",
            "elif may_grow:",
            "a queue grows until its coordinator is out of memory",
        ),
        (
            "what the log lost stays out",
            "            self._count(piece, -1)\n            self._free_next(piece)",
            "            self._free_next(piece)",
            "a queue whose records expire gives nothing any more",
        ),
        tests=("tests/unit/group/test_group_queue.py",),
    ),
    *rows(
        "liftpy/group/queue.py",
        (
            "what the log lost holds its key for ever",
            "            self._count(piece, -1)\n            self._free_next(piece)",
            "            self._count(piece, -1)",
            "a key of which a record has expired is never given again",
        ),
        (
            "nothing bounds what is held",
            "return self.is_full or self._order.held_count >= limits.MAX_HELD",
            "return self.is_full",
            "one busy key fills the state",
        ),
        (
            "order may change while records are out",
            "if ordered != self.ordered and not self._pieces:",
            "if ordered != self.ordered:",
            "a worker without the option breaks the order of the others",
        ),
        (
            "keys are told for other records",
            "while take.keysFrom <= at < end",
            "while at < end",
            "a record is given by the key of another one",
        ),
        tests=("tests/unit/group/test_queue_key_order.py",),
    ),
    *rows(
        "liftpy/client/next_keys.py",
        (
            "keys stay when new records begin elsewhere",
            "self.digests = self.digests[offset - self.start :] if offset >= self.start else []",
            "",
            "a record is given by the key of another one",
        ),
        tests=("tests/unit/client/test_queue_order.py",),
    ),
    *rows(
        "liftpy/client/copying.py",
        (
            "a target that is closed ends the copying",
            "if error.reason not in _ANOTHERS + _NOT_NOW:",
            "if error.reason not in _ANOTHERS:",
            "a pause of the target stops every process that copies into it",
        ),
        (
            "a target that stays closed is never said",
            "if loop.time() >= refused_until and self._is_ours:",
            "if False:",
            "an application waits for ever and nobody is told",
        ),
        (
            "finished before it is acknowledged",
            "while self._receipts and self._receipts[0].done():\n                self._receipts.popleft().result()",
            "while self._receipts:\n                self._receipts.popleft()",
            "committed is what the target does not have",
        ),
        tests=("tests/unit/client/test_group_into.py",),
    ),
]
