"""Decision replay: recorded entries of the metadata group's log, for each feature level, with the digests of what they came to."""
