"""Checks reply subjects: nodes answer only under allowed inbox prefixes [A5].

A publisher must not be able to make a node publish on a subject of its choice, so a reply subject is answered only below one of the
prefixes that are allowed for those who ask there: applications have theirs (``DEFAULT_INBOX_PREFIXES``, or the setting), nodes have
``<ns>.inbox.<node>.``, and neither is ever answered below the other's.

A prefix ends with a dot. A star before that dot stands for nothing, or for a suffix that begins with ``_`` or ``-``: ``_INBOX*.`` is
``_INBOX.`` and every user's own ``_INBOX_alice.``, as NATS recommends them where one user must not hear another's answers. It is not
``_INBOXX.``, which is another word.

``reply_to`` is the one place where a reply subject is checked. Every answer leaves through ``BusConnection.answer``, or through
``publish_answer`` here, and both ask it when the answer is sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from liftpy.core.wire.decode_errors import REPLY
from liftpy.errors import ConfigError

DEFAULT_INBOX_PREFIXES = ("_INBOX*.",)
MAX_REPLY_BYTES = 255
"""Of a reply subject. A server takes lines of 4,096 bytes at most (``max_control_line``) and cuts off senders of longer ones."""

_PREFIX = re.compile(r"(?:[^\s.*>\x00-\x1f\x7f]+\.)*[^\s.*>\x00-\x1f\x7f]+\*?\.")
_IN_TOKEN = rb"[!-)+-\-/-=?-~\x80-\xff]"
_SUFFIX_BEGINS = ("_", "-")
_IN_SUBJECT = rb"[!-)+-=?-~\x80-\xff]"


Allows = Callable[[bytes], bool]
"""Whether a reply subject may be answered: an ``InboxRule``, or what stands for one."""


def check_inbox_prefixes(prefixes: Sequence[str]) -> None:
    """Raise ConfigError unless there is at least one prefix, and all are valid."""
    wrong = next((prefix for prefix in prefixes if not _PREFIX.fullmatch(prefix)), None)
    if wrong is not None or not prefixes:
        which = f"{wrong!r} is none: " if wrong is not None else "at least one is needed: "
        raise ConfigError(
            f"Invalid inbox_prefixes: {which}each prefix must end with a dot, such as '_INBOX.'. A star before "
            "the dot is allowed ('_INBOX*.')."
        )


def token_allows(pattern: str, token: str) -> bool:
    """Return whether ``token`` of a subject matches the token ``pattern`` of a prefix."""
    if not pattern.endswith("*"):
        return token == pattern
    stem = pattern[:-1]
    rest = token.removeprefix(stem)
    return token.startswith(stem) and (not rest or stem.endswith(_SUFFIX_BEGINS) or rest.startswith(_SUFFIX_BEGINS))


class InboxRule:
    """Rule for reply subjects: UTF-8 below an inbox prefix, limited length, no wildcards, spaces or control characters."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        choices = b"|".join(_expression(prefix) for prefix in prefixes)
        self._pattern = re.compile(rb"(?:%b)%b+" % (choices, _IN_SUBJECT))
        self._lines = re.compile(rb"(?:(?:%b)%b++\n)*+" % (choices, _IN_SUBJECT))

    def __call__(self, subject: bytes) -> bool:
        """Whether a node may publish there."""
        return self.allows(subject)

    def allows(self, subject: bytes) -> bool:
        """Whether a node may publish there."""
        fits = len(subject) <= MAX_REPLY_BYTES and self._pattern.fullmatch(subject) is not None
        return fits and (subject.isascii() or _is_utf8(subject))

    def allows_all(self, subjects: Sequence[bytes], ending: bytes = b"") -> bool:
        """Return whether all ``subjects`` are allowed, with one check.

        False also if some need a check of their own, such as those that end with ``ending``.
        """
        lines = b"\n".join(subjects) + b"\n"
        if max(map(len, subjects), default=0) > MAX_REPLY_BYTES or not lines.isascii():
            return False
        # a line feed within a subject must not make two of it
        apart = bool(ending) and ending + b"\n" in lines
        return not apart and lines.count(b"\n") == len(subjects) and self._lines.fullmatch(lines) is not None


def reply_to(reply: bytes | str, rules: Sequence[Allows], counters: Counter[str], under: str = "") -> str | None:
    """Return ``reply`` as the subject of an answer. None (and counted): it is no inbox by any of ``rules``, or not below ``under``."""
    subject = reply if isinstance(reply, bytes) else reply.encode("utf-8", "surrogateescape")
    if subject.startswith(under.encode()) and any(rule(subject) for rule in rules):
        return subject.decode()
    counters[REPLY] += 1
    return None


async def publish_answer(
    publish: Callable[..., Awaitable[Any]],
    rules: Sequence[Allows],
    counters: Counter[str],
    reply: bytes | str,
    payload: bytes,
    headers: dict[str, str] | None = None,
    under: str = "",
) -> bool:
    """Publish an answer with ``publish`` (subject, payload, headers=...), to an inbox only.

    Returns:
        False (and counted) when ``reply`` is no inbox by any of ``rules``, or not below ``under``. Raises what ``publish`` raises.
    """
    subject = reply_to(reply, rules, counters, under)
    if subject is None:
        return False
    await (publish(subject, payload) if headers is None else publish(subject, payload, headers=headers))
    return True


def _expression(prefix: str) -> bytes:
    if prefix.endswith("*."):
        stem = prefix[:-2]
        rest = _IN_TOKEN + b"*" if stem.endswith(_SUFFIX_BEGINS) else rb"(?:[_-]" + _IN_TOKEN + b"*)?"
        return re.escape(stem.encode()) + rest + rb"\."
    return re.escape(prefix.encode())


def _is_utf8(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True
