"""Break a cluster of three nodes, and measure when an operator sees the cause: see the package.

The operator has the JSON of the page, and ``liftpy top``, ``status``, ``health --cluster`` and ``events``.
All of them must name the same word and the same runbook, and those with a verdict the same cause.
The full disk is a file system in memory, which takes root. A group is stuck after ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from liftpy.client import sync
from liftpy.core.observe.cluster_health import RUNBOOKS, VERDICTS
from liftpy.core.observe.node_events import STUCK_S
from liftpy.errors import AlreadyExistsError, NotFoundError
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests import fork_server
from tests.examples.processes import start_service
from tests.system.alerts.__main__ import damage, leave_group, lose_directory, small_disk, start
from tests.system.alerts.service import SKEW
from tests.system.health.__main__ import WELL, Load, row

SETTINGS = {"LIFTPY_REPLICATION_SESSION_S": "3", "LIFTPY_LOG_LEVEL": "error"}
VIEWER, STRUCK = "n1", "n3"
"""Node whose page the operator reads, and node of most faults."""
_CLI = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]
_PATIENCE_S = 60.0
_EVERY_S = 0.2
_AGREE_S = 15.0
_REQUESTS = 40
"""Number of control requests whose entries take more than a page of a journal."""
_COMMANDS = {"top": ("top", "--once"), "status": ("status",), "health": ("health", "--cluster")}
_EVENTS = "events"


class Shown(NamedTuple):
    """One problem as an operator reads it."""

    word: str
    cause: str
    """Cause, '' for a command that could not connect."""
    runbook: str


@dataclass
class Seen:
    """Result of one fault."""

    fault: str
    word: str
    after_s: dict[str, float] = field(default_factory=dict)
    """Place, as ``page`` or ``top`` -> seconds until it named the word."""
    causes: dict[str, str] = field(default_factory=dict)
    """Place -> cause."""
    wrong: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the row of the table."""
        times = ", ".join(f"{self.after_s[place]:.1f}" if place in self.after_s else "-" for place in PLACES)
        return f"| {self.fault} | {self.word} | {times} | {next(filter(None, self.causes.values()), '-')} |"


PLACES = ("page", *_COMMANDS, _EVENTS)


def problems_in(said: dict[str, Any]) -> list[Shown]:
    """Return the problems in the JSON of a page, of a command, or of its error."""
    error = said.get("error")
    if isinstance(error, dict):
        return (
            [Shown(error["verdict"], "", error["runbook"].removeprefix(f"{RUNBOOKS}/").removesuffix(".md"))]
            if error.get("verdict")
            else []
        )
    verdict = said.get("verdict") or said.get("cluster") or {}
    return [Shown(one["word"], one["text"], one["runbook"]) for one in verdict.get("reasons", ())]


def differences(seen: Seen) -> list[str]:
    """Return the causes that differ by more than by their numbers. Each place names its own connection to NATS."""
    causes = {cause for place, cause in seen.causes.items() if cause and place != _EVENTS}
    plain = {re.sub(r"[\d.,:]+", "0", cause) for cause in causes if "cannot reach NATS" not in cause}
    return [f"{seen.fault}: the causes differ: {seen.causes}"] if len(plain) > 1 else []


