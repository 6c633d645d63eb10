"""Test that a node does not import what only some nodes use. These modules need 7 MB."""

from __future__ import annotations

import subprocess
import sys

LATER = (
    "liftpy.client.client", "liftpy.core.groups", "liftpy.service", "prometheus_client", "sidecar.groups.coordinators",
    "sidecar.metadata.event_stream", "sidecar.node.jetstream_api", "sidecar.status.metrics", "sidecar.status.pages",
    "opentelemetry", "pyarrow", "tenacity",
)  # fmt: skip
"""Modules that a node imports when it first coordinates a group, leads the metadata group, or answers a viewer or a scrape."""


def test_node_imports_modules_of_groups_pages_and_metrics_only_on_first_use() -> None:
    program = "import sys, sidecar.cli.main, sidecar.cli.sidecar, sidecar.node.node; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in imported if name.startswith(LATER)] == []
