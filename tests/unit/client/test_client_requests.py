"""Test service queries, writes that fail, and the connect options of credentials."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import QueryAnswer, QueryRejectedError, Services, services
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.services.queries import QueryFailedError
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ConfigError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import RequestTimeoutError


# ---- queries -----------------------------------------------------------------------------------------------------------------
class Exchange:
    """A scripted transport. Each answer is (payload, headers) or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def exchange(self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None) -> Any:
        self.asked.append((subject, payload, timeout_s, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=answer[0], headers=answer[1])


GOOD = (b"42", {"Lift-Position": "9", "Lift-Node": "n2"})
REFUSED = (b"it is behind", {"Lift-Error": "QUERY_REJECTED"})


async def ask(transport: Any, at_least: int | None = None, timeout_s: float = 30.0, partition: int = 0) -> QueryAnswer:
    services = Services(StreamDirectory(MetadataRequests(transport, Subjects("ns"))))
    return await services.query("bank", b"query", partition=partition, at_least=at_least, timeout_s=timeout_s)


async def test_service_query_is_retried_until_a_service_answers() -> None:
    transport = Exchange(UnavailableError("nobody"), REFUSED, OutcomeUnknownError("late"), GOOD)
    assert await ask(transport) == QueryAnswer(b"42", 9, "n2")
    assert transport.asked == [(Subjects("ns").service_query("bank"), b"query", 3.0, None)] * 4
    other = Exchange(GOOD)
    await ask(other, at_least=7, timeout_s=1.0, partition=2)
    left_s: Any = pytest.approx(1.0, abs=0.5)
    assert other.asked == [(Subjects("ns").service_query("bank") + ".2", b"query", left_s, {"Lift-At-Least": "7"})]


@pytest.mark.parametrize("where", [{"partition": 0}, {"key": b"k"}])
async def test_service_query_ends_at_its_timeout_with_the_last_refusal_or_unavailable(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        """A transport whose first queries get ``answers``. Later ones get no answer in time."""

        def __init__(self, *answers: Any) -> None:
            self.answers = list(answers)
            self.waited_s = 0.0

        async def exchange(self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None) -> Any:
            if self.answers:
                payload, answer_headers = self.answers.pop(0)
                return SimpleNamespace(data=payload, headers=answer_headers)
            self.waited_s += timeout_s
            await asyncio.sleep(timeout_s)
            raise RequestTimeoutError(f"No answer within {timeout_s} s")

    monkeypatch.setattr(services, "_QUERY_ATTEMPT_S", 0.3)
    monkeypatch.setattr(services, "_LEAST_ATTEMPT_S", 0.05)
    count = (b"", {"Lift-Position": "9", "Lift-Partitions": "3"})
    known = [count] if "key" in where else []
    for answers, kind, text in ((known, UnavailableError, r"within 0\.4 s"), ([*known, REFUSED], QueryRejectedError, "behind")):
        transport = Silent(*answers)
        asking = Services(StreamDirectory(MetadataRequests(transport, Subjects("ns"))))  # type: ignore[arg-type]
        with pytest.raises(kind, match=text):
            await asking.query("bank", b"query", timeout_s=0.4, **where)
        assert transport.waited_s <= 0.41


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (REFUSED, QueryRejectedError, "it is behind"),
        ((b"bug \xff", {"Lift-Error": "QUERY_FAILED"}), QueryFailedError, "bug"),
        ((b"x", {"Lift-Error": "ANYTHING"}), QueryFailedError, "x"),
        ((b"x", {}), ProtocolError, "The answer on"),
        ((b"x", None), ProtocolError, "does not come from a service"),
        ((b"x", {"Lift-Position": "-1"}), ProtocolError, "does not come from a service"),
        ((b"x", {"Lift-Position": "9" * 5000}), ProtocolError, "does not come from a service"),
        ((b"x", {"Lift-Position": "\u0663"}), ProtocolError, "does not come from a service"),
    ],
)
async def test_service_query_with_an_error_answer_raises_the_matching_error(
    answer: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as raised:
        await ask(Exchange(*[answer] * 100), timeout_s=0.0)
    assert type(raised.value) is kind


# ---- the transport ----------------------------------------------------------------------------------------------------------------


# ---- credentials --------------------------------------------------------------------------------------------------------------------
def test_credentials_become_connect_options_of_nats_py(tmp_path: Path) -> None:
    assert Credentials().nats_options() == {}
    assert Credentials(user="u", password="p", inbox_prefix="_INBOX_me").nats_options() == {
        "user": "u", "password": "p", "inbox_prefix": b"_INBOX_me",
    }  # fmt: skip
    assert Credentials(token="t").nats_options() == {"token": "t"}
    (tmp_path / "bad.pem").write_text("no certificate")
    for given, text in (
        ({"tls_ca_file": str(tmp_path / "missing")}, "a file with certificates"),
        ({"tls_ca_file": str(tmp_path / "bad.pem")}, "Cannot use tls_ca_file .*bad.pem: .*no certificate"),
    ):
        with pytest.raises(ConfigError, match=text):
            Credentials(**given).nats_options()
    certificate = str(tmp_path / "bad.pem")
    with pytest.raises(ConfigError, match=r"tls_cert_file .* with tls_key_file .*bad.pem: "):
        Credentials(tls_cert_file=certificate, tls_key_file=certificate).nats_options()
