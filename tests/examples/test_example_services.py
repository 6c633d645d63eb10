"""The two example services over a log in memory: what they answer, and that a state from any snapshot goes on the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from liftpy.core.wire.batch import Record
from liftpy.service import Identity, Outbox, Service, ServiceMachine
from liftpy.testing import ServiceTest
from tests.each import each
from tests.examples.bank import Bank
from tests.examples.rate_limiter import BURST, RateLimiter
from tests.examples.till import Till

NS = 1_000_000_000


def run(
    service: Service, records: list[Record], *, every: int = 1000, snapshot: Any = None
) -> tuple[ServiceMachine, list[Any]]:
    machine = ServiceMachine(service, Identity("example", "s", "u", 0), snapshot_interval_records=every, outbox=Outbox("u/0"))
    machine.start(snapshot)
    return machine, machine.apply(records).snapshots


def outputs(machine: ServiceMachine) -> list[bytes]:
    assert machine.outbox is not None
    return [output.value for output in machine.outbox.read(machine.outbox.oldest_number, 100_000)]


def commands(*given: dict[str, Any] | bytes, step_ns: int = NS) -> list[Record]:
    values = [v if isinstance(v, bytes) else json.dumps({"id": str(o), **v}).encode() for o, v in enumerate(given)]
    return [Record(o, o * step_ns, None, value, (), "", None, 1) for o, value in enumerate(values)]


def test_bank_example_moves_money_and_answers_each_command_once() -> None:
    bank = Bank()
    machine, _ = run(
        bank,
        commands(
            {"do": "open", "account": "a"},
            {"do": "open", "account": "b"},
            {"do": "deposit", "account": "a", "amount": 100},
            {"do": "transfer", "account": "a", "to": "b", "amount": 30},
            {"do": "withdraw", "account": "b", "amount": 31},
            {"do": "transfer", "account": "a", "to": "nobody", "amount": 1},
            b"\xff not json",
            b"",
            b"[]",
            {"do": "rob", "account": "a"},
            {"do": "deposit", "account": "a", "amount": -5},
        ),
    )
    assert bank.accounts == {"a": 70, "b": 30}
    answers = [json.loads(value) for value in outputs(machine)]
    assert [answer["ok"] for answer in answers] == [True] * 4 + [False] * 7
    assert answers[4]["why"] == "not enough money"


def test_bank_example_lock_ends_by_log_time() -> None:
    bank = Bank()
    start = [
        {"do": "open", "account": "a"},
        {"do": "deposit", "account": "a", "amount": 9},
        {"do": "lock", "account": "a", "for_s": 2},
    ]
    takes = [{"do": "withdraw", "account": "a", "amount": 1}] * 3
    machine, _ = run(bank, commands(*start, *takes))
    answers = [json.loads(value) for value in outputs(machine)]
    assert [a.get("ok", "unlocked") for a in answers] == [True, True, True, False, "unlocked", True, True]
    assert bank.accounts == {"a": 7}


def test_limiter_example_allows_a_burst_then_the_rate_and_forgets_idle_clients() -> None:
    limiter = RateLimiter()
    burst = [Record(o, 0, b"c", b"r", (), "", None, 1) for o in range(BURST + 2)]
    later = [Record(10 + o, NS, b"c", b"r", (), "", None, 1) for o in range(3)]
    other = [Record(20, NS, b"d", b"r", (), "", None, 1)]
    machine, _ = run(limiter, burst + later + other)
    assert outputs(machine) == [b"yes"] * BURST + [b"no"] * 2 + [b"yes", b"yes", b"no"] + [b"yes"]
    machine.apply([Record(30, 100 * NS, b"e", b"r", (), "", None, 1)])
    assert list(limiter.full_at_ns) == ["e"]


def some_log(seed: int, count: int = 400) -> list[Record]:
    rng = random.Random(seed)
    records, now_ns = [], 0
    for offset in range(count):
        now_ns += rng.choice([0, 1, NS // 3, 2 * NS])
        account, to = rng.choice("abcd"), rng.choice("abcd")
        what = rng.choice(["open", "deposit", "deposit", "withdraw", "transfer", "lock"])
        value = {
            "id": str(offset),
            "do": what,
            "account": account,
            "to": to,
            "amount": rng.randrange(50),
            "for_s": rng.randrange(5),
        }
        records.append(Record(offset, now_ns, account.encode(), json.dumps(value).encode(), (), "", None, 1 + offset // 150))
    return records


@each("example", [Bank, RateLimiter])
@each("seed", range(10))
def test_example_service_restored_from_any_snapshot_equals_a_full_replay(example: type[Service], seed: int) -> None:
    records = some_log(seed)
    whole, taken = run(example(), records, every=64)
    assert [s.position for s in taken] == [64, 128, 192, 256, 320, 384]
    for snapshot in taken:
        again, later = run(example(), records, every=64, snapshot=snapshot)
        assert again.snapshot() == whole.snapshot()
        assert [s.encode() for s in later] == [s.encode() for s in taken if s.position > snapshot.position]
        assert outputs(again) == outputs(whole)[snapshot.output_count :]


def test_till_example_combines_effects_and_ticks(tmp_path: Path) -> None:
    """As docs/replicated-services.md says that effects, ticks and their tests are."""
    test = ServiceTest(lambda: Till(str(tmp_path))).send(b"7 cents").advance(1).tick()
    test.run_effects().send(b"8 cents").run_effects().advance(1).tick()
    assert [output.value for output in test.outputs] == [
        b"7 cents: late",
        b"7 cents: charged by %d" % os.getpid(),
        b"8 cents: charged by %d" % os.getpid(),
    ]


def test_docs_example_service_runs_as_printed() -> None:
    page = (Path(__file__).parents[2] / "docs/replicated-services.md").read_text()
    printed = page[page.index("# counter.py") :].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(printed, "counter.py", "exec"), names)
    first, second = names["Counter"](), names["Counter"]()
    machine, snapshots = run(first, commands(b"a", b"b", b"a"), every=2)
    assert outputs(machine) == [b"a: 1", b"b: 1", b"a: 2"]
    run(second, commands(b"a", b"b", b"a")[2:], every=2, snapshot=snapshots[0])
    assert second.take_snapshot() == first.take_snapshot() == b"a=2\nb=1"


def test_docs_example_unit_test_passes_as_printed(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/replicated-services.md").read_text()
    for name in ("counter.py", "test_counter.py"):
        (tmp_path / name).write_text(page[page.index(f"# {name}\n") :].split("```")[0])
    (tmp_path / "node.py").write_text("import test_counter as t; t.test_a_word_is_forgotten_after_a_minute()")
    subprocess.run([sys.executable, "node.py"], cwd=tmp_path, check=True, timeout=120)
