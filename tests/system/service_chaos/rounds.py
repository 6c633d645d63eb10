"""One round after the other: which faults it strikes with, and its line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

from tests.system.service_chaos.catalogue import FAULTS, Fault
from tests.system.service_chaos.ground import STREAM, Ground
from tests.system.service_chaos.model import ViolationError

_PUBLISHED = 30
_LEFT_BY_RETENTION = 1000
"""Records, of some 200 bytes: many times what it is set to."""
_ONCE = "compaction"


def drawn(rng: Random, rounds: int) -> Iterator[list[Fault]]:
    """Every fault once, in some order; then one or two at random."""
    first = list(FAULTS.values())
    rng.shuffle(first)
    later = [fault for fault in first if fault.name != _ONCE]
    for number in range(rounds):
        yield [first[number]] if number < len(first) else rng.sample(later, rng.randint(1, 2))


async def one_round(ground: Ground, number: int, faults: Sequence[Fault]) -> str:
    """Strike, wait until all is well, compare; the line. Raises ViolationError with the story."""
    began, restarts, notes = time.monotonic(), ground.restarts, []
    try:
        await ground.publish(_PUBLISHED)
        for fault in faults:
            notes.append(f"{fault.name} ({await fault.strike(ground)})")
        healed = time.monotonic()
        await ground.publish(5)
        await ground.settle()
        well_s = time.monotonic() - healed
        await ground.check()
    except ViolationError as violation:
        struck = "; ".join([*notes, *(fault.name for fault in faults[len(notes) :])])
        raise ViolationError(f"round {number}, {struck}: {violation}\n{ground.read_last_output()}") from violation
    again = f", {ground.restarts - restarts} started again" if ground.restarts > restarts else ""
    model = ground.model
    begins = (await ground.client.bounds(STREAM)).log_start_offset
    if model.position - begins > _LEFT_BY_RETENTION:
        raise ViolationError(f"round {number}: retention leaves the records from {begins} on of {model.position}")
    figures = f"{model.position:6d} records from {begins:6d} on {len(model.outputs):6d} outputs  v{model.version}"
    return f"{number:3d} {time.monotonic() - began:6.1f} s, well after {well_s:5.1f} s {figures}  {'; '.join(notes)}{again}"
