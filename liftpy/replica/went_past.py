"""A leader whose connection to NATS is lost, and soon back, has not heard what was published meanwhile; who stands by has. Pure.

Goal: such a publish is stored and answered, as in any fail-over. Constraint: order per connection stays [A4]: once the leader has
appended what came later, what went past it can't be appended any more. Algorithm: from the moment that its connection is lost it takes
nothing more, and when the connection is back it hands over to a member of the ISR, as in a planned transfer: the successor sorts
what it has heard. Where all have lost the same there is nothing to hand over for: one NATS server alone that has started anew.
"""

from __future__ import annotations

from collections.abc import Mapping


def who_has_heard(node_id: str, isr: frozenset[str], live: Mapping[str, int], asked_ns: Mapping[str, int]) -> str:
    """Toward whom the leader ``node_id`` hands over: the live member of the ISR that has asked it last; '': there is nobody.
    ``live``: incarnation of each live node; ``asked_ns``: when each follower has asked for anything last, monotonic."""
    able = [replica for replica in sorted(asked_ns) if replica in isr and replica in live and replica != node_id]
    return max(able, key=lambda replica: asked_ns[replica], default="")


def all_have_lost_it(known_servers: int, before: str, after: str) -> bool:
    """Whether a connection that is back says that nobody else heard on: it knows one server alone, and that is another process of it
    (``before`` and ``after``: the server's id)."""
    return known_servers == 1 and before != after
