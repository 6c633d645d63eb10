"""For tests of applications: ``ServiceTest``, a replicated service without a cluster (``liftpy.testing.services``)."""

from __future__ import annotations

from liftpy.testing.services import ServiceTest

__all__ = ["ServiceTest"]
