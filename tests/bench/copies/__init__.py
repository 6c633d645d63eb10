"""What a copy costs those who publish: ``python -m tests.bench.copies``."""
