"""The control plane: records, image, decide and replay, placement. Pure."""
