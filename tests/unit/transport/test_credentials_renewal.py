"""Test credentials and certificates that change while the node runs, against a real nats-server."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys
import pytest

from liftpy.core.wire.permissions import Permissions
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError
from liftpy.nats.credentials import PROOFS, Credentials
from liftpy.nats.transport import open_connection
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import credentials as keys_module
from sidecar.transport.connection import BusConnection, open_bus
from sidecar.transport.credentials import Keys, prove
from tests.integration.operator_mode import made_here
from tests.unit.transport.fake_server import FakeServer
from tests.until import until

FIRST, SECOND = (Credentials(user=name, password=f"{name}-secret") for name in ("first", "second"))
DEAF = Credentials(user="deaf", password="deaf-secret")
CONFIG = """authorization: { users: [
  { user: first, password: first-secret }, { user: second, password: second-secret },
  { user: deaf, password: deaf-secret, permissions: { subscribe: { deny: ["liftpy.notify.>"] } } } ] }
"""


def settings(server: NatsServer, credentials: Credentials) -> NodeSettings:
    return NodeSettings("n1", Path("unused"), nats=(server.url,), credentials=credentials)


async def test_credentials_renewal_reconnects_all_open_connections() -> None:
    with NatsServer(config=CONFIG) as server:
        keys = Keys(FIRST)
        heard: list[bytes] = []
        one, other = [await open_bus(settings(server, FIRST), lambda: BusConnection("test"), keys) for _ in "12"]
        one.listen("data.x", lambda subject, reply, payload, headers: heard.append(payload))
        keys.change(SECOND)
        await until(lambda: one.stats["reconnects"] == 1 and other.stats["reconnects"] == 1)
        await until(lambda: one.is_connected and other.is_connected)
        assert one.options["user"] == other.options["user"] == "second"
        await one.wait_until_processed(5)
        other.send("data.x", (b"subscriptions come along",))
        await until(lambda: heard == [b"subscriptions come along"])
        late = await open_bus(settings(server, FIRST), lambda: BusConnection("test"), keys)
        assert late.options["user"] == "second", "not what the settings said at the start"
        assert late.stats["reconnects"] == 0
        between = await open_bus(settings(server, FIRST), lambda: BusConnection("test"), Keys(FIRST))
        keys.add(between, FIRST)
        await until(lambda: between.options["user"] == "second")
        for connection in (one, other, late, between):
            await connection.stop()


class Fake:
    """A connection that records its renewals."""

    def __init__(self) -> None:
        self.renewed: list[tuple[asyncio.AbstractEventLoop, Any]] = []

    async def renew(self, options: dict[str, Any]) -> None:
        self.renewed.append((asyncio.get_running_loop(), options.get("user")))


async def test_credentials_renewal_reconnects_each_connection_on_its_own_event_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(FIRST)
    over, here, there = Fake(), Fake(), Fake()

    async def add(one: Fake) -> None:
        keys.add(one, FIRST)  # type: ignore[arg-type]

    await asyncio.to_thread(asyncio.run, add(over))  # its loop has ended
    await add(here)
    own, other = asyncio.get_running_loop(), asyncio.new_event_loop()
    unheard: list[Any] = []
    own.set_exception_handler(lambda loop, context: unheard.append(context))
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    try:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(add(there), other))
        keys.change(SECOND)
        await until(lambda: bool(here.renewed and there.renewed))
        assert (over.renewed, here.renewed, there.renewed) == ([], [(own, "second")], [(other, "second")])
        keys.change(Credentials(creds_file=str(tmp_path / "gone")))
        await until(lambda: caplog.text.count("NATS credentials not changed error=") == 2)
        assert (len(here.renewed), unheard) == (1, []), "what a node has is better than nothing"
    finally:
        other.call_soon_threadsafe(other.stop)
        await asyncio.to_thread(thread.join)
        other.close()


async def test_credentials_trial_ends_at_its_timeout_and_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "PROVE_S", 0.05)
    server, subjects = FakeServer(), Subjects("liftpy")
    url = await server.start()
    server.late = True
    async with asyncio.timeout(5):
        await prove((url,), subjects, "n1", SECOND, works=True)  # the server has accepted the connection
        assert server.owed > 0
        server.mute = True
        with pytest.raises(ConfigError, match="The node keeps its current credentials"):
            await prove((url,), subjects, "n1", SECOND, works=True)
    await until(lambda: server.open == 0)
    server.close()


async def test_credentials_that_fail_the_trial_are_rejected_and_the_old_ones_stay_in_use() -> None:
    with NatsServer(config=CONFIG) as server:
        subjects = Subjects("liftpy")

        async def tried(credentials: Credentials, url: str, *, works: bool) -> None:
            await prove((url,), subjects, "n1", credentials, works=works)

        await tried(SECOND, server.url, works=True)
        for works in (True, False):
            with pytest.raises(ConfigError, match="rejected the credentials"):
                await tried(replace(SECOND, password="other"), server.url, works=works)
            with pytest.raises(ConfigError, match=r"subscribe to liftpy\.notify\.n1"):
                await tried(DEAF, server.url, works=works)
        gone = server.url
    await tried(SECOND, gone, works=False)
    with pytest.raises(ConfigError, match="The node keeps its current credentials"):
        await tried(SECOND, gone, works=True)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed one of 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=liftpy", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except OSError:
        pytest.skip("there is no openssl to make certificates with")
    return cert, key


async def test_certificate_file_changed_in_place_is_used_for_new_connections(tmp_path: Path) -> None:
    """The server's is renewed, then the file in which we have it."""
    held, held_key = certificate(tmp_path, "held")
    known = tmp_path / "known.pem"
    known.write_bytes(held.read_bytes())
    trusting = Credentials(tls_ca_file=str(known))
    before = trusting.proofs()
    with NatsServer(config=f'tls: {{ cert_file: "{held}", key_file: "{held_key}" }}\n') as server:
        keys = Keys(trusting)
        bus = await open_bus(settings(server, trusting), lambda: BusConnection("test"), keys)
        assert trusting.proofs() == before
        renewed, renewed_key = certificate(tmp_path, "renewed")
        held.write_bytes(renewed.read_bytes())
        held_key.write_bytes(renewed_key.read_bytes())
        port = server.port
        server.stop()
        await until(lambda: not bus.is_connected)
        with NatsServer(port, config=f'tls: {{ cert_file: "{held}", key_file: "{held_key}" }}\n') as again:
            await until(lambda: "certificate" in bus.last_problem.lower())
            with pytest.raises(ConfigError, match="certificate"):
                await prove((again.url,), Subjects("liftpy"), "n1", trusting, works=True)
            known.write_bytes(renewed.read_bytes())
            assert {name for name in PROOFS if trusting.proofs()[name] != before[name]} == {"tls_ca_file"}
            await prove((again.url,), Subjects("liftpy"), "n1", trusting, works=True)
            keys.change(trusting)
            await until(lambda: bus.is_connected)
            await bus.stop()


