"""More message ids, subjects and producers than a partition may remember: ``python -m tests.system.bounds --of ids``.

Each is refused by name beyond its bound, whoever leads; what needs no memory goes on; nothing is stored twice; memory stays flat.
"""
