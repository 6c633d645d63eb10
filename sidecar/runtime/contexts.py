"""Contexts: named ways to reach a cluster, in a file of the user that only the user can read.

A context holds values of connection options: ``nats``, ``namespace`` and the fields of ``Credentials``. The file is JSON::

    {"selected": "prod", "contexts": {"prod": {"nats": "tls://nats.example:4222", "creds_file": "/home/ann/prod.creds"}}}
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from liftpy.core.base.ids import check_name, is_utf8
from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, NotFoundError
from liftpy.nats.credentials import Credentials

FIELDS = ("nats", "namespace", *(each.name for each in fields(Credentials)))
"""Names of the options that a context may set."""
SECRETS = ("password", "token")
"""Names of the options whose values are never shown."""
MAX_CONTEXTS = 1000
MAX_FILE_BYTES = 1 << 20
_LOCK_S = 10.0
"""Maximum time to wait for another command that changes the contexts, in seconds."""
_POLL_S = 0.02

_OF_NATS = {
    "url": "nats", "creds": "creds_file", "nkey": "nkey_seed_file", "user": "user", "password": "password", "token": "token",
    "ca": "tls_ca_file", "cert": "tls_cert_file", "key": "tls_key_file", "inbox_prefix": "inbox_prefix",
}  # fmt: skip
"""Name of a value in a context of the NATS CLI -> name of the option of liftpy."""
_OF_NATS_IGNORED = ("description", "jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix", "color_scheme")


@dataclass(slots=True)
class Contexts:
    """All contexts of a user.

    Args:
        path: Path of the file.
        selected: Name of the context that commands use by default. '': none.
        values: Values of each context (option name to value), by the name of the context.
    """

    path: Path = Path("contexts.json")
    selected: str = ""
    values: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Contexts:
        """Return the contexts in a file. A file that does not exist has none.

        Raises:
            ConfigError: The file cannot be read, is damaged, or other users can read it although it has a secret.
        """
        try:
            with path.open("rb") as file:
                mode, content = os.fstat(file.fileno()).st_mode, file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ConfigError(f"Cannot read the contexts in {path}: {error.strerror}. Check its permissions.") from None
        contexts = decode_contexts(content, path)
        if contexts.has_secret and stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"Other users can read {path}, and it has a password or a token. Run: chmod 600 {path}")
        return contexts

    @property
    def has_secret(self) -> bool:
        """True if a context has a password or a token, also one in a URL."""
        values = [value for one in self.values.values() for value in one.items()]
        return any(name in SECRETS or (name == "nats" and "@" in value) for name, value in values)

    def save(self) -> None:
        """Replace the file. Only the user can read it (mode 0600). If the path is a link, replace the file to which it points.

        Raises:
            ConfigError: The file cannot be written. The old one is unchanged.
        """
        content = self.encode()
        if len(content) > MAX_FILE_BYTES or len(self.values) > MAX_CONTEXTS:
            raise ConfigError(f"The contexts exceed {MAX_CONTEXTS} or {MAX_FILE_BYTES} bytes. Remove some of them.")
        try:
            target = self.path.resolve()
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, new = tempfile.mkstemp(prefix=".contexts-", dir=target.parent)  # its mode is 0600
            try:
                with open(number, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, target)
            except BaseException:
                Path(new).unlink(missing_ok=True)  # a signal may arrive after the replacement
                raise
        except OSError as error:
            raise ConfigError(
                f"Cannot write the contexts to {self.path}: {error.strerror}. Nothing was changed. Check its permissions."
            ) from None

    def encode(self) -> bytes:
        return json.dumps({"selected": self.selected, "contexts": self.values}, indent=2).encode() + b"\n"

    def values_of(self, name: str) -> dict[str, str]:
        if name not in self.values:
            known = ", ".join(sorted(self.values)[:20])
            hint = f"Contexts: {known}." if known else "Add one with `liftpy context add NAME --nats URL`."
            raise NotFoundError(f"There is no context {name!r}. {hint}")
        return self.values[name]


@contextmanager
def lock_contexts(path: Path) -> Iterator[Contexts]:
    """Yield the contexts in the file ``path``. Until the end of the block, no other process can change them in such a block.

    Without the lock, the last of several commands at the same time would undo the changes of the others.

    Raises:
        ConfigError: The file cannot be read or locked.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"Cannot write {lock}: {error.strerror}. Nothing was changed. Check its permissions.") from None
    try:
        _lock_file(descriptor, path)
        yield Contexts.load(path)
    finally:
        os.close(descriptor)


def _lock_file(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"Another command changes the contexts in {path}. Nothing was changed. Run the command again when the other one "
                    "has ended."
                ) from None
        except OSError:  # the file system has no locks
            return
        time.sleep(_POLL_S)


def check_values(name: str, values: Mapping[str, str]) -> None:
    """Check the name and the ``values`` of a context before it is stored.

    Raises:
        ConfigError: The name or a value is not valid.
    """
    check_name(name, "context")
    for key, value in values.items():
        if not is_utf8(value):
            raise ConfigError(f"{key} is not UTF-8 text. Use a path or a value of UTF-8 characters.")
    Credentials(**{key: value for key, value in values.items() if key not in ("nats", "namespace")})


def from_nats_cli(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the values of a context file of the NATS CLI, and the names of its settings that liftpy cannot use.

    Raises:
        ConfigError: The file cannot be read or is no such context.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(
            f"Cannot read the NATS context {path}: {error.strerror}. `nats context ls` lists the contexts."
        ) from None
    return decode_nats_context(content, path)


def decode_nats_context(content: bytes, path: Path) -> tuple[dict[str, str], list[str]]:
    """Decode a context of the NATS CLI. Return the same as ``from_nats_cli``. ``path``: name of the file, for errors.

    Raises:
        ConfigError: The content is not valid.
    """
    try:
        table = load_json(content)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        raise ConfigError(
            f"{path} is not a context of the NATS CLI: it is not a JSON object. `nats context ls` lists the contexts."
        )
    values_given = {key: value for key, value in table.items() if value and key not in _OF_NATS_IGNORED}
    values = {
        _OF_NATS[key]: os.path.expanduser(value)
        for key, value in values_given.items()
        if key in _OF_NATS and type(value) is str
    }
    return values, sorted(key for key, value in values_given.items() if key not in _OF_NATS or type(value) is not str)


def nats_cli_file(name: str, home: Path) -> Path:
    """Return the file of a context of the NATS CLI in the configuration directory ``home``.

    Raises:
        ConfigError: The name is not valid.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} is not a valid name of a NATS context. `nats context ls` lists the contexts.")
    return home / "nats" / "context" / f"{name}.json"


def decode_contexts(content: bytes, path: Path) -> Contexts:
    """Decode the content of a file of contexts. ``path``: name of the file, for errors. Raises ConfigError if it is damaged."""
    damaged = ConfigError(f"The file of contexts {path} is damaged. Repair it, or remove it and add the contexts again.")
    try:
        table: Any = load_json(content) if len(content) <= MAX_FILE_BYTES else None
    except ValueError:
        raise damaged from None
    if not isinstance(table, dict) or not isinstance(table.get("contexts"), dict) or not isinstance(table.get("selected"), str):
        raise damaged
    for one in table["contexts"].values():
        if not isinstance(one, dict) or not all(key in FIELDS and isinstance(value, str) for key, value in one.items()):
            raise damaged
    selected = table["selected"]
    return Contexts(path, selected if selected in table["contexts"] else "", table["contexts"])
