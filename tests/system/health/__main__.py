"""Stop, starve and cut off nodes of a cluster under load, and compare what they say of their health with the table: see the package.

A row holds when the node has come to say what is expected, and the others have said nothing else meanwhile. With NATS away no liveness
probe may fail at any moment, and no process may end.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.client import sync
from liftpy.config import ReplicationConfig
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster
from tests.system.powercut.cut import ALL, FLUSH_SLOW, NO_SPACE, WRITE_FAILS, PowerCut, Rule

SETTINGS = {"LIFTPY_REPLICATION_SESSION_S": "3", "LIFTPY_LOG_LEVEL": "error"}
PATHS = ("/livez", "/readyz", "/readyz?synced")
WELL = (200, 200, 200)
STRUCK = "n2"
_CHECK_INTERVAL_S = 0.25
_PATIENCE_S = 90.0
HANGS_ON_S = 8.0
"""A flush hangs for so much longer than it takes until that is said."""
NOTICED_S = 4.0
"""By then at the latest after the limit: of asking all nodes one after the other, and of a machine that is busy."""
STAYS_FULL_S = 10.0
"""A full disk: of two looks for space nothing comes, least of all a restart."""
_PUBLISHED = 20
"""Messages before a fault."""
_TIMEOUT_S = 2.0
_PUBLISH_EVERY_S = 0.01

Row = tuple[int, int, int]


@dataclass
class Seen:
    """Of one fault. Rows are (livez, readyz, synced): HTTP status, 0: no answer."""

    fault: str
    expected: Row
    struck: tuple[str, ...]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By node, each other one that was seen, in order."""
    after_s: float = 0.0
    """Until all struck nodes said what is expected."""
    wrong: list[str] = field(default_factory=list)

    def look(self, cluster: DevCluster) -> bool:
        """Ask all nodes; whether the struck ones say what is expected."""
        now = {node: row(cluster, node) for node in cluster.nodes}
        for node, said in now.items():
            known = self.rows.setdefault(node, [])
            if not known or known[-1] != said:
                known.append(said)
        return all(now[node] == self.expected for node in self.struck)

    def text(self) -> str:
        """A line of the table."""
        others = sorted({said for node, rows in self.rows.items() if node not in self.struck for said in rows})
        last = [self.rows[node][-1] for node in self.struck]
        verdict = "; ".join(self.wrong) or "as expected"
        return f"| {self.fault} | {self.expected} | {last} after {self.after_s:.1f} s | {others} | {verdict} |"


