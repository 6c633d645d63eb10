"""Make small mistakes in the shipped code, one at a time, and see whether a test fails."""
