"""What a node of several processes serves: ``python -m tests.bench.workers``."""
