"""Test the status of a node with worker processes: each process reports its part, and the node merges the parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.status.figures import MOST_ENDED, Figures
from sidecar.status.merged_status import NodeStatus, WorkerStatus, add_figures, figures_to_json


class Reporter:
    """Status of the partitions of one process."""

    def __init__(self, *rows: tuple[str, int]) -> None:
        self._rows = [{"stream": stream, "partition": partition} for stream, partition in rows]
        self.partitions = type("Partitions", (list,), {"led_partitions": lambda _: []})(rows)

    def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        behind = [row for row in self._rows if (row["stream"], row["partition"]) > after]
        return {"partitions": behind[:count], "more": len(behind) > count}

    def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        return [row for row in self._rows if row["stream"] == stream][:count]


def a_node(own: Reporter, *workers: Reporter, silent: int = 0) -> NodeStatus:
    """Return the status of a node. The last ``silent`` workers do not answer."""

    def handle(part: WorkerStatus, answers: bool) -> Any:
        async def request_status(asked: dict[str, Any]) -> dict[str, Any]:
            return {**await part.answer(asked), "answers": True} if answers else {"answers": False}

        return SimpleNamespace(request_status=request_status)

    parts = [WorkerStatus(one, None) for one in workers]  # type: ignore[arg-type]
    return NodeStatus(own, [handle(part, number < len(parts) - silent) for number, part in enumerate(parts)])  # type: ignore[arg-type]


async def test_status_of_one_stream_contains_the_partitions_of_all_processes_in_order() -> None:
    node = a_node(Reporter(("s", 2), ("t", 0)), Reporter(("s", 1), ("s", 4)), Reporter(("s", 0), ("u", 3)))
    assert [row["partition"] for row in await node.of_stream("s", 9)] == [0, 1, 2, 4]
    assert [row["partition"] for row in await node.of_stream("s", 2)] == [0, 1]


async def test_status_of_one_stream_without_the_answer_of_a_process_has_the_other_partitions() -> None:
    node = a_node(Reporter(("s", 2)), Reporter(("s", 1)), Reporter(("s", 0)), silent=1)
    assert [row["partition"] for row in await node.of_stream("s", 9)] == [1, 2]


async def test_status_page_of_a_worker_process_begins_after_the_requested_partition_and_names_the_process() -> None:
    worker = WorkerStatus(Reporter(("s", 0), ("s", 1), ("s", 2)), None)  # type: ignore[arg-type]
    page = await worker.answer({"what": "page", "after": ["s", 0], "count": 1})
    assert ([row["partition"] for row in page["partitions"]], page["more"]) == ([1], True)
    assert (page["process"]["partitions"], page["process"]["leads"]) == (3, 0)


def test_ended_services_of_all_processes_are_in_the_status_up_to_a_limit() -> None:
    found, told = Figures(), Figures()
    found.ended_services, told.ended_services = ["a"], [f"b{number}" for number in range(MOST_ENDED)]
    add_figures(found, figures_to_json(told))
    assert found.ended_services == ["a", *told.ended_services[: MOST_ENDED - 1]]
