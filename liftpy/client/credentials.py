"""How an application proves who it is to NATS: passed through to nats-py, never interpreted here, never logged."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from liftpy.errors import ConfigError
from liftpy.wire.inboxes import check_inbox_prefixes
from liftpy.wire.subjects import check_speaker


@dataclass(frozen=True, slots=True)
class Credentials:
    """NATS credentials; everything is optional and empty means not used. Files are named by their path.

    ``creds_file``: a JWT with its nkey seed, as ``nsc`` writes it. ``nkey_seed_file``: a bare nkey seed. ``user`` with
    ``password``, or ``token``. ``tls_ca_file``: whom to trust; ``tls_cert_file`` with ``tls_key_file``: who we are.
    ``inbox_prefix``: under which this user may be answered, as ``_INBOX_alice``; without: ``_INBOX``. ``principal``: the name
    under which it asks for changes of streams, where NATS's rights tie it to one (``<namespace>.control.admin.<principal>``).
    """

    creds_file: str = ""
    nkey_seed_file: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    inbox_prefix: str = ""
    principal: str = ""

    def __post_init__(self) -> None:
        ways = [bool(self.creds_file), bool(self.nkey_seed_file), bool(self.user), bool(self.token)]
        if sum(ways) > 1:
            raise ConfigError("give one of creds_file, nkey_seed_file, user with password, token; not several")
        if bool(self.user) != bool(self.password):
            raise ConfigError("user and password belong together; give both or neither")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError("tls_cert_file and tls_key_file belong together; give both or neither")
        if self.inbox_prefix:
            check_inbox_prefixes((f"{self.inbox_prefix}.",))
        if self.principal:
            check_speaker(self.principal, "principal")

    def nats_options(self) -> dict[str, Any]:
        """Keyword arguments for ``nats.connect``; raise ConfigError if a TLS file can't be used."""
        options: dict[str, Any] = {
            "user_credentials": self.creds_file,
            "nkeys_seed": self.nkey_seed_file,
            "user": self.user,
            "password": self.password,
            "token": self.token,
        }
        options = {name: value for name, value in options.items() if value}
        if self.inbox_prefix:
            options["inbox_prefix"] = self.inbox_prefix.encode()
        if self.inbox_prefix:
            options["inbox_prefix"] = self.inbox_prefix.encode()
        if self.tls_ca_file or self.tls_cert_file:
            options["tls"] = self._tls_context()
        return options

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.tls_ca_file or None)
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the TLS files can't be used: {error}") from error
        return context
