"""Test that output contains no secrets of URLs, settings and files, and that errors name the wrong setting."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import nkeys
import pytest

from liftpy.client import Credentials, connect
from liftpy.errors import ConfigError, NotAllowedError, UnavailableError
from liftpy.nats.transport import open_connection
from liftpy.nats.urls import check_urls, without_secrets
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import NodeSettings, SettingsLoader, Target, target_from
from tests.each import each

SECRET = "s3cr3t"
SEED = nkeys.encode_seed(b"\x07" * 32, nkeys.PREFIX_BYTE_USER)
ACCOUNT_SEED = nkeys.encode_seed(b"\x07" * 32, nkeys.PREFIX_BYTE_ACCOUNT)
JWT = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n"
KEY = "-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"nats://bob:{SECRET}@h:4222", "nats://***@h:4222"),
        (f"nats://{SECRET}@h", "nats://***@h"),
        (f"nats://a:4222,tls://bob:{SECRET}@b:1", "nats://a:4222, tls://***@b:1"),
        (f"bob:{SECRET}@h:4222", "***@h:4222"),
        (f"nats://bob:{SECRET}@x@h", "nats://***@h"),
        ("nats://h:4222", "nats://h:4222"),
    ],
)
def test_nats_url_in_output_is_shown_without_secrets(url: str, text: str) -> None:
    assert without_secrets(url) == text


@each(
    "url",
    [
        "http://{}h:4222", "nats://{}h:port", "nats://{}h:99999", "nats://{}h:0", "nats://{}", "nats://{}:4222", "{}h", "nats:/{}h",
        "nats://{}h:4222/path", "nats://{}h :4222", "nats://{}h\x00", "nats://{}h:٤٢٢٢", "nats://{}[::1", "",
    ],
)  # fmt: skip
def test_nats_url_that_is_invalid_raises_an_error_without_secrets(url: str) -> None:
    url = url.format(f"bob:{SECRET}@")
    with pytest.raises(ConfigError, match=r"NATS URL (nats: )?" + re.escape(repr(without_secrets(url)))) as raised:
        check_urls((url,))
    assert SECRET not in str(raised.value)
    for made in (lambda: NodeSettings("n1", Path("x"), nats=(url,)), lambda: Target(nats=(url,))):
        with pytest.raises(ConfigError) as raised:
            made()
        assert SECRET not in str(raised.value)


async def test_nats_connection_errors_contain_no_secrets() -> None:
    with pytest.raises(UnavailableError) as raised:
        await open_connection(f"nats://bob:{SECRET}@127.0.0.1:1", timeout_s=0.5)
    assert SECRET not in _everything(raised.value)
    with pytest.raises(ConfigError) as wrong:
        await connect(f"nats://bob:{SECRET}@127.0.0.1:port")
    assert SECRET not in _everything(wrong.value)


async def test_nats_connection_with_wrong_credentials_raises_not_allowed_instead_of_unavailable() -> None:
    with NatsServer(config="authorization: { user: bob, password: right }") as server:
        for url in (server.url, server.url.replace("nats://", f"nats://bob:{SECRET}@")):
            with pytest.raises(NotAllowedError, match="rejected the credentials") as raised:
                await open_connection(url, timeout_s=2)
            assert SECRET not in _everything(raised.value)
            assert not raised.value.retryable


def _everything(error: BaseException | None) -> str:
    """Return the text of an error and of its causes, like a traceback."""
    return "" if error is None else f"{error!r} {error} {_everything(error.__cause__)}"


def test_node_settings_repr_hides_secrets(tmp_path: Path) -> None:
    environment = {"LIFTPY_NATS": f"nats://bob:{SECRET}@h:1", "LIFTPY_NODE_ID": "n1", "LIFTPY_DATA": str(tmp_path)}
    for way in ({"LIFTPY_USER": "bob", "LIFTPY_PASSWORD": SECRET}, {"LIFTPY_TOKEN": SECRET}):
        settings = SettingsLoader(None, {}, {**environment, **way}).load()
        assert SECRET in settings.credentials.password + settings.credentials.token
        assert SECRET not in repr(settings)
        assert SECRET not in repr(target_from(None, None, {}, {**environment, **way}))
    with pytest.raises(ConfigError) as raised:
        SettingsLoader(None, {}, {**environment, "LIFTPY_PASSWORD": f"{SECRET}\x01", "LIFTPY_USER": "bob"}).load()
    assert "password" in str(raised.value)
    assert SECRET not in str(raised.value)


DEEP = "x = " + "[" * 20_000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("status_port = inf", "status_port"),
        ("status_port = nan", "status_port"),
        ("status_port = [1]", "status_port"),
        ("status_port = 2024-01-01", "status_port"),
        ('status_port = "٨٠٨٠"', "status_port"),
        ('status_port = "8_080"', "status_port"),
        ("weight = nan", "weight"),
        ("weight = inf", "weight"),
        ('weight = "１"', "weight"),
        ('rack = "a\\u0000b"', "rack"),
        ('data = "/tmp/a\\u0000b"', "data"),
        ('data = "~nobody-of-that-name/x"', "data"),
        ("data = 5", "data"),
        ("rack = []", "rack"),
        ('controllers = ["n1", 5.5, []]', "controllers"),
        ('controllers = ["n1\\n"]', "controllers"),
        ('controllers = ["read"]', "controllers"),
        ("nats = 5", "nats"),
        (f'nats = {{ url = "nats://{SECRET}@h" }}', "nats"),
        (f'[credentials]\ntoken = ["{SECRET}"]', "token"),
        (f'[credentials]\npassword = {{ x = "{SECRET}" }}', "password"),
        (DEEP, "nested too deeply"),
        ("[replication]\nmax_lag_time_s = inf", "max_lag_time_s"),
        ('[replication]\nmax_lag_time_s = "٣"', "max_lag_time_s"),
    ],
)
def test_tls_or_credentials_setting_that_is_invalid_raises_with_the_setting_name(text: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "liftpy.toml"
    given = text if "data = " in text else f'data = "{tmp_path}"\n{text}'
    file.write_text(f'node_id = "n1"\n{given}')
    with pytest.raises(ConfigError, match=name) as raised:
        SettingsLoader(file, {}, {}).load()
    assert SECRET not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("creds_file", None, "No such file"),
        ("creds_file", "", "no user JWT"),
        ("creds_file", JWT, "no user nkey seed"),
        ("creds_file", JWT + KEY.format(SECRET), "no nkey seed"),
        ("creds_file", JWT + KEY.format(ACCOUNT_SEED.decode()), "contains a seed, but not of a user"),
        ("nkey_seed_file", None, "No such file"),
        ("nkey_seed_file", SECRET, "no nkey seed"),
        ("nkey_seed_file", ACCOUNT_SEED.decode(), "contains a seed, but not of a user"),
        ("tls_ca_file", None, "No such file"),
        ("tls_ca_file", SECRET, "Cannot use"),
        ("tls_cert_file", SECRET, "Cannot use"),
    ],
)
async def test_credentials_file_that_is_invalid_raises_with_the_setting_name(
    name: str, content: str | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "given"
    if content is not None:
        path.write_text(content)
    files: dict[str, Any] = {name: str(path)}
    if name == "tls_cert_file":
        files["tls_key_file"] = str(path)
    with pytest.raises(ConfigError, match=why) as raised:
        await open_connection("nats://127.0.0.1:1", credentials=Credentials(**files))
    assert name in str(raised.value)
    assert SECRET not in _everything(raised.value)


def test_credentials_file_that_is_valid_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "creds").write_text(JWT + KEY.format(SEED.decode()))
    (tmp_path / "seed").write_bytes(SEED + b"\n")
    assert list(Credentials(creds_file=str(tmp_path / "creds")).nats_options()) == ["user_credentials"]
    assert Credentials(nkey_seed_file=str(tmp_path / "seed")).nats_options() == {"nkeys_seed_str": SEED.decode()}


@pytest.mark.parametrize("way", ["url", "setting", "one of the urls"])
async def test_nats_connection_with_required_tls_and_no_server_tls_sends_no_credentials(way: str) -> None:
    """Otherwise a server without TLS, or an attacker between, receives the password."""
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        with contextlib.suppress(OSError):
            heard.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    urls = {"url": [f"tls://127.0.0.1:{port}"], "one of the urls": [f"nats://127.0.0.1:{port}", "tls://127.0.0.1:1"]}
    options = {"tls": ssl.create_default_context()} if way == "setting" else {}
    given = urls.get(way, [f"nats://127.0.0.1:{port}"])
    with pytest.raises(UnavailableError, match=r"does not offer TLS|Connect call failed"):
        await open_connection(given, credentials=Credentials(user="bob", password=SECRET), timeout_s=1, **options)
    server.close()
    assert heard
    assert not any(heard), "it said something in the clear"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_nats_connection_with_required_tls_and_a_server_that_offers_tls_encrypts_the_connection(tmp_path: Path) -> None:
    """nats-py alone would use the connection without TLS."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\nallow_non_tls: true\n'
    with NatsServer(config=config) as server:
        connection = await open_connection(server.url, credentials=Credentials(tls_ca_file=str(certificate)), timeout_s=10)
        try:
            assert connection._transport._io_writer.get_extra_info("ssl_object") is not None
            assert await connection.rtt() > 0
        finally:
            await connection.close()
        with pytest.raises(UnavailableError, match="certificate"):
            await open_connection(server.url.replace("nats://", "tls://"), timeout_s=0.5)


@pytest.mark.parametrize(
    ("url", "shows"),
    [
        ("nats://user:hal,ves@host:4222", "nats://user:***, ***@host:4222"),
        ("nats://user:12/3,x@host", "nats://user:***, ***@host"),
        ("user:hal,ves@host:4222", "user:***, ***@host:4222"),
        ("nats://a:p@q/r?s#t@host:4222", "nats://***@host:4222"),
        ("nats://host:4222,tls://other:4223/,nats://[::1]:4222,nats://[::1],host", None),
        ("wss://host:443/a/path", None),
    ],
)
def test_nats_url_with_a_comma_in_the_password_hides_the_whole_password(url: str, shows: str | None) -> None:
    """A list of URLs is cut at commas, before anybody knows what they are in."""
    assert without_secrets(url) == (url.replace(",", ", ") if shows is None else shows)
    if shows is not None and "," in url:
        with pytest.raises(ConfigError) as caught:
            check_urls(url.split(","), bare=True)
        secret = url.split(":")[-2 if url.endswith("4222") else -1].split("@")[0]
        for half in secret.split(","):
            assert half not in str(caught.value).removesuffix("password contains a slash, write")
