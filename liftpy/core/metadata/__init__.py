"""The metadata of a cluster: records, image, decisions, replay and placement. Pure."""
