"""What a JetStream publisher is promised, one function for each promise: ``liftpy/core/publish/jetstream_headers.py``.

Each check makes its own stream, so that none disturbs another. It raises AssertionError where a promise is broken.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.clients.protocol import Answer
from tests.clients.targets import Target

Ask = Callable[..., Awaitable[Answer]]
_numbers = itertools.count()


class Asking:
    """One client, one stream that was made for one check. ``stream`` is its name, ``base`` what its subjects begin with."""

    def __init__(self, target: Target, ask: Ask, label: str, many: int) -> None:
        self.target = target
        self.ask = ask
        self.many = many
        number = next(_numbers)
        self.stream = f"C{number}-{label}"
        self.base = f"clients.{number}"

    async def publish(self, subject: str = "a", value: str = "x", **options: Any) -> Answer:
        """One message, with the client's options and ``headers``."""
        return await self.ask("publish", subject=f"{self.base}.{subject}", value=value, **options)

    async def stores(self, subject: str = "a", value: str = "x", **options: Any) -> int:
        """The same, which must be stored as a new record: its sequence."""
        said = await self.publish(subject, value, **options)
        assert said.get("seq", 0) > 0, f"not stored: {said}"
        assert said["stream"] == self.stream, said
        assert not said["duplicate"], said
        return int(said["seq"])

    async def refuses(self, code: int, err_code: int, description: str, subject: str = "a", **options: Any) -> None:
        """It is refused with exactly that, and nothing is stored: a plain one before it and one after it are neighbours."""
        before = await self.stores()
        said = await self.publish(subject, "refused", **options)
        told(said, code, err_code, description.replace("LAST", str(before)))
        assert await self.stores() == before + 1, "what was refused is stored"


def told(said: Answer, code: int, err_code: int, description: str) -> None:
    """What a client was told is exactly that; the ``nats`` command shows no ``code``."""
    expected = {"code": code, "err_code": err_code, "description": description}
    assert {"code": code, **said} == expected, f"{said}, not {expected}"


async def acks(it: Asking) -> None:
    """An ack names the stream and the sequence, which grows by one."""
    assert [await it.stores() for _ in range(3)] == [1, 2, 3]


async def headers(it: Asking) -> None:
    """Headers, subject and value are kept, a traceparent among them."""
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "colour": "red and blue"}
    found = await it.target.stored(it.stream, await it.stores("a", "value", headers=given))
    assert (found.subject, found.value) == (f"{it.base}.a", "value"), found
    assert {name: found.headers.get(name) for name in given} == given, found


async def wildcards(it: Asking) -> None:
    """Every subject below the stream's is stored, in one sequence."""
    seqs = [await it.stores(subject) for subject in ("a", "b.c", "d.e.f")]
    found = [(await it.target.stored(it.stream, seq)).subject for seq in seqs]
    assert seqs == [1, 2, 3]
    assert found == [f"{it.base}.{subject}" for subject in ("a", "b.c", "d.e.f")], found


async def in_flight(it: Asking) -> None:
    """Many at once: each is answered with its own sequence, in the order sent."""
    said = await it.ask("many", subject=f"{it.base}.a", count=it.many)
    assert not said["failed"], f"{len(said['failed'])} failed: {said['failed'][0]}"
    assert said["seqs"] == list(range(1, it.many + 1)), "not in order"
    assert (await it.target.stored(it.stream, it.many)).value == str(it.many - 1)


async def atomic(it: Asking) -> None:
    """The client's own batch is refused: it would not be one."""
    told(await it.ask("atomic", subject=f"{it.base}.a"), 400, 10174, "atomic publish is disabled")
    assert await it.stores() == 1


async def fast(it: Asking) -> None:
    """The client's own fast batch is refused."""
    told(await it.ask("fast", subject=f"{it.base}.a"), 400, 10205, "batch publish is disabled")
    assert await it.stores() == 1


async def right_stream(it: Asking) -> None:
    """The expected stream is this one."""
    await it.stores(expect_stream=it.stream)


async def duplicate(it: Asking) -> None:
    """A message id that is known: the first one's sequence, duplicate, nothing is stored; another id, another record."""
    first = await it.stores(msg_id="one")
    await it.stores()
    said = await it.publish(msg_id="one")
    assert said == {"stream": it.stream, "seq": first, "duplicate": True}, said
    said = await it.publish(value="another payload", subject="other", msg_id="one")
    assert said == {"stream": it.stream, "seq": first, "duplicate": True}, f"another payload and subject: {said}"
    assert await it.stores(msg_id="two") == first + 2


async def duplicate_first(it: Asking) -> None:
    """A retry of a conditional publish that was won is a duplicate, not a lost race."""
    last = await it.stores()
    won = await it.stores(msg_id="race", expect_last=last)
    said = await it.publish(msg_id="race", expect_last=last)
    assert said == {"stream": it.stream, "seq": won, "duplicate": True}, said


