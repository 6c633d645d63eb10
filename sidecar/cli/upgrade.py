"""``liftpy upgrade``: show obstacles of the next feature level, finalize the level, or revert it. docs/upgrades.md has the steps.

The module also has the table of all formats on disk: the versions that this code reads, and the version that it writes at each
level.

Tests check two rules as far as code can. Rule 1: version N reads everything that version N - 1 wrote at any level. Rule 2: a node
does not write a new format before the feature level is finalized. Until then an operator can go back. So a new format version
also needs a row in ``features.py``. A cache (an index, a state) is rebuilt if it does not fit, and needs no level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from liftpy.client import Client
from liftpy.core.metadata.features import FEATURES, FIRST, FeatureLevels
from sidecar.cli.help import HelpGroup
from sidecar.cli.node_reports import fetch_health
from sidecar.cli.options import ask_consent, connection_options, json_option, yes_option
from sidecar.cli.output import print_json, print_table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target


@dataclass(frozen=True, slots=True)
class DiskFormat:
    """One format on disk, and its versions.

    ``where``: files that have it. ``code``: module and constant of the newest version. ``reads``: versions that this code can read.
    ``writes``: version that is written, by the feature level from which on it is written.
    """

    where: str
    code: str
    reads: tuple[int, ...]
    writes: Mapping[int, int]
    is_cache: bool = False
    """True if the file can be rebuilt from the others."""

    def written_at(self, level: int) -> int:
        return self.writes[max(since for since in self.writes if since <= level)]


DISK_FORMATS: Mapping[str, DiskFormat] = {
    "record batch": DiskFormat("<base>.log of a partition", "liftpy.core.wire.batch:VERSION", (1,), {FIRST: 1}),
    "small files of a log": DiskFormat(
        "high-watermark, leader-epochs, compaction-horizon, <base>.index, scrub",
        "liftpy.core.log.small_files:_VERSION",
        (1,),
        {FIRST: 1},
    ),
    "derived state": DiskFormat(
        "state-<offset> of a partition", "liftpy.core.log.small_files:_VERSION", (1,), {FIRST: 1}, is_cache=True
    ),
    "promises": DiskFormat("promises/promises of a node", "liftpy.core.log.epoch_promises:_VERSION", (1,), {FIRST: 1}),
    "node file": DiskFormat("node, in the data directory", "sidecar.disk.data_folder:_FORMAT", (1,), {FIRST: 1}),
    "log ends": DiskFormat(
        "log-ends, in the data directory", "sidecar.disk.data_folder:_LOG_ENDS_FORMAT", (1,), {FIRST: 1}, is_cache=True
    ),
    "group's journal": DiskFormat("raft/journal of a controller", "sidecar.quorum.journal:_MAGIC", (1,), {FIRST: 1}),
    "group's snapshot file": DiskFormat(
        "raft/snapshot of a controller", "sidecar.quorum.snapshot_file:_VERSION", (1,), {FIRST: 1}
    ),
    "group's lineage": DiskFormat("raft/lineage of a controller", "sidecar.quorum.probation:_FORMAT", (1,), {FIRST: 1}),
    "image": DiskFormat("within raft/snapshot", "liftpy.core.metadata.codec:SNAPSHOT_VERSION", (2,), {FIRST: 2}),
    "backup": DiskFormat(
        "backups/<id>/manifest.json of a store of backups", "liftpy.core.backup.manifest:FORMAT", (1,), {FIRST: 1}
    ),
    "service snapshot": DiskFormat(
        "the data directory of a service", "liftpy.core.services.snapshot:VERSION", (3, 4), {FIRST: 4}, is_cache=True
    ),
}
"""Name -> format.

