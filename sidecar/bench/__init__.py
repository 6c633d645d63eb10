"""``liftpy bench``: compares this cluster with other systems on the same machine, in one run."""
