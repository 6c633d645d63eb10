"""Tests on real processes. A package, so that what its tests share ends with them, not with the suite."""
