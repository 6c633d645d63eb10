"""A nats-server in operator mode: users are JWTs, signed by an account, and the rights stand in them. Made here, or by ``nsc``.

What is made here is what the NATS documentation says a JWT holds (version 2 of its claims), signed with nkeys; no server and no tool of
NATS is asked for it. ``nsc`` runs with folders of its own, and is told what ``liftpy permissions --format nsc`` prints, by a shell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys

from liftpy.core.wire.permissions import Permissions, as_nsc

_NS_PER_S = 1_000_000_000
_NO_LIMITS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}


class _Key:
    """An nkey made of a number, the same in each run."""

    def __init__(self, number: int, prefix: int) -> None:
        self.seed = nkeys.encode_seed(bytes([number]) * 32, prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def sign(self, name: str, subject: str, claims: Mapping[str, Any]) -> str:
        """A JWT by which this key says ``claims`` of ``subject``."""
        said: dict[str, Any] = {
            "iat": 1_700_000_000,
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**claims, "version": 2},
        }
        said["jti"] = base64.b32encode(hashlib.sha256(json.dumps(said).encode()).digest()).decode().rstrip("=")
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_base64(json.dumps(part, separators=(",", ":")).encode()) for part in (head, said))
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def made_here(users: Mapping[str, Permissions], folder: Path) -> str:
    """Write ``<user>.creds`` into ``folder``; return the configuration of the server."""
    operator, system, account = (
        _Key(1, nkeys.PREFIX_BYTE_OPERATOR),
        _Key(2, nkeys.PREFIX_BYTE_ACCOUNT),
        _Key(3, nkeys.PREFIX_BYTE_ACCOUNT),
    )
    of_account = {"type": "account", "limits": _NO_LIMITS, "default_permissions": {"pub": {}, "sub": {}}}
    accounts = {key.public: operator.sign(name, key.public, of_account) for name, key in (("SYS", system), ("A", account))}
    for number, (name, rights) in enumerate(users.items(), 4):
        claims: dict[str, Any] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        claims |= {"pub": {"allow": list(rights.publish)}, "sub": {"allow": list(rights.subscribe)}}
        if rights.responses is not None:
            claims["resp"] = {"max": rights.responses[0], "ttl": rights.responses[1] * _NS_PER_S}
        key = _Key(number, nkeys.PREFIX_BYTE_USER)
        (folder / f"{name}.creds").write_text(
            f"-----BEGIN NATS USER JWT-----\n{account.sign(name, key.public, claims)}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed.decode()}\n------END USER NKEY SEED------\n"
        )
    preload = "\n".join(f"  {public}: {jwt}" for public, jwt in accounts.items())
    said = operator.sign("O", operator.public, {"type": "operator", "system_account": system.public})
    return f"operator: {said}\nsystem_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"


def find_nsc() -> str | None:
    """The ``nsc`` of the PATH."""
    return shutil.which("nsc")


def made_by_nsc(users: Mapping[str, Permissions], folder: Path) -> str:
    """The same, by ``nsc``."""
    home = {name: str(folder / name) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    environment = {"PATH": os.environ["PATH"], "NSC_NO_GIT_IGNORE": "true", **home}

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    for name in home.values():
        Path(name).mkdir()
    run("nsc init --name A --dir stores")
    for name, rights in users.items():
        run(f"nsc add user --name {name}")
        run(as_nsc(rights, name))
        run(f"nsc generate creds --account A --name {name} --output-file {name}.creds")
    run("nsc generate config --mem-resolver --config-file server.conf")
    return (folder / "server.conf").read_text()
