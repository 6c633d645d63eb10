"""NATS credentials of an application or a node. They are passed to nats-py and never logged."""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from liftpy.core.wire.subjects import check_inbox_prefixes, check_node_or_principal
from liftpy.errors import ConfigError

if TYPE_CHECKING:
    from nats.aio.client import RawCredentials

_MAX_FILE_BYTES = 1024 * 1024
_JWT = re.compile(rb"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(rb"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-{3,}END USER NKEY SEED-{3,}")


_FILES = ("creds_file", "nkey_seed_file", "tls_ca_file", "tls_cert_file", "tls_key_file")
FILE_OPTIONS = ("user_credentials", "nkeys_seed_str", "tls")
"""Names of the arguments of ``nats.connect`` that have the content of files."""
PROOFS = ("user", "password", "token", *_FILES)
"""Names of the fields that authenticate this client or the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """NATS credentials. Use at most one of ``creds_file``, ``nkey_seed_file``, ``user`` and ``token``.

    Args:
        creds_file: Path of a credentials file (JWT and nkey seed), as ``nsc`` writes it. Default '': not used.
        nkey_seed_file: Path of a file with an nkey seed. Default '': not used.
        user: User name. Needs ``password``. Default '': not used.
        password: Password of ``user``. Default '': not used.
        token: Token. Default '': not used.
        tls_ca_file: Path of the CA certificates to trust (PEM). Default '': those of the system.
        tls_cert_file: Path of the client certificate (PEM). Needs ``tls_key_file``. Default '': not used.
        tls_key_file: Path of the key of ``tls_cert_file`` (PEM, not encrypted). Default '': not used.
        inbox_prefix: Prefix of the subjects for answers, such as ``_INBOX_alice``. For applications, not for nodes.
            Default '': ``_INBOX``.
        principal: Name under which this user may change streams, if the NATS permissions name one
            (``<namespace>.control.admin.<principal>``). Default '': none.

    Raises:
        ConfigError: The fields exclude each other.

    Example:
        credentials = liftpy.Credentials(user="app", password="secret", tls_ca_file="/etc/ssl/nats-ca.pem")
        client = await liftpy.connect("tls://nats:4222", credentials=credentials)
    """

    creds_file: str = ""
    """Path of a credentials file (JWT and nkey seed), as `nsc` writes it."""
    nkey_seed_file: str = ""
    """Path of a file with an nkey seed."""
    user: str = ""
    """User name. Needs `password`."""
    password: str = field(default="", repr=False)
    """Password of `user`."""
    token: str = field(default="", repr=False)
    """Token, instead of a user."""
    tls_ca_file: str = ""
    """Path of the CA certificates to trust (PEM)."""
    tls_cert_file: str = ""
    """Path of the client certificate (PEM). Needs `tls_key_file`."""
    tls_key_file: str = ""
    """Path of the key of `tls_cert_file` (PEM, not encrypted)."""
    inbox_prefix: str = ""
    """Prefix of the subjects for answers to an application, such as `_INBOX_alice`. Not for nodes."""
    principal: str = ""
    """Name under which this user may change streams, if the NATS permissions name one
    (`<namespace>.control.admin.<principal>`).
    """

    def __post_init__(self) -> None:
        ways = [bool(self.creds_file), bool(self.nkey_seed_file), bool(self.user), bool(self.token)]
        if sum(ways) > 1:
            raise ConfigError(
                "Several kinds of credentials are set. Set only one of: creds_file, nkey_seed_file, user with password, token."
            )
        if bool(self.user) != bool(self.password):
            raise ConfigError("user and password belong together. Set both (LIFTPY_PASSWORD), or neither.")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError("tls_cert_file and tls_key_file belong together. Set both, or neither.")
        if self.inbox_prefix:
            _check_inbox_prefix(self.inbox_prefix)
        if self.principal:
            check_node_or_principal(self.principal, "principal")

    @property
    def has_files(self) -> bool:
        """True if a field names a file."""
        return any(getattr(self, name) for name in _FILES)

    def proofs(self) -> dict[str, bytes]:
        """Return a digest of each field, or of the content of its file, by field name."""
        return {name: _proof(name, getattr(self, name)) for name in PROOFS}

    def nats_options(self) -> dict[str, Any]:
        """Return the arguments for ``nats.connect``, with the content of the files.

        Raises:
            ConfigError: A file cannot be used.
        """
        options: dict[str, Any] = {
            "user_credentials": _read_creds(self.creds_file) if self.creds_file else None,
            "nkeys_seed_str": _read_seed(self.nkey_seed_file) if self.nkey_seed_file else "",
            "user": self.user,
            "password": self.password,
            "token": self.token,
        }
        options = {name: value for name, value in options.items() if value}
        if self.inbox_prefix:
            options["inbox_prefix"] = self.inbox_prefix.encode()
        if self.tls_ca_file or self.tls_cert_file:
            options["tls"] = self._tls_context()
        return options

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.tls_ca_file or None)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"Cannot use tls_ca_file {self.tls_ca_file}: {error}. Give a file with certificates in PEM format."
            ) from None
        try:
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            files = f"TLS: tls_cert_file {self.tls_cert_file} with tls_key_file {self.tls_key_file}"
            raise ConfigError(f"Cannot use {files}: {error}. Give a certificate and its private key in PEM format.") from None
        return context


def _no_password() -> str:
    """Raise an error. OpenSSL calls the function for an encrypted key file, instead of asking for a password on the terminal."""
    raise ValueError("the private key is encrypted, use one without a passphrase")


def _read_file(path: str, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Cannot read {name} {path}: {getattr(error, 'strerror', None) or error}. Check the path and its permissions."
        ) from None


def _proof(name: str, value: str) -> bytes:
    digest = hashlib.blake2b(value.encode(), digest_size=16)
    if value and name in _FILES:
        try:
            digest.update(_read_file(value, name))
        except ConfigError as error:
            digest.update(str(error).encode())
    return digest.digest()


def _check_inbox_prefix(prefix: str) -> None:
    """Raise ConfigError if ``prefix`` is not the prefix of the subjects for answers to an application."""
    try:
        check_inbox_prefixes((f"{prefix}.",))
    except ConfigError:
        raise ConfigError(
            f"inbox_prefix = {prefix!r} is not a prefix of subjects. Use tokens without spaces, '*' and '>', separated by dots, "
            "such as _INBOX_alice (--inbox-prefix, LIFTPY_INBOX_PREFIX or the context)."
        ) from None


def _read_creds(path: str) -> RawCredentials:
    """Return the JWT and the seed in the file ``path``, in the form that nats-py reads. Raises ConfigError without both."""
    from nats.aio.client import RawCredentials  # imported here, because commands without a connection do not need nats-py

    text = _read_file(path, "creds_file")
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        missing = "JWT" if jwt is None else "nkey seed"
        raise ConfigError(f"creds_file {path} contains no user {missing}. Use the file that `nsc generate creds` writes.")
    _check_seed(path, seed[1], "creds_file")
    parts = (b"-----BEGIN NATS USER JWT-----", jwt[1], b"-----BEGIN USER NKEY SEED-----", seed[1], b"")
    return RawCredentials(b"\n".join(parts).decode("ascii", "replace"))


def _read_seed(path: str) -> str:
    text = _read_file(path, "nkey_seed_file").strip()
    _check_seed(path, text)
    return text.decode("ascii")


def _check_seed(path: str, seed: bytes, name: str = "nkey_seed_file") -> None:
    import nkeys  # imported here, because it loads a slow cryptography library

    try:
        pair = nkeys.from_seed(bytearray(seed.strip()))
        is_user = pair.public_key.startswith(b"U")
        pair.wipe()
    except Exception:  # errors of nkeys and binascii. Their texts may show the seed, so they are not used
        raise ConfigError(f"{name} {path} contains no nkey seed. It must have one line that starts with SU.") from None
    if not is_user:
        raise ConfigError(f"{name} {path} contains a seed, but not of a user. It must have one line that starts with SU.")
