"""Scripts about settings that change while a node runs or starts."""

from __future__ import annotations

import asyncio

from tests.simulation.world.scripts.stage import Stage, script


@script(nodes=1, controllers=1)
async def script_settings_file_names_another_node(s: Stage) -> None:
    """Given a settings file with the id of another node, when an operator reloads it, nothing of it applies, and the log says why."""
    before = s["n1"].settings
    await asyncio.sleep(1)  # until the supervisor knows that the node is ready
    s.forget_log()
    s.change_settings("n1", node_id="n9", scrub_bytes_per_s=7_000)
    await asyncio.sleep(1)
    s.expect_log(
        "n1",
        "ERROR node.settings_rejected: settings not reloaded error=The file says node_id = 'n9', but this node is 'n1'. *",
        about="settings",
    )
    s.expect((await s.status("n1"))["scrub"]["bytes_per_s"], before.scrub_bytes_per_s, "rate of the scrub")
    process = s["n1"].process
    assert process is not None
    took_s = process.reports["READY"] - process.reports.get("RELOADING", 0.0)
    s.expect(0 <= took_s < 0.5, True, f"the supervisor hears that a reload begins and ends, after {took_s:.1f} s")
    rows = {row["name"]: row for row in await s.client.admin.node_settings("n1")}
    s.expect([name for name, row in rows.items() if "read" in row], [], "settings that wait for a restart")
    s["n1"].file.settings = before
    s.change_settings("n1", scrub_bytes_per_s=7_000)
    await asyncio.sleep(1)
    s.expect((await s.status("n1"))["scrub"]["bytes_per_s"], 7_000, "rate of the scrub with the corrected file")


@script(nodes=1, controllers=1)
async def script_operator_changes_the_log_level(s: Stage) -> None:
    """Given a node, when an operator changes its log level, it logs no more than the level says, and later everything again."""
    s.change_settings("n1", log_level="warning")
    await asyncio.sleep(1)
    s.forget_log()
    await s.create("quiet")
    await asyncio.sleep(1)
    s.expect(s.log("n1"), [], "log lines")
    s.change_settings("n1", log_level="info")
    await asyncio.sleep(1)
    await s.create("loud")
    await asyncio.sleep(1)
    s.expect(s.count_log("n1", "INFO partition.opened: partition opened partition=loud/0 *"), 1, "log lines")


@script(starts=False)
async def script_settings_change_while_a_node_starts(s: Stage) -> None:
    """Given a node that starts, when an operator reloads its settings, all of its parts use them as soon as it is ready."""
    s.change_file("n1", scrub_bytes_per_s=9_000)
    s["n1"].start()
    await asyncio.sleep(0.3)
    s.expect(s["n1"].is_ready, False, "n1 is ready")
    s.change_settings("n1", scrub_bytes_per_s=7_000, metrics_streams=("orders",))
    await asyncio.sleep(1)
    await s.start("n1", "n2", "n3")
    s.expect((await s.status("n1"))["scrub"]["bytes_per_s"], 7_000, "rate of the scrub")
    await s.create("orders", leader="n1")
    await s.publish("orders", 2)
    await s.shows(lambda: s.metric("n1", "ingest_records_total", 'stream="orders"'), 2, within_s=5, what="records of orders")


@script()
async def script_each_setting_of_a_node_is_that_of_its_file(s: Stage) -> None:
    """Given a changed settings file, what applies at once is in use after a reload. The rest is shown as waiting, until a restart."""
    s.change_settings("n2", scrub_bytes_per_s=7_000, replication__copy_bytes_per_s=1 << 20, replication__slow_flush_s=7.0)
    await asyncio.sleep(1)

    async def rows() -> dict[str, dict[str, object]]:
        return {str(row["name"]): row for row in await s.client.admin.node_settings("n2")}

    changed = ("scrub_bytes_per_s", "replication.copy_bytes_per_s")
    found = await rows()
    s.expect(
        [(found[name]["value"], "read" in found[name]) for name in changed], [(7_000, False), (1 << 20, False)], "settings"
    )
    waiting = {name: row["read"] for name, row in found.items() if "read" in row}
    s.expect(waiting, {"replication.slow_flush_s": 7.0}, "settings that wait for a restart")
    s.expect({row["applies"] for name, row in found.items() if name in changed}, {"live"}, "when they apply")
    status = await s.status("n2")
    s.expect((status["scrub"]["bytes_per_s"], status["copies"]["bytes_per_second"]), (7_000, 1 << 20), "limits in use")
    await s.stop("n2")
    await s.start("n2")
    found = await rows()
    s.expect([name for name, row in found.items() if "read" in row], [], "settings that wait after a restart")
    s.expect(found["replication.slow_flush_s"]["value"], 7.0, "setting after a restart")
