"""The checkpoint files are empty, torn, old, damaged or missing.

Beside the log lie two small files: the high watermark, and the epoch cache. They are a help and not the truth. A damaged one
is rebuilt from the log; an old one says less than is true, which every rule here can live with: HW only delays what is
served, and is never a place to cut at. Liftbridge cut at the checkpointed HW.

Shows D7, D8, D9, D13, S5.
"""

from __future__ import annotations

import itertools

import pytest

from liftpy.core.log.small_files import CHECKPOINT_NAME, EPOCHS_NAME
from tests.scripts.stage import Stage

KILLS = ("truncate by HW",)

DAMAGES = ("empty", "torn", "old", "garbage", "gone")


@pytest.mark.parametrize(("who", "damage"), list(itertools.product(("follower", "leader"), DAMAGES)))
def test_checkpoint_files_that_are_old_or_damaged_are_corrected_from_the_log(who: str, damage: str) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        node = a if who == "leader" else c
        s.publish(2)
        s.run(1.5)  # checkpoints are stored every second
        old = {name: bytes(s.storage(node).files[name].data) for name in _stored(s, node)}
        s.move_leader(b)
        s.publish(2)
        s.move_leader(a)
        s.publish(3)
        s.run(1.5)
        epochs, end = s.epochs(node), s.end(node)
        assert len(epochs) == 3

        s.crash(node)
        for name in _stored(s, node):
            _damage(s, node, name, damage, old)
        s.start(node)
        s.until(lambda: s.role(node) in ("LEADER", "FOLLOWER"))
        assert (s.epochs(node), s.end(node)) == (epochs, end)
        assert s.hw(node) <= s.true_hw
        s.publish(1)
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)


def test_checkpoint_files_damaged_on_all_nodes_cause_no_record_loss() -> None:
    with Stage() as s:
        nodes = [s.leader, *s.followers]
        s.publish(5)
        s.run(1.5)
        s.power_off(*nodes)
        for node in nodes:
            for name in _stored(s, node):
                _damage(s, node, name, "torn", {})
        s.start(*nodes)
        s.wait_for_leader()
        s.publish(1)
        assert s.ids(s.leader) == [1, 2, 3, 4, 5, 6]


def _stored(s: Stage, node: str) -> list[str]:
    found = [name for name in (CHECKPOINT_NAME, EPOCHS_NAME) if name in s.storage(node).files]
    assert CHECKPOINT_NAME in found
    return found


def _damage(s: Stage, node: str, name: str, damage: str, old: dict[str, bytes]) -> None:
    storage = s.storage(node)
    data = storage.files[name].data
    if damage == "empty":
        data.clear()
    elif damage == "torn":
        del data[len(data) // 2 :]
    elif damage == "old" and name in old:
        data[:] = old[name]
    elif damage == "garbage":
        data[:] = bytes(byte ^ 0x5A for byte in data)
    elif damage in ("gone", "old"):
        storage.remove(name)
