"""The data path beside JetStream, in one run."""
