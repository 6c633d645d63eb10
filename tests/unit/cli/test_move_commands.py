"""Commands that move replicas, with the real state machine: drain, rebalance, replication factor and ``partition move``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from liftpy.client.admin import Admin, ReplicaMove
from liftpy.core.metadata.controller.reassignment import movements
from liftpy.core.metadata.request_limits import MAX_REQUEST_BYTES
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import UnavailableError
from sidecar.cli import node, partition, reassignment, rebalance, status, stream
from tests.unit.cli.state_machine_commands import Commands, client_of
from tests.unit.metadata.reassignment_driver import Moved

GB = 1_000_000_000


class Cli(Commands):
    """A cluster that moves a step with every description."""

    def __init__(self, moved: Moved, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.moved = moved
        self.sizes: dict[int, int] = {}
        self.unknown: dict[str, list[str]] = {}
        """Node -> its directories of streams that the cluster does not know."""
        client = client_of(moved.driver, lambda: moved.step())
        monkeypatch.setattr(client.admin, "node_status", self.node_status)
        monkeypatch.setattr(client.admin, "node_health", self.node_health)
        monkeypatch.setattr(reassignment, "POLL_S", 0.0)
        super().__init__(client, (node, partition, rebalance, status, stream), monkeypatch, capsys)

    async def node_status(self, node_id: str, _timeout_s: float = 0) -> dict[str, Any]:
        if not self.sizes:
            raise UnavailableError("nobody is there")
        said = [
            {"uid": s.uid, "partition": p.partition, "log_bytes": self.sizes.get(p.partition, 0), "newest_offset": 1}
            for s, p in self.moved.partitions()
            if node_id in p.replicas
        ]
        return {"partitions": said}

    async def node_health(self, node_id: str, _timeout_s: float = 0) -> dict[str, Any]:
        return {"unknown_streams": self.unknown.get(node_id, [])}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(Moved("abcde"), monkeypatch, capsys)


def test_node_drain_with_wait_ends_when_the_node_has_no_replicas(run: Cli) -> None:
    run.moved.driver.create(partitions=10, replicationFactor=3)
    code, said = run("node", "drain", "b", "--wait")
    assert code == 0
    assert "draining b: 6 replicas to move" in said
    assert "partitions move" in said
    assert said.endswith("b holds no replicas. Stop it, then run liftpy node remove b\n")
    assert run.moved.held("b") == 0
    run.moved.driver.fence("b")
    assert run.json("node", "remove", "b")["removed"]


def test_node_drain_after_its_timeout_continues_until_cancelled(run: Cli) -> None:
    run.moved.copies = False
    run.moved.driver.create(partitions=10, replicationFactor=3)
    assert run.json("node", "drain", "b") == {"node": "b", "leaving": True, "replicas": 6}
    code, said = run("node", "drain", "b", "--wait", "--timeout", "0.2")
    assert (code, "continues in the background" in said) == (3, True)
    run.sizes = dict.fromkeys(range(10), GB)
    found = run.json("status")
    assert {m["why"] for m in found["moves"]} == {"drain"}
    assert {m["out"] for m in found["moves"]} == {"b"}
    assert {m["left_bytes"] for m in found["moves"]} == {GB}
    assert next(n for n in found["nodes"] if n["node_id"] == "b")["leaving"]
    code, said = run("status")
    assert "drained" in said
    assert "copies" in said
    assert run("node", "drain", "b", "--cancel")[0] == 0
    assert run.json("status")["moves"] == []
    assert run("node", "drain", "b", "--cancel", "--wait")[0] == 2
    assert run("node", "drain", "zz")[0] != 0


def test_node_drain_of_leaderless_partitions_prints_the_partitions_and_the_elect_command(run: Cli) -> None:
    """Before, a drain of a dead node that held the last replica was waited for for a day, without a word why."""
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["b"]) for n in range(5)])
    run.moved.down("b")
    why = "orders/0, orders/1, orders/2 and 2 more: offline, because no live node has all committed records"
    code, said = run("node", "drain", "b")
    assert (code, said.count(why), said.count("liftpy partition elect --unclean")) == (0, 1, 1)
    code, said = run("node", "drain", "b", "--wait", "--timeout", "0.2")
    assert code != 0
    assert said.count(f"\n{why}") == 1, "once, while it is waited for"
    assert "nothing moves yet" in said
    assert f"; {why}" in said, "and at the end"
    code, said = run("node", "remove", "b", "--timeout", "0")
    assert (code, "they are on their way" in said, said.count(why)) == (2, True, 1)
    run.moved.driver.delete("orders")
    assert run("node", "remove", "b")[0] == 0


def test_node_remove_waits_until_the_node_has_stopped(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptions: list[int] = []

    def step() -> None:
        descriptions.append(1)
        if len(descriptions) == 2:
            run.moved.driver.fence("b")

    monkeypatch.setattr(run.moved, "step", step)
    assert run.json("node", "remove", "b")["removed"]


def test_status_command_names_the_data_of_streams_that_the_cluster_does_not_know(run: Cli) -> None:
    run.sizes, run.unknown = {0: GB}, {"b": ["bills-u1"]}
    found = {one["node_id"]: one["unknown_streams"] for one in run.json("status")["nodes"]}
    assert found == {"a": [], "b": ["bills-u1"], "c": [], "d": [], "e": []}
    assert "b keeps data of streams that the cluster does not know: bills-u1" in run("status")[1]


def test_node_drain_prints_streams_whose_replicas_no_other_node_can_host(run: Cli) -> None:
    run.moved.driver.create(partitions=1, replicationFactor=5)
    code, said = run("node", "drain", "b")
    assert code == 0
    assert "orders: more replicas than the 4 other nodes that may take them" in said


def test_rebalance_cancel_keeps_the_moves_of_other_commands(run: Cli) -> None:
    run.moved.copies = False
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(10)])
    run("node", "drain", "e")
    run("partition", "move", "orders", "0", "--node", "a,b,d", "--no-wait")
    code, said = run("rebalance", "--no-wait")
    assert (code, "The moves continue" in said) == (0, True)
    ours = sum(m["why"] == "rebalance" for m in run.json("status")["moves"])
    assert ours
    assert run.json("rebalance", "--cancel") == {"cancelled": ours, "refused": []}
    assert [m["why"] for m in run.json("status")["moves"]] == ["by hand"]
    assert run("rebalance", "--cancel", "--dry-run")[0] == 2
    assert run("rebalance", "--without", "a")[0] == 2


@pytest.mark.parametrize("words", [(), ("--no-wait",), ("--json",), ("--cancel",), ("--cancel", "--json")])
def test_rebalance_with_rejected_moves_exits_with_1(words: tuple[str, ...], run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reject(admin: Admin, wishes: Iterable[ReplicaMove]) -> list[str]:
        return ["orders/0: Epoch 7 now, not 6"]

    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(10)])
    if "--cancel" in words:
        run.moved.copies = False
        assert run("rebalance", "--no-wait")[0] == 0
    monkeypatch.setattr(Admin, "reassign_all", reject)
    code, said = run("rebalance", *words)
    assert (code, "orders/0: Epoch 7 now, not 6" in said) == (1, True)


def test_rebalance_by_bytes_distributes_the_log_bytes_reported_by_the_nodes(run: Cli) -> None:
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a"]) for n in range(5)])
    run.sizes = {0: 8 * GB, 1: 4 * GB, 2: 4 * GB, 3: 4 * GB, 4: 4 * GB}
    made = run.json("rebalance", "--by", "bytes")
    assert made["before"]["a"] == 24 * GB
    assert sorted(made["held"].values()) == [4 * GB] * 4 + [8 * GB]
    assert {p.partition: p.replicas for _, p in run.moved.partitions()}.keys() == set(range(5))
    assert {n: run.moved.held(n) for n in "abcde"} == dict.fromkeys("abcde", 1)
    run.sizes = {}
    assert run.json("rebalance", "--by", "bytes", "--dry-run")["moves"] == []
    code, said = run("rebalance", "--by", "bytes", "--dry-run")
    assert (code, "No moves needed" in said) == (0, True)


@pytest.mark.parametrize(
    ("words", "meanwhile", "said"),
    [
        (
            ("node", "drain", "a", "--wait"),
            {"setNode": pb.SetNode(nodeId="a", leaving=False)},
            "Another request canceled the drain of a, which holds 2 replicas. To drain it: liftpy node drain a",
        ),
        (
            ("partition", "move", "orders", "0", "--node", "b,c,d"),
            {"reassign": pb.Reassign(stream="orders", partition=0, replicas=["e", "b", "c"])},
            "orders/0 is on e b c instead of b c d, because another request replaced or canceled this move.",
        ),
        (
            ("partition", "move", "orders", "0", "--node", "b,c,d"),
            {"reassign": pb.Reassign(stream="orders", partition=0, cancel=True)},
            "orders/0 is on a b c instead of b c d, because another request replaced or canceled this move.",
        ),
        (
            ("stream", "alter", "orders", "--replicas", "4"),
            {"alterStream": pb.AlterStream(name="orders", replicationFactor=2)},
            "Another request set the number of replicas of orders to 2 while this one moved them to 4.",
        ),
        (
            ("stream", "alter", "orders", "--replicas", "4"),
            {"reassign": pb.Reassign(stream="orders", partition=0, cancel=True)},
            "orders/0 has 3 replicas instead of 4, because another request replaced or canceled its move.",
        ),
        (
            ("rebalance",),
            {"reassign": pb.Reassign(stream="orders", partition=0, cancel=True)},
            "not moved: another request replaced or canceled the move of orders/0",
        ),
        (
            ("rebalance", "--by", "leaders"),
            {"reassign": pb.Reassign(stream="orders", partition=0, cancel=True)},
            "not moved: another request replaced or canceled the move of orders/0",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_move_command_whose_move_is_replaced_by_another_request_prints_the_replacement(
    words: tuple[str, ...], meanwhile: dict[str, Any], said: str, run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(2)])
    run.moved.copies = False
    step, asked = run.moved.step, list[str]()

    def stepped() -> list[str]:
        changing = bool(movements(run.moved.image))
        if changing and not asked:
            asked.append("another request")
            response = run.moved.driver.ask(**meanwhile)
            assert response.error == pb.ControlResponse.OK, response
            run.moved.copies = True
        return step()

    monkeypatch.setattr(run.moved, "step", stepped)
    code, told = run(*words, "--timeout", "10s")
    assert asked
    assert said in told
    assert code == 1
    assert "all moves are complete" not in told


@pytest.mark.parametrize(
    "words", [("partition", "move", "orders", "1", "--node", "b,c,d"), ("stream", "alter", "orders", "--replicas", "4")]
)
def test_move_command_whose_stream_is_recreated_during_the_move_reports_the_recreation(
    words: tuple[str, ...], run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(2)])
    run.moved.copies = False
    step, asked = run.moved.step, list[str]()

    def stepped() -> list[str]:
        if movements(run.moved.image) and not asked:
            asked.append("another request")
            run.moved.driver.delete("orders")
            run.moved.driver.create(partitions=1, replicationFactor=1)
        return step()

    monkeypatch.setattr(run.moved, "step", stepped)
    code, told = run(*words, "--timeout", "10s")
    assert (code, "Stream orders was deleted and created again while its replicas moved." in told) == (1, True), told


async def test_reassign_all_sends_moves_in_batches_and_returns_an_error_per_rejected_move() -> None:
    moved = Moved("abcd")
    moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a"]) for n in range(200)])
    client = client_of(moved.driver, moved.step)
    uid = moved.image.streams["orders"].uid
    wishes = [ReplicaMove(stream="orders", uid=uid, partition=n, replicas=("b",)) for n in range(200)]
    before = moved.driver.index
    assert await client.admin.reassign_all(
        [*wishes, ReplicaMove(stream="orders", uid="gone", partition=0, replicas=("b",))]
    ) == ["orders/0: there is no partition orders/0 of stream gone"]
    assert moved.driver.index - before == 3
    assert all(p.target == ("b",) for _, p in moved.partitions())
    assert await client.admin.reassign_all([]) == []
    nodes = [f"{'n' * 50}{number:02}" for number in range(32)]
    for node_id in nodes:
        assert moved.driver.register(node_id).error == pb.ControlResponse.OK
    before = moved.driver.index
    wide = [ReplicaMove(stream="orders", uid=uid, partition=n, replicas=tuple(nodes)) for n in range(20)]
    assert await client.admin.reassign_all(wide) == []
    assert max(map(len, moved.driver.log[before:])) < MAX_REQUEST_BYTES
    assert all(len(p.target) == 32 for _, p in moved.partitions()[:20])


def lead_nowhere(moved: Moved) -> None:
    """Create a stream whose last leader is down. Its other replica is live and empty."""
    for node_id in "ab":
        moved.driver.restart(node_id)
    moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b"])])
    for node_id in "ba":
        moved.down(node_id)
    moved.driver.restart("b", emptied=True)


def test_partition_elect_unclean_of_a_stream_that_was_replaced_during_the_prompt_elects_no_leader(
    run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> bool:
        run.moved.driver.delete("orders")
        lead_nowhere(run.moved)
        return True

    lead_nowhere(run.moved)
    monkeypatch.setattr("click.confirm", confirm)
    code, said = run("partition", "elect", "orders", "0", "--unclean", "--timeout", "0.1")
    ((_, left),) = run.moved.partitions()
    assert (code, left.candidate, left.status.name) == (1, "", "OFFLINE"), said


@pytest.mark.parametrize("command", ["transfer", "elect-preferred"])
def test_partition_command_for_a_node_that_does_not_become_leader_exits_with_1(
    command: str, run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen node stops during the transfer. Then another node leads, and the exit code was 0."""
    run.moved.driver.create(manual=[pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(2)])
    if command == "elect-preferred":
        for number in range(2):
            run.moved.driver.ask(electLeader=pb.ElectLeader(stream="orders", partition=number, node="b"))
        run.moved.promote()
    step = run.moved.step

    def stepped() -> list[str]:
        chosen = {p.candidate for _, p in run.moved.partitions() if p.candidate}
        if chosen and not run.moved.image.nodes[min(chosen)].fenced:
            run.moved.down(min(chosen))
        return step()

    monkeypatch.setattr(run.moved, "step", stepped)
    words = {"transfer": ("orders", "0", "--node", "b"), "elect-preferred": ()}
    code, said = run("partition", command, *words[command], "--timeout", "2s")
    assert code == 1, said
    assert "orders/0 is led by" in said
    assert f"instead of {'b' if command == 'transfer' else 'a'}" in said


def test_partition_transfer_of_a_stream_that_is_recreated_meanwhile_reports_the_recreation(
    run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["a", "b", "c"])])
    step = run.moved.step

    def stepped() -> list[str]:
        if any(p.candidate for _, p in run.moved.partitions()):
            run.moved.driver.delete("orders")
            run.moved.driver.create(manual=[pb.ReplicaList(partition=0, replicas=["b", "a"])])
        return step()

    monkeypatch.setattr(run.moved, "step", stepped)
    code, said = run("partition", "transfer", "orders", "0", "--node", "b", "--timeout", "2s")
    assert (code, "Stream orders was deleted" in said) == (1, True), said
