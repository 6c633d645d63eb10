"""Seeds of the world that runs shipped nodes in virtual time (``tests/sim/virtual``)."""
