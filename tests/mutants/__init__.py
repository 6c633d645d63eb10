"""Mutants: real bugs, put into the shipped text one at a time; the tests are to notice each. ``python -m tests.mutants``."""
