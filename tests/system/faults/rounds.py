"""Rounds of one fault, their figures, and the verdict over the logs at the end."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sidecar.dev.cluster import LineSink
from tests.system.faults.catalogue import FAULTS
from tests.system.faults.check import Verdict, check
from tests.system.faults.ground import STREAM, SUBJECT, Ground
from tests.system.faults.load import Load
from tests.system.faults.strike import Fault, Round

MEASURES = {
    "ack_s": "from the strike to the ack of a publish sent after it",
    "gap_s": "longest time without any ack in the round",
    "shrank_s": "from the strike until the ISR was without the node",
    "led_s": "from the strike until another leader was seen",
    "back_s": "from the heal until the ISR is whole and all replicas follow",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``settings``: environment of the nodes."""

    fault: str
    rounds: int = 1
    first: int = 0
    """Number of the first round; it chooses between the variants of a fault."""
    pause_s: float = 30.0
    workers: int = 32
    pace_s: float = 0.02
    attempt_s: float = 0.25
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """One round's; None where the fault has no such figure."""

    round: int
    nodes: tuple[str, ...]
    """Who was struck."""
    metadata_leader: str
    """Before the strike."""
    acked: int
    refused: int
    unanswered: int
    ack_s: float
    gap_s: float
    shrank_s: float | None
    led_s: float | None
    back_s: float | None
    note: str


@dataclass(slots=True)
class Outcome:
    """All rounds and the verdict. ``problem``: why it ended early, '' if it did not."""

    plan: Plan
    figures: list[Figures]
    verdict: Verdict
    counters: Counter[str]
    never_answered: int
    """Messages without any answer at the end."""
    seconds: float
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "plan": {**asdict(self.plan), "settings": dict(self.plan.settings)},
            "rounds": [asdict(f) for f in self.figures],
            "percentiles": {name: percentiles(self.column(name)) for name in MEASURES},
            "verdict": asdict(self.verdict),
            "counters": dict(self.counters),
            "never_answered": self.never_answered,
            "seconds": self.seconds,
            "problem": self.problem,
        }

    def column(self, name: str) -> list[float]:
        """The rounds' values of one measure."""
        return [value for f in self.figures if (value := getattr(f, name)) is not None]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and max by nearest rank; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    ranked = {name: ordered[max(math.ceil(share * len(ordered)), 1) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {**ranked, "max": ordered[-1]}


async def run(plan: Plan, on_line: LineSink | None = None, told: Callable[[Figures], None] = lambda _: None) -> Outcome:
    """Rounds of one fault on a cluster of their own; then stop the nodes and compare their logs."""
    fault = FAULTS[plan.fault]
    began = time.monotonic()
    ground = Ground(
        relayed=fault.relayed,
        powered=fault.powered,
        supervised=fault.supervised,
        segment_bytes=fault.segment_bytes,
        settings={**fault.settings, **plan.settings},
        on_line=on_line,
    )
    load: Load | None = None
    figures: list[Figures] = []
    problem = ""
    try:
        await ground.open()
        load = open_load(ground, plan)
        await load.start()
        try:
            for number in range(plan.first, plan.first + plan.rounds):
                figures.append(await one_round(ground, load, fault, number, plan.pause_s))
                told(figures[-1])
        except TimeoutError as error:
            problem = f"round {plan.first + len(figures)}: {error or 'no ack in time'}"
        verdict = await verdict_of(ground, load)
    except TimeoutError as error:
        problem = problem or str(error)
        verdict = check(load.acked if load else (), ground.folders())
    finally:
        if load is not None:
            await load.close()
        await ground.close()
    counters, never_answered = (load.counters, load.never_answered) if load else (Counter[str](), 0)
    return Outcome(plan, figures, verdict, counters, never_answered, time.monotonic() - began, problem)


def open_load(ground: Ground, plan: Plan) -> Load:
    """The load that ``plan`` asks for."""
    return Load(ground.url, STREAM, SUBJECT, workers=plan.workers, pace_s=plan.pace_s, attempt_s=plan.attempt_s)


async def verdict_of(ground: Ground, load: Load) -> Verdict:
    """End the load, wait until the replicas are equal, and read their logs. Nothing is written to them then."""
    await load.pause()
    await ground.equal()
    return await asyncio.to_thread(check, load.acked, ground.folders())


async def one_round(ground: Ground, load: Load, fault: Fault, number: int, pause_s: float) -> Figures:
    """Strike a whole cluster, and wait until it is whole again."""
    await ground.calm()
    await ground.whole()
    metadata_leader = await ground.group_whole()
    await load.acked_more(50, 30.0)
    acked_before, counters_before = len(load.acked), Counter(load.counters)
    ground.forget()
    starts_before = ground.supervised_starts
    round_ = Round(ground, load, number, pause_s)
    try:
        await fault.strike(round_)
        whole_at = (await ground.whole()).at
        await load.acked_more(1, 30.0)
    except TimeoutError as error:
        acked = f"{round_.acked_at - round_.struck_at:.3f} s to the next ack" if round_.acked_at else "no ack after the strike"
        raise TimeoutError(f"{acked}; {round_.note}; {error}") from error
    happened = load.counters - counters_before
    if ground.supervised_starts > starts_before:
        round_.tell(f"{ground.supervised_starts - starts_before} starts by the supervisor")
    return Figures(
        round=number,
        nodes=round_.nodes,
        metadata_leader=round_.metadata_leader or metadata_leader,
        acked=len(load.acked) - acked_before,
        refused=sum(happened.values()) - happened["unanswered"] - happened["late acks"] - happened["late refusals"],
        unanswered=happened["unanswered"],
        ack_s=round_.acked_at - round_.struck_at,
        gap_s=load.longest_gap_s(round_.struck_at, whole_at),
        shrank_s=_first(ground, round_, lambda seen: not seen.isr >= set(round_.nodes) & set(ground.replicas)),
        led_s=_first(ground, round_, lambda seen: bool(seen.leader) and seen.leader not in round_.nodes),
        back_s=whole_at - round_.healed_at,
        note=round_.note.strip(),
    )


def _first(ground: Ground, round_: Round, condition: Callable[[Any], bool]) -> float | None:
    return next((s.at - round_.struck_at for s in ground.history if s.at > round_.struck_at and condition(s)), None)
