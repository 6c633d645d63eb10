"""What a node's followers hold of batches in pieces has a bound; one batch may always come in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.bus.replication import ASSEMBLING_BYTES, AnswerRouter


def router(answers: list[int]) -> tuple[AnswerRouter, Any]:
    sinks: list[Any] = []
    bus: Any = SimpleNamespace(inbox="_INBOX.n", listen=lambda subject, sink: sinks.append(sink))
    made = AnswerRouter(bus)
    made.add(lambda request_id, payload, headers: answers.append(request_id))
    return made, sinks[0]


def test_beyond_the_bound_the_next_batch_waits_and_who_has_begun_goes_on() -> None:
    made, _ = router([])
    large = 60 << 20
    for slot in range(1, 5):
        assert made.reserve(slot, large)
    assert made.assembling_bytes == 4 * large <= ASSEMBLING_BYTES
    assert not made.reserve(5, large)
    assert all(made.reserve(slot, large) for slot in range(1, 5))
    made.release(1)
    assert made.reserve(5, large)


def test_a_request_id_of_5000_digits_is_nobodys() -> None:
    answers: list[int] = []
    _, arrived = router(answers)
    for text in (b"7", b"9" * 5000, b"", b"x"):
        arrived(b"_INBOX.n.1." + text, b"", b"", b"")
    assert answers == [7]
