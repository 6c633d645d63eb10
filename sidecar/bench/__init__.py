"""``liftpy bench``: this cluster beside others on the same machine, in one run: systems, load, readers, cases, figures."""