def row(cluster: DevCluster, node: str) -> Row:
    """What a node says now."""
    url = cluster.nodes[node].status_url  # '' until it is up
    return tuple(_status(url + path) if url else 0 for path in PATHS)  # type: ignore[return-value]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Load:
    """Somebody publishes meanwhile, whatever becomes of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._done = threading.Event()
        self.count = 0
        """Of messages that were acknowledged."""

    def _publish(self) -> None:
        while not self._done.is_set():
            with contextlib.suppress(LiftError), sync.connect(self._url) as client:
                while not self._done.wait(_PUBLISH_EVERY_S):
                    with contextlib.suppress(LiftError):
                        client.publish("s", b"x" * 200, timeout_s=1.0)
                        self.count += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends."""
        thread = threading.Thread(target=self._publish, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(timeout=10)


class Table:
    """Strikes and judges, one fault after the other; ``stays_s``: how long a fault is looked at that must not do more than it did."""

    def __init__(self, cluster: DevCluster, power: PowerCut, load: Load) -> None:
        self.load = load
        self.cluster = cluster
        self.power = power
        self.seen: list[Seen] = []

    def strike(
        self,
        fault: str,
        expected: Row,
        begin: Callable[[], object],
        end: Callable[[], object],
        *struck: str,
        stays_s: float = 0.0,
        within_s: float = _PATIENCE_S,
        answers: bool = False,
    ) -> None:
        """Have it happen, wait for what is expected, ``within_s``, look on for ``stays_s``, put it right, wait until all is well.
        ``answers``: there is an answer at any moment."""
        self._until_published()
        found = Seen(fault, expected, struck)
        self.seen.append(found)
        pids = {name: node.pid for name, node in self.cluster.nodes.items() if node.running}
        began = time.monotonic()
        begin()
        while not found.look(self.cluster):
            if time.monotonic() - began > within_s:
                found.wrong.append("not seen")
                break
            time.sleep(_CHECK_INTERVAL_S)
        found.after_s = time.monotonic() - began
        while time.monotonic() - began < stays_s:
            if not found.look(self.cluster):
                found.wrong.append(f"something else was said after {time.monotonic() - began:.0f} s")
                break
            time.sleep(_CHECK_INTERVAL_S)
        end()
        found.wrong += [
            f"{node} said {said} meanwhile"
            for node, rows in found.rows.items()
            for said in rows
            if node not in (*struck, *self._restarted) and said != WELL
        ]
        if answers:
            found.wrong += [f"{node} did not answer" for node in struck if any(0 in said for said in found.rows[node])]
        if expected[0] == 200:
            found.wrong += [f"{node} was not live" for node in struck if any(said[0] != 200 for said in found.rows[node])]
        self._until_well(found)
        now = {name: node.pid for name, node in self.cluster.nodes.items() if node.running}
        found.wrong += [f"{name} ended" for name, pid in pids.items() if now.get(name) != pid and name not in self._restarted]
        self._restarted = frozenset()
        print(found.text(), flush=True)

    _restarted: frozenset[str] = frozenset()
    """Whose end is a part of the fault."""

    def _until_published(self) -> None:
        """A fault of the disk shows only where somebody writes."""
        wanted = self.load.count + _PUBLISHED
        while self.load.count < wanted:
            time.sleep(_CHECK_INTERVAL_S)

    def _until_well(self, found: Seen) -> None:
        give_up_at = time.monotonic() + _PATIENCE_S
        while not all(row(self.cluster, node) == WELL for node in self.cluster.nodes):
            if time.monotonic() > give_up_at:
                found.wrong.append(f"not well again: { {node: row(self.cluster, node) for node in self.cluster.nodes} }")
                return
            time.sleep(_CHECK_INTERVAL_S)

    # ---- the faults ----------------------------------------------------------------------------------------------------
    def all(self, away_s: float) -> None:
        """Each once."""
        nodes = self.cluster.nodes
        assert self.cluster.nats is not None
        self.begin()
        self.strike(
            "SIGSTOP",
            (0, 0, 0),
            lambda: nodes[STRUCK].send(signal.SIGSTOP),
            lambda: nodes[STRUCK].send(signal.SIGCONT),
            STRUCK,
        )
        self.hung(ReplicationConfig().hung_flush_s)
        self.strike(
            f"NATS is away for {away_s:.0f} s",
            (200, 503, 503),
            self.cluster.nats.kill,
            self.cluster.nats.restart,
            *nodes,
            stays_s=away_s,
        )
        self.full()
        others = [name for name in nodes if name != "n1"]
        self._restarted = frozenset(others)
        self.strike("no quorum", (200, 503, 503), lambda: self._kill(others), lambda: self._start(others), "n1")

    def begin(self) -> None:
        """All is well."""
        self._until_well(Seen("before", WELL, ()))

    def hung(self, limit_s: float, hangs_on_s: float = HANGS_ON_S) -> None:
        """The node answers at any moment, and is not live from ``limit_s`` on; its loop waits for no flush."""
        hang = Rule(FLUSH_SLOW, f"{STRUCK}/streams/*.log", ALL, value=round((limit_s + hangs_on_s) * 1000))
        self.strike(
            f"fdatasync hangs for {limit_s + hangs_on_s:.0f} s",
            (503, 200, 200),
            lambda: self.power.fail(hang),
            self.power.heal,
            STRUCK,
            within_s=limit_s + NOTICED_S,
            answers=True,
        )

    def full(self) -> None:
        """Nothing more can be written."""
        full = Rule(WRITE_FAILS, f"{STRUCK}/streams/*.log", ALL, errno.ENOSPC), Rule(NO_SPACE, f"{STRUCK}*", ALL)
        self.strike(
            "the disk is full", (200, 503, 503), lambda: self.power.fail(*full), self.power.heal, STRUCK, stays_s=STAYS_FULL_S
        )

    def _kill(self, names: list[str]) -> None:
        for name in names:
            self.cluster.nodes[name].kill()

    def _start(self, names: list[str]) -> None:
        for name in names:
            self.cluster.nodes[name].start()
        for name in names:
            self.cluster.nodes[name].wait_ready()


@contextlib.contextmanager
def table(settings: dict[str, str]) -> Iterator[Table]:
    """A cluster below which its disks can be struck, and its load. Raises NoShimError."""
    with tempfile.TemporaryDirectory(prefix="liftpy-health-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        power = PowerCut(data, Path(folder) / "shadow")
        with DevCluster(3, data=data, settings={**SETTINGS, **settings, **power.environment}) as cluster:
            with sync.connect(cluster.nats_url) as client:
                client.create_stream("s", "ev", replicas=3)
            load = Load(cluster.nats_url)
            with load.running():
                yield Table(cluster, power, load)


def run(away_s: float) -> list[Seen]:
    """The whole table."""
    with table({}) as struck:
        struck.all(away_s)
        return struck.seen


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--away-s", type=float, default=60.0, help="how long NATS is away")
    options = parser.parse_args()
    print("| fault | expected: livez, readyz, synced | said in the end | the others | |\n|---|---|---|---|---|")
    seen = run(options.away_s)
    return 1 if any(one.wrong for one in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
