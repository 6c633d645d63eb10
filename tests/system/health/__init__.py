"""``python -m tests.system.health``: livez, readyz and synced of real processes through faults, expected and seen."""
