"""Tools for tests of applications: ``ServiceTest`` runs a replicated service without a cluster.

``liftpy.testing.memory`` has a cluster in memory, ``liftpy.testing.plugin`` pytest fixtures.
"""

from __future__ import annotations

from liftpy.testing.services import ServiceTest

__all__ = ["ServiceTest"]
