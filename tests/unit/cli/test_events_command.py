"""``liftpy events`` prints each event once, although several controllers answer, and names the gap after lost events."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import NotAllowedError, NotFoundError, UnavailableError
from sidecar.cli import events as command
from sidecar.cli.events import EventPages
from sidecar.cli.main import main
from tests.flat_client import FlatClient
from tests.only_in import only_in


class Controllers(FlatClient):
    """n1 leads; each answers pages of ``size`` from the same events."""

    def __init__(self, count: int = 0, size: int = 2) -> None:
        self.events = [an_event(index) for index in range(1, count + 1)]
        self.size = size
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.begins: dict[str, tuple[int, int]] = {}
        self.behind: dict[str, int] = {}
        self.denied = False
        self.kept: list[dict[str, Any]] | None = None
        """What the stream of events holds, one at each offset; None: there is no such stream."""
        self.started_at: list[int] = []

    async def bounds(self, stream: str) -> Any:
        assert stream == "_liftpy-events"
        if self.kept is None:
            raise NotFoundError("there is no such stream")
        return SimpleNamespace(log_start_offset=1, high_watermark=len(self.kept) - 1, uid="u1")

    async def offset_at(self, stream: str, partition: int, moment: int) -> int:
        self.started_at.append(moment)
        return 0

    async def read_range(self, stream: str, partition: int, start: int, end: int, *, uid: str, exact: bool = False) -> Any:
        assert (stream, partition, uid) == ("_liftpy-events", 0, "u1")
        assert self.kept is not None
        for event in self.kept[start:end]:
            yield SimpleNamespace(values=lambda event=event: [json.dumps(event).encode()])

    async def controller_ids(self) -> list[str]:
        if self.away >= {"n1", "n2", "n3"}:
            raise UnavailableError("nobody")
        return ["n1", "n2", "n3"]

    async def cluster_events(self, controller: str, after: tuple[int, int], since_ns: int, timeout_s: float) -> dict[str, Any]:
        self.asked.append(controller)
        if self.denied:
            raise NotAllowedError("no")
        if controller in self.away:
            raise UnavailableError("silent")
        found = [one for one in self.events if (one["index"], one["number"]) > after and one["time_ns"] >= since_ns]
        begins, begins_ns = self.begins.get(controller, (0, 0))
        index = self.behind.get(controller, len(self.events))
        return {
            "events": found[: self.size],
            "more": len(found) > self.size,
            "begins": begins,
            "begins_ns": begins_ns,
            "index": index,
        }


def an_event(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "number": 0,
        "time": f"t{index}",
        "time_ns": index * 100,
        "kind": "election",
        "stream": "s",
        "partition": 0,
        "was": "a",
        "now": "b",
    }


async def seen(controllers: Controllers, since_ns: int = 0) -> list[Any]:
    pages = [page async for page in EventPages(controllers).pages(since_ns, follow=False)]  # type: ignore[arg-type]
    return [*(["gap"] if pages[0]["gap"] else []), *(event["index"] for page in pages for event in page["events"])]


async def test_events_command_without_the_metadata_leader_reads_events_from_another_controller() -> None:
    controllers = Controllers(5)
    assert await seen(controllers) == [1, 2, 3, 4, 5]
    assert controllers.asked == ["n1"] * 3
    controllers.away = {"n1"}
    assert await seen(controllers, 250) == [3, 4, 5]
    controllers.away |= {"n2", "n3"}
    with pytest.raises(UnavailableError):
        await seen(controllers)


async def test_events_command_reads_the_event_stream_first_and_then_the_controller_memory() -> None:
    controllers = Controllers(7)
    controllers.kept = [an_event(index) for index in range(6)]
    controllers.begins = dict.fromkeys(("n1", "n2", "n3"), (4, 450))
    assert await seen(controllers) == [1, 2, 3, 4, 5, 6, 7], "each once, and nothing is missing between"
    assert await seen(controllers, 350) == [4, 5, 6, 7]
    assert controllers.started_at == [0, 0], "a minute before, for clocks that differ"
    controllers.kept = controllers.kept[:3]
    pages = [page async for page in EventPages(controllers).pages(0, follow=False)]  # type: ignore[arg-type]
    assert [page["gap"] for page in pages] == [False, False, True, False, False], "of 3 and 4 nobody knows"


async def test_events_command_reports_a_gap_if_the_controller_memory_starts_after_the_requested_time() -> None:
    controllers = Controllers(5)
    controllers.begins = {"n1": (2, 250)}
    assert await seen(controllers, 100) == ["gap", 1, 2, 3, 4, 5]
    assert await seen(controllers, 300) == [3, 4, 5]


async def test_events_command_with_follow_prints_each_event_once_during_controller_failures() -> None:
    controllers, waited = Controllers(3, size=9), []

    async def sleep(wait_s: float) -> None:
        waited.append(wait_s)
        match len(waited):
            case 1:
                controllers.events.append(an_event(4))
                controllers.away = {"n1"}
            case 2:
                controllers.away = {"n1", "n2", "n3"}
            case 3:
                controllers.away = {"n1"}
                controllers.behind = {"n2": 2}
                controllers.events.append(an_event(5))
            case 4:
                controllers.begins = {"n3": (7, 7000)}
            case _:
                raise asyncio.CancelledError

    pages: list[Any] = []

    async def follow() -> None:
        async for page in EventPages(controllers, sleep).pages(0, follow=True):  # type: ignore[arg-type]
            pages.append((page["gap"], [event["index"] for event in page["events"]]))

    with pytest.raises(asyncio.CancelledError):
        await follow()
    assert pages == [(False, [1, 2, 3]), (False, [4]), (False, []), (False, [5]), (True, [])]
    assert controllers.asked[-3:] == ["n1", "n2", "n3"], "n2 has not caught up"


async def test_events_command_with_follow_reports_each_gap_once() -> None:
    """A controller that has started from a snapshot lacks the events before it, although nothing has happened since."""
    controllers, waited = Controllers(5), []
    controllers.begins = dict.fromkeys(("n1", "n2", "n3"), (5, 500))
    gaps: list[bool] = []

    async def sleep(wait_s: float) -> None:
        waited.append(wait_s)
        match len(waited):
            case 2:
                controllers.begins = dict.fromkeys(("n1", "n2", "n3"), (9, 900))
            case 4:
                raise asyncio.CancelledError

    async def follow(since_ns: int) -> None:
        async for page in EventPages(controllers, sleep).pages(since_ns, follow=True):  # type: ignore[arg-type]
            gaps.append(page["gap"])

    with pytest.raises(asyncio.CancelledError):
        await follow(600)
    assert gaps == [False, False, True, False]


async def test_events_command_without_permission_raises_not_allowed_after_one_request() -> None:
    controllers = Controllers(1)
    controllers.denied = True
    with pytest.raises(NotAllowedError):
        await seen(controllers)
    assert controllers.asked == ["n1"]


@pytest.mark.parametrize("as_json", [False, True])
def test_events_command_prints_each_event_as_text_or_json(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controllers = Controllers(2)
    controllers.begins = {"n1": (1, 1 << 62)}
    monkeypatch.setattr(command, "with_client", lambda target, work, **_: asyncio.run(work(controllers)))
    only_in(monkeypatch, command, "time", time_ns=lambda: 3600 * 10**9 + 150)
    with pytest.raises(SystemExit) as ended:
        main(["events", *(["--json"] if as_json else [])])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line) for line in lines] == [{"kind": "gap", "up_to_index": 1}, an_event(2)]
    else:
        assert lines == ["(the history up to entry 1 is no longer in memory)", "t2  2.0  election s/0 a -> b"]
