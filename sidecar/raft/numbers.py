"""The bound of terms and indexes in the metadata group."""

from __future__ import annotations

MAX_NUMBER = 1 << 62
"""Terms and indexes are below: no group gets there, and a wrong one must not come near what 64 bits can hold."""
