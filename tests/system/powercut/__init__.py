"""A power cut for real processes: a shim below them keeps what a cut would leave (``shim.c``), ``PowerCut`` makes the cut."""
