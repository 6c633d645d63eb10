"""What a publish expects of the log that it is stored behind, and whether it is so [protocol: Conditions]. Pure.

Goal: optimistic concurrency as JetStream's: the last sequence of the stream, of a subject, or of a filter over subjects; the
message id of the last record. Constraint: judged by the whole log, what is not committed yet included, and by the records of the
same batch before it.

Algorithm: the first expectation of a run of messages that does not hold is told. Of several messages it only says that they have to be
looked at one by one.

A leader that does not know all subjects yet (``last_of_subjects.py``) judges a publish at once where the subject is known. Other
conditional publishes wait for the index (``IndexWait``), bounded in count, bytes and time; beyond a bound the answer is 503. Publishes
behind a waiting one pass it: the leader judges each publish by the log as it is when the leader judges it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from liftpy.ingest.derived import DerivedState
from liftpy.ingest.jetstream import Expected, Unfit, wrong_last_id, wrong_sequence
from liftpy.ingest.last_of_subjects import MANY
from liftpy.replica.effects import RejectReason
from liftpy.wire.subjects import has_wildcards, matcher

UNINDEXED = Unfit(
    RejectReason.OVERLOADED,
    "the last sequences of this stream's subjects are being read from its log: try again",
    (503, 10008),
)
_FULL = Unfit(
    RejectReason.NO_SPACE,
    "insufficient resources: the stream has more subjects than subjects_bytes hold, no last sequence of a subject can be expected",
    (503, 10023),
)
_TOO_MANY = Unfit(
    RejectReason.UNSUPPORTED,
    f"the last sequence of a filter can be expected of a stream with {MANY} subjects at most",
    (400, 10003),
)


def unexpected(
    expected: Mapping[int, int],
    of_others: Mapping[int, Expected],
    subjects: Sequence[str],
    derived: DerivedState,
    end_offset: int,
) -> Unfit | None:
    """The first last sequence that is not as expected; None: all are. ``expected``: record index -> offset; ``of_others``: record index
    -> what else; both ascending. ``subjects``: of the records, which go to ``end_offset`` and behind it."""
    for index, offset in expected.items():
        if offset != end_offset + index:
            return wrong_sequence(end_offset + index)
    before: dict[str, int] = {}
    seen = 0
    for index, wanted in of_others.items():
        if wanted.sequence is None:
            continue
        before.update(zip(subjects[seen:index], count(end_offset + seen), strict=False))
        seen = index
        unfit = _of_subject(wanted, subjects[index], before, derived)
        if unfit is not None:
            return unfit
    return None


def _of_subject(wanted: Expected, own: str, before: Mapping[str, int], derived: DerivedState) -> Unfit | None:
    subject = wanted.subject or own
    if has_wildcards(subject):
        if len(derived.subjects) > MANY:
            return _TOO_MANY
        matches = matcher(subject)
        offset = derived.last_of_matching(matches)
        here = max((at for name, at in before.items() if matches(name)), default=-1)
    else:
        offset, here = derived.last_of(subject), before.get(subject, -1)
    if offset is None and here < 0:
        return _FULL if derived.subjects.is_full else UNINDEXED
    last_sequence = max(-1 if offset is None else offset, here) + 1
    return None if wanted.sequence == last_sequence else wrong_sequence(last_sequence)


def index_key(of_others: Mapping[int, Expected], own: str) -> str:
    """The subject whose last offset a single publish waits for; "": the whole index, for a filter."""
    subject = next((wanted.subject for wanted in of_others.values()), "") or own
    return "" if has_wildcards(subject) else subject


def unexpected_id(of_others: Mapping[int, Expected], ids: Mapping[int, bytes], last_id: bytes) -> Unfit | None:
    """The first message id of a last record that is not as expected. ``ids``: record index -> message id; ``last_id``: of the log."""
    for index, wanted in of_others.items():
        stands = ids.get(index - 1, b"") if index else last_id
        if wanted.last_id and wanted.last_id != stands:
            return wrong_last_id(stands)
    return None
