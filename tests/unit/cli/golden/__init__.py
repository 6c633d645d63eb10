"""Golden output of every command: a script for each noun (``python -m tests.unit.cli.golden``)."""
