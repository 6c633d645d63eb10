"""Conditions of publishes [protocol: Conditions]. Pure.

A publish may require the last sequence of the stream, of a subject or of a filter, or the last message id. The leader
checks this against the whole log, including uncommitted records. If its subject index is not complete, the publish waits
for it, within limits. Above a limit the answer is 503.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from liftpy.core.publish.jetstream_headers import PublishConditions, wrong_last_id, wrong_sequence
from liftpy.core.publish.last_per_subject import MANY
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.message_decoder import MessageColumns
from liftpy.core.wire.rejections import Rejection, RejectReason
from liftpy.core.wire.subjects import has_wildcards, matcher

UNINDEXED = Rejection(
    RejectReason.OVERLOADED,
    "The index of the last sequences per subject is not complete yet. Try again.",
    (503, 10008),
)
_FULL = Rejection(
    RejectReason.NO_SPACE,
    "insufficient resources: the subjects of this partition need more memory than partition_subject_index_bytes. Increase this "
    "setting, or publish without an expected last sequence per subject.",
    (503, 10023),
)
_TOO_MANY = Rejection(
    RejectReason.UNSUPPORTED,
    f"An expected last sequence with wildcards needs a stream with at most {MANY} subjects. Name one subject.",
    (400, 10003),
)
_TOO_OFTEN = Rejection(
    RejectReason.OVERLOADED,
    "Too many publishes at a time have an expected last sequence with wildcards. Try again, or name a subject without wildcards.",
    (503, 10008),
)


class _EarlierMessages:
    """Subjects of the messages that come earlier in the batch that is checked. It finds the last offset of a subject or of a filter."""

    def __init__(self, log_state: LogState) -> None:
        self._log_state = log_state
        self.last: dict[str, int] = {}
        self._in_order: list[tuple[str, int]] = []
        self._filters: dict[str, _FilterLookup] = {}

    def add(self, subjects: Sequence[str], base_offset: int) -> None:
        """Add the ``subjects`` of messages that will be stored at ``base_offset`` and the following offsets."""
        new = list(zip(subjects, range(base_offset, base_offset + len(subjects)), strict=True))
        self.last.update(new)
        self._in_order += new

    def last_offsets(self, subject_filter: str) -> _FilterLookup | None:
        """Return the last offsets of the subjects that match a filter, in the log and in this batch.

        None: the lookup would take too long.
        """
        found = self._filters.get(subject_filter)
        new_count = len(self._in_order) - (found.seen_count if found is not None else 0)
        if found is None:
            if not self._log_state.may_check(subject_filter, new_count):
                return None
            found = self._filters[subject_filter] = _FilterLookup(
                matcher(subject_filter), self._log_state.last_of_matching(subject_filter)
            )
        for at in range(len(self._in_order) - 1, found.seen_count - 1, -1):
            subject, offset = self._in_order[at]
            if found.matches(subject):
                found.here = offset
                break
        found.seen_count = len(self._in_order)
        return found


@dataclass(slots=True)
class _FilterLookup:
    """Last offsets of the subjects that match a filter: in the log, and in the batch that is checked."""

    matches: Callable[[str], bool]
    in_log: int | None
    here: int = -1
    seen_count: int = 0
    """Number of earlier messages of the batch that ``here`` covers."""


def unmet_conditions(
    columns: MessageColumns, log_state: LogState, end_offset: int, *, of_ids: bool = True
) -> dict[int, Rejection]:
    """Return record index -> rejection, for messages whose condition does not hold. Empty: all conditions hold.

    A message is checked as if the earlier messages of the batch were stored from ``end_offset`` on. Messages whose condition
    does not hold are left out.

    Args:
        columns: Messages of the batch.
        log_state: State that derives from the log.
        end_offset: Offset that the first message of the batch would get.
        of_ids: False if conditions on the last message id are not checked.
    """
    unmet: dict[int, Rejection] = {}
    before = _EarlierMessages(log_state)
    seen, end, last_id = 0, end_offset, log_state.ids.last_id
    """Number of messages that ``before`` covers, the log end after them, and the last message id."""
    subjects, ids = columns.subjects, columns.ids
    asks_subjects = any(wanted.sequence is not None for wanted in columns.of_others.values())
    for index in sorted(columns.expected.keys() | columns.of_others.keys()):
        if index > seen:
            if asks_subjects:
                before.add(subjects[seen:index], end)
            last_id = ids.get(index - 1, b"")
        seen, end = index, end + index - seen
        why = _unmet(columns, index, before, last_id if of_ids else None, log_state, end)
        if why is not None:
            unmet[index] = why
            seen = index + 1
    return unmet


def _unmet(
    columns: MessageColumns, index: int, before: _EarlierMessages, last_id: bytes | None, log_state: LogState, end_offset: int
) -> Rejection | None:
    if columns.expected.get(index, end_offset) != end_offset:
        return wrong_sequence(end_offset)
    wanted = columns.of_others.get(index)
    if wanted is None:
        return None
    if wanted.sequence is not None and (why := _of_subject(wanted, columns.subjects[index], before, log_state)) is not None:
        return why
    return wrong_last_id(last_id) if last_id is not None and wanted.last_id and wanted.last_id != last_id else None


def _of_subject(wanted: PublishConditions, own: str, before: _EarlierMessages, log_state: LogState) -> Rejection | None:
    subject = wanted.subject or own
    if has_wildcards(subject):
        if len(log_state.subjects) > MANY:
            return _TOO_MANY
        lookup = before.last_offsets(subject)
        if lookup is None:
            return _TOO_OFTEN
        offset, here = lookup.in_log, lookup.here
    else:
        offset, here = log_state.last_of(subject), before.last.get(subject, -1)
    if offset is None and here < 0:
        return _FULL if log_state.subjects.is_full else UNINDEXED
    last_sequence = max(-1 if offset is None else offset, here) + 1
    return None if wanted.sequence == last_sequence else wrong_sequence(last_sequence)


def index_key(wanted: PublishConditions, own: str) -> str:
    """Return the subject whose last offset the condition ``wanted`` needs. '': it needs the whole index, for a filter with wildcards.

    ``own``: subject of the message itself.
    """
    subject = wanted.subject or own
    return "" if has_wildcards(subject) else subject