async def test_connection_with_a_rejected_certificate_closes_within_its_timeout(tmp_path: Path) -> None:
    """A node that was cut off by TLS took 12 s to stop, and was not said to have stopped cleanly."""
    (held, key), (other, other_key) = certificate(tmp_path, "held"), certificate(tmp_path, "other")
    trusting = Credentials(tls_ca_file=str(held))
    with NatsServer(config=f'tls: {{ cert_file: "{held}", key_file: "{key}" }}\n') as server:
        bus = await open_bus(settings(server, trusting), lambda: BusConnection("test"))
    with NatsServer(server.port, config=f'tls: {{ cert_file: "{other}", key_file: "{other_key}" }}\n'):
        await until(lambda: "certificate" in bus.last_problem.lower())
        async with asyncio.timeout(5):
            await bus.stop()
        assert bus.is_closed


def _seed(number: int) -> bytes:
    return bytes(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))


async def test_connection_reconnects_after_its_seed_file_was_replaced_by_that_of_another_user(tmp_path: Path) -> None:
    """The server knows both users first, and then only the new one."""
    first, second = (nkeys.from_seed(bytearray(_seed(number))).public_key.decode() for number in (1, 2))
    seed_file = tmp_path / "seed"
    seed_file.write_bytes(_seed(1))
    with NatsServer(config=f"authorization {{ users: [ {{ nkey: {first} }}, {{ nkey: {second} }} ] }}\n") as server:
        connection = await open_connection(server.url, credentials=Credentials(nkey_seed_file=str(seed_file)))
        seed_file.write_bytes(_seed(2))
        await asyncio.to_thread(server.restart)
        await until(lambda: connection.is_connected and connection.stats["reconnects"] == 1)
    with NatsServer(server.port, config=f"authorization {{ users: [ {{ nkey: {second} }} ] }}\n"):
        await until(lambda: connection.is_connected and connection.stats["reconnects"] == 2)
        await connection.close()


@pytest.mark.parametrize("damage", ["empty", "seed only", "JWT only", "gone", "user of another account"])
async def test_connection_reconnects_although_its_creds_file_was_replaced_by_a_wrong_one(tmp_path: Path, damage: str) -> None:
    """nats-py reads the file in each handshake, and would search the JWT without an end."""
    rights = Permissions(publish=(">",), subscribe=(">",))
    file = tmp_path / "web.creds"
    with NatsServer(config=made_here({"web": rights}, tmp_path)) as server:
        connection = await open_connection(server.url, credentials=Credentials(creds_file=str(file)))
        content = file.read_bytes()
        middle = content.index(b"-----BEGIN USER")
        match damage:
            case "empty":
                file.write_bytes(b"")
            case "seed only":
                file.write_bytes(content[middle:])
            case "JWT only":
                file.write_bytes(content[:middle])
            case "gone":
                file.unlink()
            case _:
                file.write_bytes(content.replace(content[middle:].split(b"\n")[1], _seed(7)))
        for count in (1, 2):
            await asyncio.to_thread(server.restart)
            await until(lambda: connection.is_connected and connection.stats["reconnects"] == count)  # noqa: B023
        await connection.close()
