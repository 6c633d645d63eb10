"""A rolling upgrade with the real wheel of the version before: nodes of both versions in one cluster, under load."""