async def last_sequence(it: Asking) -> None:
    """The expected last sequence is the last."""
    last = await it.stores()
    assert await it.stores(expect_last=last) == last + 1


async def subject_sequence(it: Asking) -> None:
    """The expected last sequence of a subject is that of this subject, whatever came on others; a new subject has 0."""
    mine = await it.stores("mine")
    await it.stores("other")
    await it.stores("mine", expect_last_of_subject=mine)
    await it.stores("new", headers={"Nats-Expected-Last-Subject-Sequence": "0"})


async def wrong_subject_sequence(it: Asking) -> None:
    """It is not: refused, with the subject's own last."""
    mine = await it.stores("mine")
    other = await it.stores("other")
    said = await it.publish("mine", expect_last_of_subject=other)
    told(said, 400, 10071, f"wrong last sequence: {mine}")
    assert await it.stores() == other + 1


async def filtered_subject_sequence(it: Asking) -> None:
    """The last of what another subject matches."""
    await it.stores("k.1")
    last = await it.stores("k.2")
    await it.stores("z")
    named = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{it.base}.k.*"}
    await it.stores("k.3", headers={"Nats-Expected-Last-Subject-Sequence": str(last), **named})
    said = await it.publish("k.3", headers={"Nats-Expected-Last-Subject-Sequence": str(last), **named})
    told(said, 400, 10071, f"wrong last sequence: {last + 2}")


async def last_message_id(it: Asking) -> None:
    """The expected last message id is that of the last record."""
    await it.stores(msg_id="first")
    await it.stores(msg_id="second", expect_last_msg_id="first")


async def wrong_last_message_id(it: Asking) -> None:
    """It is not: refused. (What follows is not asked: JetStream R3 stops answering then.)"""
    await it.stores(msg_id="first")
    said = await it.publish(expect_last_msg_id="zero")
    told(said, 400, 10070, "wrong last msg ID: first")


def refused(code: int, err_code: int, description: str, **options: Any) -> Callable[[Asking], Awaitable[None]]:
    """A check that this is refused so."""

    async def check(it: Asking) -> None:
        await it.refuses(code, err_code, description, **options)

    return check


def _headers(**given: str) -> dict[str, str]:
    return {"Nats-" + name.replace("_", "-"): value for name, value in given.items()}


CHECKS: dict[str, Callable[[Asking], Awaitable[None]]] = {
    "acks": acks,
    "headers are kept": headers,
    "wildcards": wildcards,
    "many in flight": in_flight,
    "fast batch": fast,
    "atomic batch": atomic,
    "1 Batch-Id": refused(400, 10174, "atomic publish is disabled", headers=_headers(Batch_Id="b", Batch_Sequence="1")),
    "2 large headers": refused(400, 10097, "header size exceeds maximum allowed of 64k", headers={"h": "x" * 65_600}),
    "3 Incr": refused(400, 10168, "message counters is disabled", headers=_headers(Incr="1")),
    "4 expected stream": right_stream,
    "4 another stream": refused(400, 10060, "expected stream does not match", expect_stream="other"),
    "5 TTL": refused(400, 10166, "per-message TTL is disabled", headers=_headers(TTL="1m")),
    "6 Msg-Id": duplicate,
    "6 before 7": duplicate_first,
    "7 last sequence": last_sequence,
    "7 not the last": refused(400, 10071, "wrong last sequence: LAST", expect_last=77),
    "7 no number": refused(400, 10071, "wrong last sequence: LAST", headers=_headers(Expected_Last_Sequence="abc")),
    "8 of a subject": subject_sequence,
    "8 not its last": wrong_subject_sequence,
    "8 named subject": filtered_subject_sequence,
    "8 subject alone": refused(
        400,
        10193,
        "missing sequence for expected last sequence per subject",
        headers=_headers(Expected_Last_Subject_Sequence_Subject="a"),
    ),
    "9 schedule": refused(
        400, 10188, "message schedules is disabled", headers=_headers(Schedule="@at 2099-01-01T00:00:00Z", Schedule_Target="t")
    ),
    "10 rollup": refused(500, 10111, "rollup not permitted", headers=_headers(Rollup="all")),
    "11 last Msg-Id": last_message_id,
    "11 not its id": wrong_last_message_id,
    "1 before 3": refused(
        400, 10174, "atomic publish is disabled", headers=_headers(Incr="1", Batch_Id="b", Batch_Sequence="1")
    ),
    "4 before 5": refused(400, 10060, "expected stream does not match", expect_stream="other", headers=_headers(TTL="1m")),
    "5 before 7": refused(400, 10166, "per-message TTL is disabled", expect_last=77, headers=_headers(TTL="1m")),
    "7 before 10": refused(400, 10071, "wrong last sequence: LAST", expect_last=77, headers=_headers(Rollup="all")),
}
"""Name of a check -> the check. A number says when a server looks: 4 before 5, 6 before 7."""
NEEDS = {"many in flight": "many", "atomic batch": "atomic", "fast batch": "fast"}
"""Name of a check -> the command that a client's program may lack."""
