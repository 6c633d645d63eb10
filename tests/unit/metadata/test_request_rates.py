"""Test the rates of operator requests: per principal and in total."""

from __future__ import annotations

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller import admission
from liftpy.core.metadata.controller.admission import ALL_AT_ONCE, IN_ALL, PER_PRINCIPAL, PRINCIPAL_AT_ONCE, RequestRates


def taken(rates: RequestRates, principal: str, count: int, now_ns: int) -> int:
    return sum(rates.wait_ms(principal, now_ns) == 0 for _ in range(count))


def test_request_rate_limit_of_one_principal_does_not_affect_other_principals() -> None:
    rates = RequestRates()
    assert taken(rates, "alice", 400, 0) == PRINCIPAL_AT_ONCE
    assert rates.wait_ms("alice", 0) == 21
    assert rates.wait_ms("alice", 20_000_001) == 0
    assert taken(rates, "bob", 400, 0) == PRINCIPAL_AT_ONCE
    assert taken(rates, "alice", 400, 2 * NS_PER_S) == 2 * PER_PRINCIPAL - 1


def test_request_rate_of_all_principals_is_bounded_and_not_used_by_rejected_requests() -> None:
    rates = RequestRates()
    assert sum(taken(rates, f"p{number}", 400, 0) for number in range(8)) == ALL_AT_ONCE
    assert taken(rates, "late", 100, 0) == 0
    assert sum(taken(rates, f"p{number}", 400, NS_PER_S) for number in range(8)) == IN_ALL
    assert rates.wait_ms("late", NS_PER_S) == 6


def test_request_rate_memory_holds_a_bounded_number_of_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_PRINCIPALS", 2)
    rates = RequestRates()
    for principal in ("a", "b", "a", "c"):
        taken(rates, principal, PRINCIPAL_AT_ONCE, 0)
    assert len(rates) == 2
    assert rates.wait_ms("a", 0) > 0, "it asked after b"
    assert rates.wait_ms("b", 0) == 0, "it was forgotten"
