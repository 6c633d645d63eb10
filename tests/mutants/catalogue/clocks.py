"""Bugs in who is believed about the time: ``liftpy/clock_trust.py`` and its shell."""

from __future__ import annotations

from tests.mutants.mutant import rows

_RULE = ("tests/unit/core/test_clock_trust.py",)
_WATCH = ("tests/unit/node/test_clock_watch.py",)
MUTANTS = [
    *rows(
        "liftpy/clock_trust.py",
        (
            "half of the clocks are enough",
            "if 2 * (1 + near) > 1 + others:",
            "if 2 * (1 + near) >= 1 + others:",
            "of two nodes the one that is years ahead removes its records",
        ),
        (
            "who is silent has no say",
            "if 2 * (1 + near) > 1 + others:",
            "if 2 * (1 + near) > 1 + len(offsets):",
            "a node that starts with a wrong clock, and hears nobody yet, removes its records",
        ),
        (
            "a clock that is behind agrees",
            "near = sum(abs(other - offset_ns) <= BOUND_NS for other in offsets)",
            "near = sum(other - offset_ns <= BOUND_NS for other in offsets)",
            "a node that is years ahead removes its records",
        ),
        (
            "one who disagrees is not heard",
            "        if near < len(offsets):\n",
            "        if near < len(offsets) // 2:\n",
            "a node goes on by its clock though the only other that is heard says that it is wrong",
        ),
        (
            "a jump is not noticed while nobody answers",
            'if abs(moved_ns) > BOUND_NS else ""',
            'if abs(moved_ns) > 10**20 else ""',
            "a node that is cut off removes its records when its clock jumps",
        ),
        (
            "a clock set back is none that jumped",
            'if abs(moved_ns) > BOUND_NS else ""',
            'if moved_ns > BOUND_NS else ""',
            "a clock that was years ahead when it was trusted is not looked at any more",
        ),
        (
            "what was believed alone was agreed on",
            "        self._by_others = self._by_others and not why\n",
            "        self._by_others = True\n",
            "a node that was alone with a wrong clock goes by it when others come that it can't hear",
        ),
        (
            "after a jump it waits for ever",
            "now_ns - self._jumped[1] < HOLD_NS",
            "now_ns - self._jumped[1] < 1 << 70",
            "a node alone whose clock was set right never removes anything again",
        ),
        (
            "a second jump is none",
            "if why and (self._jumped is None or abs(offset_ns - self._jumped[0]) > BOUND_NS):",
            "if why and self._jumped is None:",
            "a clock that jumps again and again is believed an hour after the first",
        ),
        (
            "a start among nodes that are down does not wait",
            "why = _UNTOLD if is_new and is_one_of_many else self._moved(offset_ns)",
            "why = self._moved(offset_ns)",
            "a cluster that is started node by node loses what the first one's clock calls old",
        ),
        (
            "a slew adds up to a jump",
            "        self._trusted_ns, self._jumped = offset_ns, None\n",
            "        self._trusted_ns, self._jumped = self._trusted_ns or offset_ns, None\n",
            "a node alone whose clock is slewed stops removing",
        ),
        (
            "answers count for ever",
            "if name in peers and now_ns - one.at_ns <= FRESH_NS}",
            "if name in peers}",
            "a node is in doubt because of one that has not been heard for hours",
        ),
        (
            "nodes that are gone count",
            "if name in peers and now_ns - one.at_ns <= FRESH_NS}",
            "if now_ns - one.at_ns <= FRESH_NS}",
            "a clock is compared with one that left",
        ),
        (
            "late answers count",
            "        if answered_ns - asked_ns <= SLOW_NS:\n",
            "        if answered_ns >= asked_ns:\n",
            "a node that stood still takes an answer from before for one of now",
        ),
        (
            "a time is one of the end",
            "wall_ns - (asked_ns + answered_ns) // 2",
            "wall_ns - answered_ns",
            "clocks seem to differ by how long an answer took",
        ),
        (
            "older versions disagree",
            "others = len(peers) - (len(self._told) - len(offsets))",
            "others = len(peers)",
            "while a cluster is upgraded nothing is removed",
        ),
        (
            "all are asked",
            "*names[: len(names) - len(behind)]][:PEERS]",
            "*names[: len(names) - len(behind)]]",
            "a hundred nodes ask each other all the time",
        ),
        (
            "the first ones are asked by all",
            "return [*behind, *names[: len(names) - len(behind)]]",
            "return [*names]",
            "six nodes answer for the whole cluster",
        ),
        tests=_RULE,
    ),
    *rows(
        "sidecar/clock_watch.py",
        (
            "ages are told whatever came of it",
            "        return wall_ns if came_to != NO_AGE_NS else NO_AGE_NS\n",
            "        return wall_ns\n",
            "a node whose clock is years ahead removes its records",
        ),
        (
            "a jump waits for the next look",
            "if abs(wall_ns - now_ns - offset_ns) > NS_PER_S or now_ns",
            "if now_ns",
            "what a jump calls old is removed within the second",
        ),
        ("a look is for good", " or now_ns - at_ns >= _LOOK_EVERY_NS:", ":", "a node never hears that its clock is wrong"),
        (
            "it is said again and again",
            "        self._said = bool(why)\n",
            "        self._said = False\n",
            "the log is full of one line",
        ),
        (
            "it is said at every start",
            "(self.trust.is_wrong or time.monotonic() - self._began > _PATIENCE_S)",
            "why",
            "each start logs a warning",
        ),
        (
            "nodes that are down are asked",
            "node_id: not node.fenced for",
            "node_id: True for",
            "a node whose others are down is in doubt until they are back",
        ),
        tests=_WATCH,
    ),
    *rows(
        "liftpy/wire/presence.py",
        (
            "any digits are a time",
            "told = yes == _YES and 0 < len(digits) <= _LONGEST and digits.isdigit()",
            "told = yes == _YES and digits.isdigit()",
            "an answer of a megabyte of digits holds a node up",
        ),
        tests=_RULE,
    ),
    *rows(
        "sidecar/partition/housekeeping.py",
        (
            "retention goes by any clock",
            "worker.apply_retention(self._partitions.clocks.time_of_age_ns())",
            "worker.apply_retention(time.time_ns())",
            "a node whose clock is years ahead removes its records",
        ),
        (
            "nobody is asked for the time",
            "        self._partitions.clocks.start()\n",
            "",
            "nothing is ever removed for its age",
        ),
        ("it goes on asking", "        await self._partitions.clocks.close()\n", "", "a node that stops leaves a task behind"),
        tests=("tests/unit/partition/test_rounds_of_housekeeping.py",),
    ),
]
