"""Headers of a record: ordered pairs, whose names may repeat, and liftpy's own names.

``Lift-*`` (in any case) is reserved for liftpy. A plain publisher uses these names for values that an envelope has as fields. Inside an
envelope such a name is rejected, because a later program could take it for the plain form.

The module also reads the header block of a NATS message, as nats-server sends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from liftpy.core.base.ids import is_utf8, quote
from liftpy.errors import ConfigError

Pairs = tuple[tuple[str, bytes], ...]
HeadersLike = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""Headers that an application may pass: a mapping, or pairs in any order. Text is sent as UTF-8."""

KEY = "Lift-Key"
ACK = "Lift-Ack"
TOMBSTONE = "Lift-Tombstone"
REPLY_TO = "Lift-Reply-To"
"""Header of a plain publish: the inbox for the reply of a replicated service that reads the record."""
OUTPUT_ID = "Lift-Output"
OUTPUT_NUMBER = "Lift-Output-Number"
OUTPUT_DIGEST = "Lift-Output-Digest"
OUTPUT_SERVICE = "Lift-Output-Service"
OUTPUT_TO = "Lift-Output-To"
SERVICE_SKIP = "Lift-Service-Skip"
SERVICE_EFFECT = "Lift-Service-Effect"
SERVICE_TICK = "Lift-Service-Tick"
SERVICE_VERSION = "Lift-Service-Version"
DEAD_LETTER_SERVICE = "Lift-Dead-Letter-Service"
DEAD_LETTER_SOURCE = "Lift-Dead-Letter-Source"
DEAD_LETTER_ERROR = "Lift-Dead-Letter-Error"
_RESERVED = "lift-"
_OF_SERVICES = frozenset(
    {
        OUTPUT_ID,
        OUTPUT_NUMBER,
        OUTPUT_DIGEST,
        OUTPUT_SERVICE,
        OUTPUT_TO,
        SERVICE_SKIP,
        SERVICE_EFFECT,
        SERVICE_TICK,
        SERVICE_VERSION,
        DEAD_LETTER_SERVICE,
        DEAD_LETTER_SOURCE,
        DEAD_LETTER_ERROR,
    }
)
Headers = list[tuple[str, bytes]]
"""Names and values, in order. Names may repeat."""
_STATUS_LINE = b"NATS/1.0"
_TEXT = ("utf-8", "surrogateescape")


def is_reserved(name: str) -> bool:
    """Return whether applications must not use the header ``name``, because it is empty or reserved for liftpy."""
    return not name or name[: len(_RESERVED)].lower() == _RESERVED


def may_be_enveloped(name: str) -> bool:
    """Return whether an enveloped message may have the header ``name``: a name of an application or of a replicated service."""
    return not is_reserved(name) or name in _OF_SERVICES


def pairs_of(headers: HeadersLike | None) -> Pairs:
    """Return the headers that an application passes as (name, value) pairs. Raises ConfigError for invalid or reserved names."""
    pairs = encoded_pairs(headers)
    for name, _ in pairs:
        if is_reserved(name):
            raise ConfigError(f"Invalid header name {name!r}. Names must not be empty, and Lift-* is reserved.")
        if not is_utf8(name):
            raise ConfigError(f"Invalid header name {quote(name)}. Use UTF-8 text.")
    return pairs


def encoded_pairs(headers: HeadersLike | None) -> Pairs:
    """Return headers as pairs of name and value, with text encoded as UTF-8. Raises ConfigError for invalid types."""
    if not headers:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    try:
        pairs = tuple((name, value.encode() if isinstance(value, str) else bytes(_as_bytes(value))) for name, value in items)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Invalid headers: {error}. Use a mapping, or pairs of a name (str) and a value (str or bytes)."
        ) from error
    for name, _ in pairs:
        if not isinstance(name, str):
            raise ConfigError(f"Invalid header name {name!r}. Names must not be empty, and Lift-* is reserved.")
    return pairs


def _as_bytes(value: object) -> bytes | bytearray | memoryview:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{value!r} must be str or bytes")
    return value


def parse_headers(block: bytes) -> Headers:
    """Return the (name, value) pairs of the header block of a NATS message, in order, with repeated names.

    Malformed lines are ignored. Spaces before a value are removed, spaces behind it are kept, as nats-server does.
    """
    headers: Headers = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            headers.append((name.decode(*_TEXT), value.lstrip(b" \t")))
    return headers


def is_status(block: bytes, payload: bytes) -> bool:
    """Return whether a message is a status of the NATS server, such as 503 for no responders. ``block``: header block."""
    return not payload and block[len(_STATUS_LINE) : len(_STATUS_LINE) + 1] == b" "
