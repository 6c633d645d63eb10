"""Test credential files and NATS URLs: they are checked before a connection, and secrets are never shown."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nkeys
import pytest

from liftpy.errors import ConfigError, LiftError
from liftpy.nats.credentials import Credentials
from liftpy.nats.urls import check_urls, shown_address, wants_tls, without_secrets
from tests.each import each


# ---- who we are ----------------------------------------------------------------------------------------------------------------
def seed(kind: int = nkeys.PREFIX_BYTE_USER) -> bytes:
    return bytes(nkeys.encode_seed(b"\x07" * 32, kind))


def creds(seed_line: bytes, jwt: bytes = b"a.jwt") -> bytes:
    return (
        b"-----BEGIN NATS USER JWT-----\n" + jwt + b"\n------END NATS USER JWT------\n\n"
        b"-----BEGIN USER NKEY SEED-----\n" + seed_line + b"\n------END USER NKEY SEED------\n"
    )


def test_credentials_file_without_a_valid_user_seed_is_rejected_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "file"
    account = seed(nkeys.PREFIX_BYTE_ACCOUNT)
    for content, text in (
        (seed(), ""),
        (b"  " + seed() + b"\n", ""),
        (account, "nkey_seed_file {} contains a seed, but not of a user. It must have one line that starts with SU."),
        (b"SUnonsense", "nkey_seed_file {} contains no nkey seed. It must have one line that starts with SU."),
        (b"", "nkey_seed_file {} contains no nkey seed. It must have one line that starts with SU."),
    ):
        file.write_bytes(content)
        if not text:
            assert Credentials(nkey_seed_file=str(file)).nats_options() == {"nkeys_seed_str": content.strip().decode()}
            continue
        with pytest.raises(ConfigError) as caught:
            Credentials(nkey_seed_file=str(file)).nats_options()
        assert str(caught.value) == text.format(file)
    for content, text in (
        (creds(seed()), ""),
        (creds(account), "creds_file {} contains a seed, but not of a user. It must have one line that starts with SU."),
        (creds(b"SUnonsense"), "creds_file {} contains no nkey seed. It must have one line that starts with SU."),
        (creds(seed(), b""), "creds_file {} contains no user JWT. Use the file that `nsc generate creds` writes."),
        (creds(b""), "creds_file {} contains no user nkey seed. Use the file that `nsc generate creds` writes."),
        (b"", "creds_file {} contains no user JWT. Use the file that `nsc generate creds` writes."),
    ):
        file.write_bytes(content)
        if not text:
            assert list(Credentials(creds_file=str(file)).nats_options()) == ["user_credentials"]
            continue
        with pytest.raises(ConfigError) as caught:
            Credentials(creds_file=str(file)).nats_options()
        assert str(caught.value) == text.format(file)


@pytest.mark.parametrize("prefix", ["a b", "a.>", "a..b", "*"])
def test_credentials_with_an_invalid_inbox_prefix_raise_with_the_option_and_the_variable(prefix: str) -> None:
    with pytest.raises(ConfigError, match="LIFTPY_INBOX_PREFIX") as caught:
        Credentials(inbox_prefix=prefix)
    assert "inbox_prefixes" not in str(caught.value)
    assert repr(prefix) in str(caught.value)


def test_credentials_with_a_missing_file_raise_with_the_file_name(tmp_path: Path) -> None:
    for name in ("creds_file", "nkey_seed_file"):
        for path, why in ((f"{tmp_path}/none", "No such file or directory"), ("a\0b", "embedded null byte")):
            with pytest.raises(ConfigError) as caught:
                Credentials(**{name: path}).nats_options()
            assert str(caught.value) == f"Cannot read {name} {path}: {why}. Check the path and its permissions."


def test_credentials_clear_the_nkey_seed_in_memory_after_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiped: list[bytes] = []
    pair = SimpleNamespace(public_key=b"UABC", wipe=lambda: wiped.append(b"wiped"))
    monkeypatch.setattr(nkeys, "from_seed", lambda content: pair)
    (tmp_path / "seed").write_bytes(b"any")
    Credentials(nkey_seed_file=str(tmp_path / "seed")).nats_options()
    assert wiped == [b"wiped"]


def test_credentials_with_an_encrypted_tls_key_raise_without_a_password_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    class Context:
        encrypted = False

        def load_cert_chain(self, cert: str, key: str, password: Any) -> None:
            loaded.append((cert, key))
            if self.encrypted:
                password()

    def made(purpose: Any, cafile: str | None) -> Context:
        loaded.append((purpose, cafile))
        return Context()

    monkeypatch.setattr(ssl, "create_default_context", made)
    options = Credentials(tls_cert_file="c", tls_key_file="k", inbox_prefix="_INBOX_me").nats_options()
    assert isinstance(options.pop("tls"), Context)
    assert options == {"inbox_prefix": b"_INBOX_me"}
    assert loaded == [(ssl.Purpose.SERVER_AUTH, None), ("c", "k")]
    loaded.clear()
    Credentials(tls_ca_file="ca").nats_options()
    assert loaded == [(ssl.Purpose.SERVER_AUTH, "ca")]
    monkeypatch.setattr(Context, "encrypted", True)
    with pytest.raises(ConfigError) as caught:
        Credentials(tls_cert_file="c", tls_key_file="k").nats_options()
    assert "tls_cert_file c with tls_key_file k: the private key is encrypted, use one without a passphrase" in str(
        caught.value
    )


@each(
    "wrong",
    [{"creds_file": "a", "token": "b"}, {"user": "a", "password": "b", "token": "c"}, {"user": "a"}, {"password": "b"},
     {"tls_cert_file": "a"}, {"tls_key_file": "a"}, {"creds_file": "a", "nkey_seed_file": "b"}, {"inbox_prefix": "a b"},
     {"principal": "read"}],
)  # fmt: skip
def test_credentials_with_contradictory_fields_are_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(LiftError):
        Credentials(**wrong)


# ---- where we go ---------------------------------------------------------------------------------------------------------------
@each(
    ("url", "text"),
    [
        (
            "nats://a b:1",
            "Invalid NATS URL 'nats://a b:1': it has spaces, control characters or other invalid characters. Use nats://HOST:PORT.",
        ),
        ("nats://a\x01", "it has spaces, control characters"),
        ("nats://\u00e4", "it has spaces, control characters"),
        ("nats://[a:1", "Use nats://HOST:PORT"),
        ("http://a:1", "Invalid NATS URL nats: 'http://a:1'. It must start with one of nats://, tls://, ws://, wss://"),
        ("a:1", "Invalid NATS URL"),
        ("nats://", "Invalid NATS URL nats: 'nats://': the host is missing. Use nats://HOST:PORT."),
        ("nats://a:0", "Invalid port in NATS URL nats: 'nats://a:0'. Use a port from 1 to 65535."),
        ("nats://a:65536", "Invalid port in NATS URL"),
        ("nats://a:x", "Invalid port in NATS URL"),
        ("nats://a:1/b", "password contains a slash, write"),
    ],
)
def test_invalid_nats_url_raises_with_the_url_and_the_reason(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_urls(("nats://good:4222", url))
    assert text in str(caught.value)


def test_valid_nats_urls_are_accepted() -> None:
    check_urls(("nats://a", "tls://a:1", "nats://a:65535/", "ws://a/path", "wss://u:p@a:1/path"))
    check_urls(("a:1", "a", "nats://b:2"), bare=True)
    assert [wants_tls((url,)) for url in ("tls://a", " WSS://a", "nats://a", "ws://a", "tls", "a:1")] == [True, True] + [
        False
    ] * 4
    assert wants_tls(("nats://a", "tls://b"))
    assert not wants_tls(())


def test_nats_urls_in_messages_contain_no_secrets() -> None:
    assert without_secrets("nats://u:p@a:1, b:2") == "nats://***@a:1, b:2"
    assert without_secrets(("nats://u:half", "x@a:1")) == "nats://u:***, ***@a:1"
    assert without_secrets("ws://a:1/x:y") == "ws://a:1/x:y"
    assert shown_address(None) == ""
    assert shown_address(SimpleNamespace(netloc="u:p@a:1")) == "a:1"