A service snapshot is written as version 3 if it uses nothing of version 4. A replay replaces a snapshot that cannot be
read.
"""


@click.group(cls=HelpGroup, example="liftpy upgrade check")
def upgrade() -> None:
    """Check, finalize, revert and report a rolling upgrade.

    \b
    Order:
      1. liftpy upgrade check
      2. For each node (controllers last, the leading controller at the end):
         liftpy node can-stop NODE, stop, install, start, liftpy health --synced
      3. Watch the cluster for some time.
      4. liftpy upgrade finalize

    Before the last step, you can go back: do the same steps with the old version.
    """


_level_option = click.option(
    "--level",
    type=click.IntRange(1),
    help="Feature level to check or finalize.  [default: the highest level that all nodes support]",
)


def _highest_common_level(levels: FeatureLevels) -> int:
    most = [level_range.most for level_range in levels.spoken.values() if level_range is not None]
    return max(min(most, default=levels.level), levels.level)


async def _requested_level(client: Client, level: int | None) -> tuple[int, FeatureLevels]:
    """Return the feature level that the user requests, and the levels of the cluster with obstacles of this level."""
    levels = await client.admin.feature_levels()
    wanted = _highest_common_level(levels) if level is None else level
    return wanted, await client.admin.feature_levels(wanted)


@upgrade.command(example="liftpy upgrade check")
@_level_option
@json_option
@connection_options
def check(level: int | None, as_json: bool, target: Target) -> int:
    """Check the health and the versions of the cluster, and whether a feature level can be finalized. Exit code 0: yes, 1: no."""

    async def work(client: Client) -> tuple[list[str], int, FeatureLevels]:
        state = await client.admin.describe_cluster(linearizable=True)
        lines = []
        for node_id in sorted(state.image.nodes):
            health = None if state.image.nodes[node_id].fenced else await fetch_health(client.admin, node_id)
            why = "does not answer" if health is None else _unwell(health)
            lines.append(f"[-] {node_id}: {why}" if why else f"[+] {node_id}: live, ready, synced")
        wanted, levels = await _requested_level(client, level)
        return lines, wanted, levels

    lines, wanted, levels = with_client(target, work)
    versions = sorted({version or "?" for version in levels.versions.values()})
    lines.append(f"[{'+' if len(versions) == 1 else '-'}] versions: {', '.join(versions)}")
    lines += [f"[-] level {wanted}: {reason}" for reason in levels.reasons]
    if not levels.reasons:
        higher = wanted > levels.level
        lines.append(
            f"[+] level {wanted}: can be finalized" if higher else f"[+] level {levels.level} is active, nothing to finalize"
        )
    is_well = not any(line.startswith("[-]") for line in lines)
    if as_json:
        print_json({"well": is_well, "level": levels.level, "to": wanted, "checks": lines})
    else:
        click.echo("\n".join(lines))
    return 0 if is_well else 1


def _unwell(health: dict[str, Any]) -> str:
    if all(health["health"][what] for what in ("live", "ready", "synced")):
        return ""
    return "; ".join(f"{name}: {reason}" for name, reason in health["checks"].items() if reason) or "not synced since its start"


@upgrade.command(example="liftpy upgrade finalize --dry-run")
@_level_option
@click.option("--dry-run", is_flag=True, help="Check only, and change nothing.")
@yes_option
@json_option
@connection_options
def finalize(level: int | None, dry_run: bool, yes: bool, as_json: bool, target: Target) -> int:
    """Finalize the highest feature level that all nodes support. Exit code 1: not possible, nothing changed.

    After that, nodes with older versions are rejected. `liftpy upgrade report` shows whether you can go back.
    """

    async def check_level(client: Client) -> tuple[int, FeatureLevels]:
        wanted, levels = await _requested_level(client, level)
        if wanted < levels.level and not levels.reasons:
            why = f"Level {wanted} is below the current level {levels.level}. Use `liftpy upgrade revert` to go back."
            levels = replace(levels, reasons=(why,))
        return wanted, levels

    wanted, levels = with_client(target, check_level)
    if dry_run or levels.reasons or wanted == levels.level:
        return _print_result(wanted, levels, "", as_json)
    has_way_back = all(feature.has_way_back for feature in FEATURES if levels.level < feature.level <= wanted)
    lines = (
        f"The cluster is at feature level {levels.level}. After level {wanted} it rejects nodes that do not support it.",
        "You can go back only while nothing uses the level." if has_way_back else "You cannot go back.",
    )
    ask_consent(yes, f"Finalize level {wanted}?", lines)

    async def set_level(client: Client) -> str:
        return await client.admin.set_feature_level(wanted)

    return _print_result(wanted, levels, with_client(target, set_level), as_json)


@upgrade.command(example="liftpy upgrade revert --dry-run")
@click.option("--dry-run", is_flag=True, help="Check only, and change nothing.")
@json_option
@connection_options
def revert(dry_run: bool, as_json: bool, target: Target) -> int:
    """Go back to the previous feature level. Exit code 1: not possible, nothing changed.

    This is possible only if the current level has written nothing new and nothing uses it.
    """

    async def work(client: Client) -> tuple[int, FeatureLevels, str]:
        wanted = (await client.admin.feature_levels()).level - 1
        levels = await client.admin.feature_levels(max(wanted, FIRST))
        if wanted < FIRST:
            return wanted, replace(levels, reasons=(f"There is no level before {FIRST}.",)), ""
        return wanted, levels, "" if dry_run or levels.reasons else await client.admin.set_feature_level(wanted)

    return _print_result(*with_client(target, work), as_json)


def _print_result(wanted: int, levels: FeatureLevels, done: str, as_json: bool) -> int:
    holds = wanted if done else levels.level
    if as_json:
        print_json({"level": holds, "to": wanted, "reasons": levels.reasons, "done": bool(done)})
    elif levels.reasons:
        click.echo("\n".join(levels.reasons))
    else:
        click.echo(
            done
            or (
                f"Level {wanted} can be {'finalized' if wanted > holds else 'restored'}. The current level is {holds}."
                if wanted != holds
                else f"The current level is already {holds}."
            )
        )
    return 1 if levels.reasons else 0


@upgrade.command(example="liftpy upgrade report")
@json_option
@connection_options
def report(as_json: bool, target: Target) -> None:
    """Show the current feature level, what each level adds, which levels each node supports, and what blocks a return."""

    async def work(client: Client) -> tuple[FeatureLevels, tuple[str, ...]]:
        levels = await client.admin.feature_levels()
        if levels.level <= FIRST:
            return levels, (f"There is no level before {FIRST}.",)
        return levels, (await client.admin.feature_levels(levels.level - 1)).reasons

    levels, back = with_client(target, work)
    nodes = {
        node_id: {
            "version": version,
            "speaks": None if (level_range := levels.spoken[node_id]) is None else [level_range.least, level_range.most],
        }
        for node_id, version in levels.versions.items()
    }
    if as_json:
        known = [
            {"level": f.level, "version": f.version, "gates": f.description, "has_way_back": f.has_way_back} for f in FEATURES
        ]
        disk = {
            name: {"where": f.where, "reads": f.reads, "writes": f.written_at(max(levels.level, FIRST)), "is_cache": f.is_cache}
            for name, f in DISK_FORMATS.items()
        }
        result = {"level": levels.level, "known_here": known, "disk_formats": disk, "nodes": nodes, "in_the_way_back": back}
        print_json(result)
        return
    rows = [(str(f.level), "active" if f.level == levels.level else "", f.version, f.description) for f in FEATURES]
    print_table(("level", "state", "since", "what it adds"), rows)
    shown = [
        (node_id, str(row["version"] or "?"), str(levels.spoken[node_id] or "no answer")) for node_id, row in nodes.items()
    ]
    print_table(("node", "version", "supported levels"), shown)
    click.echo("return to the previous level: " + ("possible" if not back else "not possible. " + "; ".join(back)))
