"""Rules that each history must keep."""
