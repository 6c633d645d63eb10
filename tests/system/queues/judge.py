"""What the lines of all workers show: what was skipped, what came after its acknowledgement, how long a dead worker's records were
away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


@dataclass
class Verdict:
    """``wrong``: what must not be. ``again_s``: for each record that was given more than once, the gap between two givings, in s."""

    wrong: list[str] = field(default_factory=list)
    records: int = 0
    given: int = 0
    acked: int = 0
    again_s: I64 = field(default_factory=lambda: np.zeros(0))  # type: ignore[arg-type]


def judged(lines: Iterable[Mapping[str, Any]], ends: Mapping[int, int], wait_s: float, slack_s: float) -> Verdict:
    """``ends``: partition -> number of its records, all of which the coordinator says are acknowledged. ``slack_s``: so much longer
    than ``wait_s`` a record may be away whose worker is dead."""
    out = Verdict(records=sum(ends.values()))
    events = sorted((line for line in lines if line["do"] in ("given", "acked")), key=lambda line: int(line["t"]))
    acked = {number: np.full(count, _NEVER, dtype=np.int64) for number, count in ends.items()}
    given = {number: np.zeros(count, dtype=np.int64) for number, count in ends.items()}
    gaps: list[I64] = []
    for line in events:
        number, at_ns = line["partition"], int(line["t"])
        for first, last, _ in line["ranges"]:
            part = slice(first, last + 1)
            if line["do"] == "acked":
                done = acked[number][part]
                out.acked += int((done == _NEVER).sum())
                acked[number][part] = np.minimum(done, at_ns)
                continue
            out.given += last + 1 - first
            late = np.flatnonzero(acked[number][part] < at_ns)
            if len(late):
                out.wrong.append(f"{number}/{first + int(late[0])}, and {len(late) - 1} more, given after its acknowledgement")
            before = given[number][part]
            gaps.append((at_ns - before)[before > 0])
            given[number][part] = at_ns
    for number, when in given.items():  # who is killed while it acknowledges never says that it did
        left = np.flatnonzero(when == 0)
        if len(left):
            out.wrong.append(f"{number}/{int(left[0])}, and {len(left) - 1} more, never given")
    out.again_s = np.concatenate(gaps) / 1e9 if gaps else np.zeros(0)
    if len(out.again_s) and out.again_s.max() > wait_s + slack_s:
        out.wrong.append(f"a record came again after {out.again_s.max():.1f} s, its wait is {wait_s:g} s")
    return out