class Operator:
    """Reads the page and runs the commands."""

    def __init__(self, cluster: DevCluster, url: str) -> None:
        self._cluster, self._url = cluster, url

    def _run(self, *words: str) -> tuple[str, str]:
        done = fork_server.run([*_CLI, *words, "--json", "--nats", self._url], text=True, timeout=30)
        return done.stdout, done.stderr

    def problems(self, place: str) -> list[Shown]:
        """Return what a place says now, nothing if it does not answer."""
        if place == "page":
            try:
                with urllib.request.urlopen(
                    f"{self._cluster.nodes[VIEWER].status_url.rstrip('/')}/api/cluster.json", timeout=5
                ) as answer:
                    return problems_in(json.load(answer))
            except OSError:
                return []
        out, error = self._run(*_COMMANDS[place])
        lines = (out.strip() or error.strip()).splitlines()
        try:
            return problems_in(json.loads(lines[-1])) if lines else []
        except ValueError:
            return []

    def events(self, since_ns: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the events of these kinds after a moment."""
        out, _ = self._run(_EVENTS, "--since", "1h")
        found = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
        return [one for one in found if one.get("kind") in kinds and one["time_ns"] >= since_ns]


class Drill:
    """Breaks and repairs one cluster. ``seen``: the results."""

    def __init__(self, cluster: DevCluster, server: NatsServer) -> None:
        self.cluster, self.server = cluster, server
        self.operator = Operator(cluster, server.url)
        self.seen: list[Seen] = []

    def strike(
        self, fault: str, word: str, begin: Callable[[], object], end: Callable[[], object], within_s: float = _PATIENCE_S
    ) -> None:
        """Break something, wait until all places name the word, and repair it.

        An event that is not readable during the fault must be readable after it.
        """
        self._until_well(fault)
        seen, since_ns = Seen(fault, word), time.time_ns()
        self.seen.append(seen)
        began, every_s = time.monotonic(), within_s / 300
        begin()

        def watch(place: str) -> None:
            while time.monotonic() - began < within_s:
                if found := self._named(place, word):
                    seen.after_s[place], seen.causes[place] = time.monotonic() - began, found.cause
                    if found.runbook != VERDICTS[word].runbook:
                        seen.wrong.append(f"{fault}: {place} names the runbook {found.runbook}")
                    return
                time.sleep(every_s)

        def watch_events(until: float) -> bool:
            while time.monotonic() < until:
                if found := self.operator.events(since_ns, VERDICTS[word].events):
                    seen.after_s[_EVENTS] = time.monotonic() - began
                    seen.causes[_EVENTS] = str(found[0].get("detail", ""))
                    return True
                time.sleep(every_s)
            return False

        threads = [threading.Thread(target=watch, args=(place,), daemon=True) for place in PLACES if place != _EVENTS]
        for thread in threads:
            thread.start()
        is_seen = watch_events(began + (within_s if word not in ("nats-lost", "no-majority") else 1.0))
        for thread in threads:
            thread.join()
        self._agree(seen)
        others = ", ".join(one.word for one in self.operator.problems("page")) or "nothing"
        end()
        self._until_well(fault)
        if not is_seen and not watch_events(time.monotonic() + _PATIENCE_S):
            seen.wrong.append(f"{fault}: no event of {VERDICTS[word].events}")
        seen.wrong += [
            f"{fault}: {place} does not name {word}, and the page names {others}"
            for place in PLACES
            if place not in seen.after_s and place != _EVENTS
        ]
        seen.wrong += differences(seen)
        print(seen.text(), *(f"  {place}: {cause}" for place, cause in seen.causes.items()), *seen.wrong, sep="\n", flush=True)

    def _agree(self, seen: Seen) -> None:
        """Read the causes until all places say the same. A cause may change while the nodes learn of the fault."""
        give_up_at = time.monotonic() + _AGREE_S
        while True:
            places = [place for place in seen.after_s if place != _EVENTS]
            seen.causes |= {place: found.cause for place in places if (found := self._named(place, seen.word))}
            if not differences(seen) or time.monotonic() > give_up_at:
                return
            time.sleep(_EVERY_S)

    def _named(self, place: str, word: str) -> Shown | None:
        return next((one for one in self.operator.problems(place) if one.word == word), None)

    def _until_well(self, fault: str) -> None:
        give_up_at = time.monotonic() + _PATIENCE_S
        while (rows := {node: row(self.cluster, node) for node in self.cluster.nodes}) != dict.fromkeys(rows, WELL):
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{fault}: the nodes are not well: {rows}")
            time.sleep(_EVERY_S)

    # ---- the faults ----------------------------------------------------------------------------------------------------
    def _elect(self, stream: str) -> None:
        with sync.connect(self.server.url) as client:
            if client.stream(stream).partitions[0].leader != STRUCK:
                client.admin.elect_leader(stream, 0, STRUCK)

    def killed_leader(self) -> None:
        """The leader of the partition is killed."""
        self._elect("s")
        node = self.cluster.nodes[STRUCK]
        self.strike("killed leader", "fenced", node.kill, lambda: start(self.cluster, STRUCK))

    def stopped_nats(self) -> None:
        """The NATS server is killed."""
        self.strike("stopped NATS", "nats-lost", self.server.kill, self.server.restart)

    def full_disk(self) -> None:
        """The disk of a node is full, and requests to the metadata group fill the last page of its journal, too."""
        ballast = self.cluster.data / STRUCK / "ballast"

        def fill() -> None:
            with contextlib.suppress(OSError), ballast.open("wb") as file:
                while True:
                    file.write(bytes(65_536))
            with sync.connect(self.server.url) as client:
                for number in range(_REQUESTS):
                    client.create_stream(f"full-{number}", f"full-{number}", replicas=1)

        self.strike("full disk", "disk-low", fill, ballast.unlink)
        with sync.connect(self.server.url) as client:  # their only replica would wait for an operator after the next damage
            for number in range(_REQUESTS):
                with contextlib.suppress(NotFoundError):
                    client.delete_stream(f"full-{number}")

    def damaged_segment(self) -> None:
        """A bit of an old segment flips, and a reader finds it."""
        self.strike("damaged segment", "repaired", lambda: damage(self.cluster, self.server.url, STRUCK), lambda: None)

    def lost_directory(self) -> None:
        """A node comes back with an empty data directory."""
        self.strike("lost data directory", "directory-lost", lambda: lose_directory(self.cluster, STRUCK), lambda: None)

    def lost_majority(self) -> None:
        """Two of three controllers are killed."""
        others = [name for name in self.cluster.nodes if name != VIEWER]
        self.strike(
            "lost majority",
            "no-majority",
            lambda: [self.cluster.nodes[name].kill() for name in others],
            lambda: start(self.cluster, *others),
        )

    def _services(self, fault: str, nodes: tuple[str, ...]) -> None:
        """Run a service next to these nodes. The last instance computes another state."""
        folder = Path(tempfile.mkdtemp(dir=self.cluster.data.parent))
        with contextlib.suppress(AlreadyExistsError), sync.connect(self.server.url) as client:
            client.create_stream("commands", "commands", replicas=3)
        running: list[subprocess.Popen[Any]] = []

        def begin() -> None:
            for node in nodes:
                running.append(
                    start_service(
                        "tests.system.alerts.service:Sum", stream="commands", node=node, data=folder, output="",
                        snapshot_interval_records=10, nats_url=self.server.url, environment={SKEW: str(int(node == nodes[-1]))},
                    )
                )  # fmt: skip
            for node in nodes:
                while "role=" not in (folder / f"{node}.log").read_text():
                    time.sleep(_EVERY_S)
            with sync.connect(self.server.url) as client:
                for _ in range(25):  # two snapshots
                    client.publish("commands", b"1")

        def end() -> None:
            for process in running:
                process.terminate()
                process.wait(30)

        self.strike(fault, "service-diverged", begin, end)

    def diverged_service(self) -> None:
        """One of three instances of a service computes another state, and ends."""
        self._services("diverged service", ("n1", "n2", "n3"))

    def differing_service(self) -> None:
        """Two instances of a service compute different states, and no majority decides."""
        self._services("service without a majority", ("n1", "n3"))

    def stuck_group(self) -> None:
        """A group stops to commit, while its lag grows."""
        self.strike(
            "stuck group", "group-stuck", lambda: leave_group(self.server.url), lambda: None, within_s=STUCK_S + _PATIENCE_S
        )


FAULTS: dict[str, Callable[[Drill], None]] = {
    "killed-leader": Drill.killed_leader,
    "stopped-nats": Drill.stopped_nats,
    "full-disk": Drill.full_disk,
    "damaged-segment": Drill.damaged_segment,
    "lost-directory": Drill.lost_directory,
    "lost-majority": Drill.lost_majority,
    "differing-service": Drill.differing_service,
    "diverged-service": Drill.diverged_service,
    "stuck-group": Drill.stuck_group,
}


def run(faults: list[str]) -> list[Seen]:
    """Run these faults one after the other."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="liftpy-drill-")))
        has_disk = "full-disk" in faults and stack.enter_context(small_disk(folder / "data" / STRUCK))
        server = stack.enter_context(NatsServer())
        cluster = stack.enter_context(DevCluster(3, data=folder / "data", nats_url=server.url, settings=SETTINGS))
        with sync.connect(server.url) as client:
            client.create_stream("s", "ev", replicas=3)
        stack.enter_context(Load(server.url).running())
        drill = Drill(cluster, server)
        for fault in faults:
            if fault == "full-disk" and not has_disk:
                print("full-disk: left out, because no file system can be mounted here")
                continue
            FAULTS[fault](drill)
        return drill.seen


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"Faults to run: {', '.join(FAULTS)}. Default: all.")
    options = parser.parse_args()
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    print(f"| fault | word | {', '.join(PLACES)} (s) | cause |\n|---|---|---|---|")
    seen = run(options.faults or list(FAULTS))
    return 1 if any(one.wrong for one in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
