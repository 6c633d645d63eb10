"""Where answers may go: reply subjects under inbox prefixes, and nowhere else [A5].

A publisher must not be able to make a node publish on a subject of its choice, so a reply subject is answered only below one of the
prefixes that are allowed for those who ask there: applications have theirs (``DEFAULT_INBOX_PREFIXES``, or the setting), nodes have
``<ns>.inbox.<node>.``, and neither is ever answered below the other's.

A prefix ends with a dot. A star before that dot stands for anything but a dot: ``_INBOX*.`` is ``_INBOX.`` and every user's own
``_INBOX_alice.``, as NATS recommends them where one user must not hear another's answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from liftpy.errors import ConfigError

DEFAULT_INBOX_PREFIXES = ("_INBOX*.",)
MAX_REPLY_BYTES = 255
"""Of a reply subject. A server takes lines of 4,096 bytes at most (``max_control_line``) and cuts off senders of longer ones."""

_PREFIX = re.compile(r"(?:[^\s.*>\x00-\x1f\x7f]+\.)*[^\s.*>\x00-\x1f\x7f]+\*?\.")
_IN_TOKEN = rb"[!-)+-\-/-=?-~\x80-\xff]"
_IN_SUBJECT = rb"[!-)+-=?-~\x80-\xff]"


def check_inbox_prefixes(prefixes: Sequence[str]) -> None:
    """Raise ConfigError unless there is one, and all have the form of a prefix."""
    wrong = next((prefix for prefix in prefixes if not _PREFIX.fullmatch(prefix)), None)
    if wrong is not None or not prefixes:
        which = f"{wrong!r} is none: " if wrong is not None else "at least one is needed: "
        raise ConfigError(
            f"inbox_prefixes: {which}every one ends with a dot, as '_INBOX.' does; before it a star may stand ('_INBOX*.')"
        )


def token_allows(pattern: str, token: str) -> bool:
    """Whether ``token`` (of a subject) is what a prefix's token ``pattern`` stands for."""
    return token.startswith(pattern[:-1]) if pattern.endswith("*") else token == pattern


class InboxRule:
    """Which reply subjects may be answered: UTF-8 under an inbox prefix, bounded, without wildcards, blanks, control characters."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        choices = b"|".join(_expression(prefix) for prefix in prefixes)
        self._pattern = re.compile(rb"(?:%b)%b+" % (choices, _IN_SUBJECT))
        self._lines = re.compile(rb"(?:(?:%b)%b++\n)*+" % (choices, _IN_SUBJECT))

    def allows(self, subject: bytes) -> bool:
        """Whether a node may publish there."""
        fits = len(subject) <= MAX_REPLY_BYTES and self._pattern.fullmatch(subject) is not None
        return fits and (subject.isascii() or _is_utf8(subject))

    def allows_all(self, subjects: Sequence[bytes], ending: bytes = b"") -> bool:
        """Whether all of them are such subjects, in one go: False also where one would have to be looked at on its own, as those are
        that end with ``ending``."""
        lines = b"\n".join(subjects) + b"\n"
        if max(map(len, subjects), default=0) > MAX_REPLY_BYTES or not lines.isascii():
            return False
        # a line feed within a subject must not make two of it
        apart = bool(ending) and ending + b"\n" in lines
        return not apart and lines.count(b"\n") == len(subjects) and self._lines.fullmatch(lines) is not None


def _expression(prefix: str) -> bytes:
    if prefix.endswith("*."):
        return re.escape(prefix[:-2].encode()) + _IN_TOKEN + rb"*\."
    return re.escape(prefix.encode())


def _is_utf8(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True
