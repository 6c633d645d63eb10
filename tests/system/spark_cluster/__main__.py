"""``python -m tests.system.spark_cluster [--records 20000] [--archives]``: a standalone Spark cluster of three processes on loopback.

A driver reads a stream in a batch and as a stream, writes another one, archives, audits and measures, with executors in other processes
that get this package from the driver (as by ``--py-files``) and have
no more than the NATS rights of a reader (and of a publisher on the target, to write). Right is: all was read, each record is once in
the target and once in the archive with its live stream, replicas agree, and NATS refused nothing. Exit code 1 otherwise.

``--archives``: executors get a whole Python environment instead (as by ``--archives``): this package and what it depends on, installed
from the package index into an environment of its own, and packed. Nothing of the interpreter that runs this is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import Credentials, connect
from liftpy.core.wire.permissions import AccessRole, Permissions, Scope, as_nats_conf, rights_of
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer, spawn
from tests.system.spark_cluster.standalone import Standalone

ROOT = Path(__file__).resolve().parents[3]
NS, SOURCE, TARGET = "acme", "cluster-in", "cluster-out"
SUBJECTS = {SOURCE: "shop.in", TARGET: "shop.out"}
PARTITIONS = {SOURCE: 3, TARGET: 2}
PATIENCE_S = 600.0
PACKAGE, ENVIRONMENT = "shipped.zip", "environment"


@dataclass(slots=True)
class Outcome:
    """``wrong``: what is not as it should be, in words. ``found``: what the driver said."""

    wrong: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


def _both(one: Permissions, other: Permissions) -> Permissions:
    return Permissions(
        tuple(dict.fromkeys((*one.publish, *other.publish))), tuple(dict.fromkeys((*one.subscribe, *other.subscribe)))
    )


def users() -> dict[str, Permissions]:
    """Name -> what it may do. The password of each is ``NAME-secret``, its inboxes are below ``_INBOX_NAME``."""

    def scope(name: str, *streams: str) -> Scope:
        subjects = tuple(subject for stream in streams for subject in (SUBJECTS[stream], f"{SUBJECTS[stream]}.*"))
        return Scope(NS, streams=streams, data_subjects=subjects, inbox_prefix=f"_INBOX_{name}")

    return {
        "node": rights_of(AccessRole.NODE, Scope(NS, data_subjects=("shop.>",), replies=("_INBOX_feeder", "_INBOX_writer"))),
        "operator": rights_of(AccessRole.OPERATOR, Scope(NS, inbox_prefix="_INBOX_operator")),
        "feeder": _both(
            rights_of(AccessRole.READER, scope("feeder", SOURCE, TARGET)),
            rights_of(AccessRole.PUBLISHER, scope("feeder", SOURCE)),
        ),
        "reader": rights_of(AccessRole.READER, scope("reader", SOURCE)),
        "writer": _both(
            rights_of(AccessRole.READER, scope("writer", TARGET)), rights_of(AccessRole.PUBLISHER, scope("writer", TARGET))
        ),
    }


def _credentials(name: str) -> Credentials:
    return Credentials(user=name, password=f"{name}-secret", inbox_prefix="" if name == "node" else f"_INBOX_{name}")


def _options(name: str, url: str, folder: Path) -> dict[str, str]:
    password = folder / f"{name}.password"
    password.write_text(f"{name}-secret\n")
    return {
        "nats": url,
        "namespace": NS,
        "patience": "60",
        "nats.user": name,
        "nats.passwordFile": str(password),
        "nats.inboxPrefix": f"_INBOX_{name}",
    }


async def _fill(url: str, records: int) -> None:
    async with connect(url, NS, credentials=_credentials("operator")) as operator:
        for stream, subject in SUBJECTS.items():
            await operator.create_stream(stream, subject, partitions=PARTITIONS[stream])
    async with connect(url, NS, credentials=_credentials("feeder")) as feeder, feeder.producer(SOURCE) as producer:
        for start in range(0, records, 1000):
            numbers = range(start, min(start + 1000, records))
            await producer.send_many([b"%d" % n for n in numbers], keys=[b"k%d" % (n % 53) for n in numbers])


async def _held(url: str) -> Counter[bytes | None]:
    async with connect(url, NS, credentials=_credentials("feeder")) as reader:
        return Counter(
            [record.value for place in range(PARTITIONS[TARGET]) async for record in reader.consume(TARGET, place, until="end")]
        )


def packed(archive: Path) -> Path:
    """This package as a zip, as ``--py-files`` takes it."""
    with zipfile.ZipFile(archive, "w") as made:
        for path in [ROOT / "pyspark_liftpy.py", *(ROOT / "liftpy").rglob("*.py")]:
            made.write(path, path.relative_to(ROOT))
    return archive


def environment(folder: Path) -> Path:
    """``folder/environment`` with this package and what it depends on, packed beside it: the archive."""
    made = folder / ENVIRONMENT
    base = Path(sys.base_prefix) / "bin" / "python3"
    subprocess.run([str(base), "-m", "venv", str(made)], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = [*project["dependencies"], *extras["arrow"], *(one for one in extras["spark"] if one.startswith("pandas"))]
    needed = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(needed, check=True)
    (site,) = (made / "lib").glob("python3*/site-packages")
    with zipfile.ZipFile(packed(folder / PACKAGE)) as package:
        package.extractall(site)
    archive = folder / f"{ENVIRONMENT}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packing:
        packing.add(made, ".")
    return archive


def _drive(plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the driver in a folder of its own; what it found."""
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "LIFTPY_"))}
    if plan["archive"]:
        (folder / ENVIRONMENT).symlink_to(Path(plan["archive"]).parent / ENVIRONMENT)
        kept |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), f"./{ENVIRONMENT}/bin/python")
    command = [sys.executable, "-m", "tests.system.spark_cluster.driver", json.dumps(plan)]
    process = spawn(
        command, signal.SIGKILL, cwd=folder, env={**kept, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, said = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    results = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not results:
        raise RuntimeError(f"the driver has failed ({process.returncode}): {said[-6000:]}")
    found: dict[str, Any] = json.loads(results[-1].removeprefix("RESULT "))
    return found


def _judge(
    found: dict[str, Any], records: int, held: Counter[bytes | None], daemons: set[int], nats_log: str, shipped: str
) -> list[str]:
    tasks = found["tasks"]
    checks = {
        "tasks ran in two executors' workers": found["executors"] == 2 and len({parent for _, parent, _, _ in tasks}) >= 2,
        "no task ran in the driver": all(found["pid"] not in (pid, parent) for pid, parent, _, _ in tasks),
        "tasks and driver have no folder in common": all("work" in Path(folder).parts for _, _, folder, _ in tasks),
        "tasks have the package that was shipped": all(shipped in Path(place).parts for *_, place in tasks),
        "a batch query read all": found["read"] == {"n": records, "total": records * (records - 1) // 2},
        "the streaming query ended": found["ended"] and (found["batches"] or 0) >= 1,
        "each record is in the target once": held == Counter(b"%d" % n for n in range(records)),
        "each record was archived, and is in the table once": found["archived"] == records
        and found["whole"] == {"n": records, "held": records},
        "replicas agree": found["audit"]["agrees"] and found["audit"]["proven"],
        "stats counted all": sum(found["stats"].values()) == records,
        "NATS refused nothing": "Violation" not in nats_log,
        "there were a master and two workers": len(daemons) == 3,
    }
    return [f"not so: {what}" for what, holds in checks.items() if not holds]


def run(records: int, archives: bool) -> Outcome:
    """All of it. ``archives``: executors get a packed environment, not the package alone."""
    began = time.monotonic()
    config = "authorization: { users: [\n" + "\n".join(
        f"{{ user: {name}, password: {name}-secret, {as_nats_conf(rights)} }}" for name, rights in users().items()
    ) + "\n] }\n"  # fmt: skip
    node = {"LIFTPY_USER": "node", "LIFTPY_PASSWORD": "node-secret"}
    with (
        tempfile.TemporaryDirectory(prefix="liftpy-cluster-", ignore_cleanup_errors=True) as name,
        NatsServer(config=config) as server,
        DevCluster(3, nats_url=server.url, namespace=NS, settings=node),
        Standalone(Path(name)) as cluster,
    ):
        folder = Path(name)
        asyncio.run(_fill(server.url, records))
        said_before = len(server.log)
        plan = {
            "master": cluster.url,
            "reader": _options("reader", server.url, folder),
            "writer": _options("writer", server.url, folder),
            "table": str(folder / "table"),
            "archive": str(environment(folder)) if archives else "",
            "package": str(packed(folder / PACKAGE)),
            "source": SOURCE,
            "target": TARGET,
            "patience_s": PATIENCE_S / 2,
        }
        shipped = ENVIRONMENT if archives else PACKAGE
        found = _drive(plan, folder / "driver")
        wrong = _judge(found, records, asyncio.run(_held(server.url)), cluster.pids, server.log[said_before:], shipped)
        return Outcome(wrong, found, time.monotonic() - began)


def main() -> int:
    """See the docstring above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--archives", action="store_true")
    given = parser.parse_args()
    outcome = run(given.records, given.archives)
    found = outcome.found
    done = f"{found['executors']} executors, {found['read']['n']} records read, {found['batches'] + 1} micro-batches"
    print(f"{done}, {outcome.took_s:.0f} s")
    print("\n".join(outcome.wrong) or "all is right")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
