"""Names and identities: node ids, stream names, partition keys, and the rules that make them safe.

A name becomes a token of a NATS subject and the name of a directory. So it is checked once, where it enters the program:
one token of ``[A-Za-z0-9_-]{1,64}``. All other code relies on the check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from liftpy.errors import InvalidNameError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FOLDER = re.compile(r"([A-Za-z0-9_-]{1,64})-([0-9a-f]{6,}-[0-9a-f]+)", re.ASCII)
"""Directory name ``<stream>-<uid>``. ``RecordBuilder.next_stream_uid`` makes the uid."""
_SUBJECT_TOKEN = re.compile(r"[^\s.*>\x00-\x1f\x7f]+")
_RIGHTS_TOKEN = re.compile(r"""[^\s.*>"'\\\x00-\x1f\x7f]+""")
"""Characters that a permission may contain without quotes in a configuration or on a command line."""
MAX_SUBJECT_LENGTH = 255
_SUBJECT_RULE = "non-empty tokens separated by dots, without spaces"
_SHOWN_LENGTH = 80

PROBE_STREAM = "_liftpy-probe"
"""Stream into which `liftpy health --probe` publishes. It is the only internal stream that operators create."""
NO_OFFSET = -1
"""Value of an inclusive offset (``newest_offset``, ``high_watermark``) when there is no record."""


def quote(text: str) -> str:
    """Return ``text`` quoted and shortened, for an error message."""
    if not isinstance(text, str) or len(text) <= _SHOWN_LENGTH:
        return repr(text)
    return f"{text[: _SHOWN_LENGTH // 2]!r}…({len(text.encode(errors='replace'))} bytes)"


MAX_UID_LENGTH = 64
"""Maximum length of the uid of a stream, in characters."""


def is_utf8(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8. A text with a lone surrogate cannot, such as one from a wrong byte."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(name: str) -> bool:
    """Return whether ``name`` is allowed for a stream, node or service."""
    return NAME.fullmatch(name) is not None


def is_internal(stream: str) -> bool:
    """Return whether the cluster itself uses the stream of this name. Users can neither change it nor publish to it."""
    return stream.startswith("_")


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it is one token of ``[A-Za-z0-9_-]{1,64}``. Otherwise raise InvalidNameError.

    ``what``: kind of the named thing, such as "stream", for the error text.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidNameError(f"{what} {quote(name)} is not allowed: use 1 to 64 of the characters A-Z a-z 0-9 _ -")
    return name


def check_new_stream(name: str) -> str:
    """Return ``name`` if a new stream may have it. Raises InvalidNameError.

    A name such as ``-rf`` is not allowed, because a command would read it as an option.
    """
    if check_name(name, "stream").startswith("-"):
        raise InvalidNameError(
            f"stream {quote(name)} is not allowed: commands would read a name that begins with - as an option. Choose another name."
        )
    return name


def split_folder(name: str) -> tuple[str, str] | None:
    """Return stream and uid of a directory ``<stream>-<uid>``. None: the name does not have this form. Both may contain ``-``."""
    match = _FOLDER.fullmatch(name)
    return (match[1], match[2]) if match else None


def check_uid(uid: str) -> str:
    """Return ``uid`` if it is a valid stream uid or '' (any stream). Raises InvalidNameError."""
    if not isinstance(uid, str) or not is_utf8(uid) or len(uid) > MAX_UID_LENGTH:
        raise InvalidNameError(f"uid {quote(uid)} is not the uid of a stream. client.stream(name).uid returns it.")
    return uid


def check_published(stream: str) -> str:
    """Return ``stream`` if applications may publish to a stream of this name. Raises InvalidNameError."""
    if is_internal(check_name(stream, "stream")):
        raise InvalidNameError(
            f"stream {stream!r} is internal. Only the cluster itself publishes to it. Choose another stream."
        )
    return stream


def _is_subject(subject: str, token: re.Pattern[str]) -> bool:
    """Return whether ``subject`` is a NATS subject, with or without ``*`` and a trailing ``>``. ``token``: pattern of other tokens."""
    tokens = subject.split(".")
    return len(subject) <= MAX_SUBJECT_LENGTH and all(
        t == "*" or (t == ">" and i == len(tokens) - 1) or token.fullmatch(t) for i, t in enumerate(tokens)
    )


def check_publisher_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid NATS subject (wildcards allowed). Raises InvalidNameError."""
    if not _is_subject(subject, _RIGHTS_TOKEN):
        raise InvalidNameError(f"subject {subject!r} is not a NATS subject: {_SUBJECT_RULE}")
    return subject


def check_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid NATS subject, with or without ``*`` and a trailing ``>``. Raises InvalidNameError."""
    if not isinstance(subject, str) or not _is_subject(subject, _SUBJECT_TOKEN):
        raise InvalidNameError(f"subject {quote(subject)} is not a NATS subject: {_SUBJECT_RULE}")
    if not is_utf8(subject):
        raise InvalidNameError(f"subject {quote(subject)} is not UTF-8 text. Use only characters that UTF-8 can encode.")
    return subject


def check_data_subject(subject: str, namespace: str) -> str:
    """Return ``subject`` if a stream may store it. Raises InvalidNameError.

    Wildcards ``*`` and a trailing ``>`` are allowed. The namespace of the cluster, ``$`` subjects and inboxes are rejected,
    because a stream on them would store the messages of the protocol itself.
    """
    tokens = check_subject(subject).split(".")
    if tokens[0] in (namespace, "*", ">") or tokens[0].startswith(("$", "_INBOX")):
        raise InvalidNameError(
            f"subject {quote(subject)} would overlap with {namespace}.>, an _INBOX or $-subjects; choose another first token"
        )
    return subject


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """Identity of one partition of one stream. A stream that was created again under its name has another uid [R9]."""

    stream: str
    uid: str
    partition: int

    @property
    def folder(self) -> str:
        """Directory of the partition below ``streams/`` of the data directory.

        It is also the partition's key in the journal of promised epochs.
        """
        return f"{self.stream}-{self.uid}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"
