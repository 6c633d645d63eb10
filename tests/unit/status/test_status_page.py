"""Test the JSON of the status port: order, page size and the start of the next page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.observe.node_health import HealthInput
from sidecar.runtime.settings import NodeSettings
from sidecar.status.health import Health
from sidecar.status.status_api import MOST_ON_A_PAGE, PAGE_PARTITIONS, StatusHandler

PARTITIONS = [("a", number) for number in range(1200)] + [("b <i>", number) for number in range(3)]
_FACTS = {"node": "n1", "version": "1", "incarnation": 1, "uptime_s": 1.0, "metadata_leader": "n1", "metadata_index": 7}
_SHOWN = {
    "role": "LEADER",
    "phase": "-",
    "leader": "n1",
    "leader_epoch": 1,
    "isr": [],
    "newest_offset": 0,
    "high_watermark": 0,
    "paused": "",
}


class Reporter:
    failed: ClassVar[dict[str, str]] = {}

    def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        behind = [key for key in PARTITIONS if key > after]
        shown = [{"stream": stream, "partition": partition, **_SHOWN} for stream, partition in behind[:count]]
        return {**_FACTS, "partitions": shown, "more": len(behind) > count, "failed_partitions": self.failed}


@pytest.fixture
def service(tmp_path: Path) -> StatusHandler:
    service = StatusHandler(NodeSettings("n1", tmp_path))
    service.reporter = Reporter()  # type: ignore[assignment]
    return service


def get(service: StatusHandler, target: str) -> tuple[int, bytes]:
    head, _, body = answer_of(service, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def answer_of(service: StatusHandler, request: bytes) -> bytes:
    async def answered() -> Any:
        response = service._respond(request)
        return response if isinstance(response, bytes) else await response

    response = asyncio.run(answered())
    assert isinstance(response, bytes)
    return response


def test_status_json_continues_after_the_last_partition_of_a_page(service: StatusHandler) -> None:
    seen: list[tuple[str, int]] = []
    query = ""
    for _ in range(10):
        page = json.loads(get(service, f"/status{query}")[1])
        assert len(page["partitions"]) <= PAGE_PARTITIONS
        seen += [(p["stream"], p["partition"]) for p in page["partitions"]]
        if not page["more"]:
            break
        query = f"?after={seen[-1][0]}/{seen[-1][1]}"
    assert seen == PARTITIONS


@pytest.mark.parametrize("query", ["count=0", f"count={MOST_ON_A_PAGE + 1}", "count=x", "count=-1", "after=a", "after=a/x"])
def test_status_json_with_invalid_query_is_rejected(service: StatusHandler, query: str) -> None:
    assert get(service, f"/status?{query}")[0] == 400


@pytest.mark.parametrize(
    ("query", "count"), [(f"count={MOST_ON_A_PAGE}", 1203), ("after=zzz/0", 0), ("count=%31", 1), ("other=1", 500), ("", 500)]
)
def test_status_json_with_valid_query_is_answered(service: StatusHandler, query: str, count: int) -> None:
    status, body = get(service, f"/status?{query}")
    assert (status, len(json.loads(body)["partitions"])) == (200, count)


def test_status_json_request_with_huge_numbers_or_invalid_bytes_never_raises(service: StatusHandler) -> None:
    assert get(service, "/status?count=" + "9" * 5000)[0] == 400
    assert get(service, "/status?after=a/" + "9" * 5000)[0] == 200
    assert answer_of(service, b"GET /status?\xff=\xfe%zz HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_status_health_request_before_a_report_exists_is_answered_with_reasons(tmp_path: Path) -> None:
    service = StatusHandler(NodeSettings("n1", tmp_path))
    signs = HealthInput()
    service.health = Health(lambda: signs, list)
    assert get(service, "/livez") == (200, b"ok\n")
    status, body = get(service, "/readyz")
    assert (status, body.splitlines()[0]) == (503, b"[-] registered: not registered with the metadata group yet")
    signs = HealthInput(registered=True, nats=True, metadata_silence_s=0.0, session_s=1.0, opened=True)
    assert get(service, "/readyz") == (200, b"ok\n")
    assert get(service, "/readyz?verbose") == (200, b"[+] registered\n[+] nats\n[+] metadata\n[+] partitions\n[+] space\n")
    key = PartitionKey("s", "u1", 0)
    service.health = Health(lambda: signs, lambda: [(key, False)])
    assert get(service, "/readyz?synced")[0] == 503
    assert get(service, "/readyz")[0] == 200
    assert service.health.report() == {
        "health": {"live": True, "ready": True, "synced": False},
        "checks": {"tasks": "", "flush": "", "registered": "", "nats": "", "metadata": "", "partitions": "", "space": "",
                   "synced": "1 of 1 have not caught up yet, s/0 among them"},
        "unknown_streams": [],
    }  # fmt: skip
