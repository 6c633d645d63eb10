"""Model of the ledger: it computes the expected state and outputs from the records of the log. It uses only Record of the product."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from liftpy.core.wire.batch import Record
from tests.system.service_chaos.ledger import POISON, TIMED, TIMER, TIMER_NS

SKIP = "Lift-Service-Skip"
VERSION = "Lift-Service-Version"
Said = tuple[bytes | None, bytes | None]
"""Value and key of an output."""


class ViolationError(Exception):
    """A promise was broken. The text is the story."""


@dataclass(slots=True)
class Model:
    """After every record below ``position``."""

    service: str
    position: int = 0
    version: int = 1
    outputs: list[Said] = field(default_factory=list)
    ordered: set[int] = field(default_factory=set)
    """Offsets that an operator had passed over: known before they are applied here."""
    poisons: set[int] = field(default_factory=set)
    decided: set[int] = field(default_factory=set)
    """Offsets that the log says are passed over."""
    values: dict[int, bytes | None] = field(default_factory=dict)
    """Offset -> value of all commands."""
    count: int = 0
    digest: str = ""
    now_ns: int = 0
    timer_ns: int | None = None

    @property
    def state(self) -> bytes:
        """As the ledger's snapshot."""
        return json.dumps({"count": self.count, "digest": self.digest, "noise": 0}, sort_keys=True).encode()

    def apply(self, record: Record) -> None:
        """The next record."""
        if record.offset != self.position:
            raise ViolationError(f"the log goes on with {record.offset} after {self.position - 1}")
        self.now_ns = max(self.now_ns, record.timestamp_ns)
        if self.timer_ns is not None and self.timer_ns <= self.now_ns:
            self.timer_ns = None
            self._add(TIMER.encode(), None)
        headers = dict(record.headers)
        value = record.value or b""
        if SKIP in headers:
            self.decided.add(int(headers[SKIP].split(b"/")[1]))
        elif VERSION in headers:
            _, version, epoch = headers[VERSION].split(b"/")
            if int(version) == self.version + 1 and int(epoch) == record.leader_epoch:
                self.version = int(version)
                self._add(b"version %d" % self.version, None)
        else:
            self.values[record.offset] = record.value
            if value.startswith(POISON):
                self.poisons.add(record.offset)
            elif record.offset not in self.ordered:
                self._add(b"%d " % record.offset + value, record.key)
                if value.startswith(TIMED):
                    self.timer_ns = self.now_ns + TIMER_NS
        self.position += 1

    def _add(self, what: bytes, key: bytes | None) -> None:
        self.digest = hashlib.blake2b(f"{self.digest} {self.version} ".encode() + what, digest_size=12).hexdigest()
        self.count += 1
        said = f"{self.count} {self.digest}".encode()
        self.outputs.append((said, key))
        if self.version % 2 == 0:
            self.outputs.append((b"again " + said, None))

    # ---- verdicts ------------------------------------------------------------------------------------------------------
    def check_log(self, acked: dict[int, bytes]) -> None:
        """Every acknowledged command is at its offset; passed over is what can't be applied, and what an operator named."""
        lost = [offset for offset, value in acked.items() if self.values.get(offset) != value]
        if lost:
            raise ViolationError(f"acknowledged and not in the log as sent: offsets {lost[:5]}")
        if self.decided != self.poisons | self.ordered:
            raise ViolationError(f"passed over: {sorted(self.decided)}, to be: {sorted(self.poisons | self.ordered)}")

    def check_outputs(self, found: Sequence[Said]) -> None:
        """``found``: the whole output stream."""
        if list(found) == self.outputs:
            return
        pairs = zip(found, self.outputs, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(found), len(self.outputs)))
        raise ViolationError(
            f"{len(found)} outputs instead of {len(self.outputs)}; at {at}: {found[at : at + 1]} instead of {self.outputs[at : at + 1]}"
        )

    def check_states(self, position: int, states: dict[str, bytes], output_counts: dict[str, int]) -> None:
        """Node -> its state at ``position`` and how many outputs it counts."""
        if position != self.position:
            raise ViolationError(f"the states are at {position}, the model at {self.position}")
        for node, state in states.items():
            if (state, output_counts[node]) != (self.state, len(self.outputs)):
                raise ViolationError(
                    f"{node} at {position}: {state!r}, {output_counts[node]} outputs, not {self.state!r}, {len(self.outputs)}"
                )
