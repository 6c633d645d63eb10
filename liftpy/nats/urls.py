"""NATS URLs: validation before the connect, and display without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from liftpy.errors import ConfigError

SCHEMES = ("nats", "tls", "ws", "wss")
ENCRYPTED = ("tls", "wss")
_USER_INFO = re.compile(r"^([a-zA-Z][\w+.-]*:/+)?.*@", re.DOTALL)
_HIDDEN = r"\g<1>***@"
_INVALID_PORT = re.compile(r":(?!//|\d{1,5}/?$)[^\]@]*$")
"""Pattern of an invalid port. If a URL was split at a comma, the text after the colon is the first half of a password."""


def without_secrets(urls: str | Iterable[str]) -> str:
    """Return the URLs as text for logs and errors, without users, passwords and tokens."""
    return ", ".join(_without_secrets(url.strip()) for url in (urls.split(",") if isinstance(urls, str) else urls))


def _without_secrets(url: str) -> str:
    bare = _USER_INFO.sub(_HIDDEN, url)
    return bare if bare.startswith("ws") else _INVALID_PORT.sub(":***", bare)  # URLs of WebSockets have paths


def shown_address(uri: Any) -> str:
    """Return host and port of a URL that ``urlsplit`` has split, for texts. '': ``uri`` is None."""
    return uri.netloc.rpartition("@")[2] if uri is not None else ""


def check_urls(urls: Iterable[str], *, bare: bool = False) -> None:
    """Check that NATS URLs are valid. Raises ConfigError with the first invalid URL and the reason.

    ``bare``: True if ``host:port`` without a scheme is allowed.
    """
    url_list = tuple(urls)
    for url in url_list:
        if not url.isascii() or any(character.isspace() or not character.isprintable() for character in url):
            raise ConfigError(
                f"Invalid NATS URL {without_secrets(url)!r}: it has spaces, control characters or other invalid characters. Use "
                "nats://HOST:PORT."
            )
        _check(url, f"nats://{url}" if bare and "://" not in url else url)
    if not url_list:
        raise ConfigError("No NATS URL is given. Set --nats or LIFTPY_NATS, for example nats://127.0.0.1:4222.")


def _check(url: str, whole: str) -> None:
    name = f"nats: {without_secrets(url)!r}"
    try:
        parts = urlsplit(whole)
    except ValueError:
        raise ConfigError(f"Invalid NATS URL {name}. Use nats://HOST:PORT.") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"Invalid NATS URL {name}. It must start with one of {', '.join(f'{s}://' for s in SCHEMES)}")
    if not parts.hostname:
        raise ConfigError(f"Invalid NATS URL {name}: the host is missing. Use nats://HOST:PORT.")
    if not _has_good_port(parts):
        raise ConfigError(f"Invalid port in NATS URL {name}. Use a port from 1 to 65535.")
    if parts.path not in ("", "/") and not parts.scheme.startswith("ws"):
        raise ConfigError(f"Invalid NATS URL {name}: it has a path. If a password contains a slash, write it as %2F.")


def _has_good_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def wants_tls(urls: Iterable[str]) -> bool:
    """Return whether one of the URLs requires encryption."""
    return any(url.strip().split("://")[0].lower() in ENCRYPTED for url in urls if "://" in url)
